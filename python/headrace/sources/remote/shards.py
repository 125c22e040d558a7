"""Packed datasets in an object store, read record by record into a cache on local disk.

The index says where every record lies, so a batch is a few hundred ranged reads at once, in any order: the shuffle is
as good as on local disk, and the first batch needs no shard to be downloaded. What came is checked against the record's
CRC-32C and stays in sparse files of the shards' sizes, which native code reads as if they were whole. Two processes may
share them.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.errors import FormatError, SourceError
from headrace.records import Dataset
from headrace.shards.index import Columns, read_columns
from headrace.shards.manifest import MANIFEST, Manifest, read_manifest
from headrace.sources.remote.space import hold, reserve
from headrace.sources.remote.store import Bucket, open_bucket
from headrace.sources.shards import open_shards

__all__ = ["RemoteShards", "open_remote_shards"]

_CONNECTIONS = 64  # requests at once; S3 gives about 50 to 90 MB/s for each connection, and one a few tens of ms to begin
_COALESCE = 4 << 20  # bytes: neighbours in a shard are read together up to this size
_GAP = 1 << 16  # bytes between neighbours that are read and thrown away rather than asked for separately
_ABSENT, _PRESENT, _CLAIMED = 0, 1, 2  # claimed: written before the machine was last started, so checked before use


def open_remote_shards(bucket: Bucket, manifest_bytes: bytes, cache: Path) -> Dataset:
    """Opens the packed dataset at the bucket's URL; images are fetched when they are needed.

    Raises FormatError when manifest and index contradict each other, SourceError when the store does not answer or the
    dataset does not fit into the cache.
    """
    folder = cache / hashlib.sha256(bucket.url.encode() + b"\0" + manifest_bytes).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes that open at once make the files once
        used = hold(folder)
        try:
            manifest = _prepare(bucket, manifest_bytes, folder)
            dataset = open_shards(folder)
            residency = RemoteShards(bucket, folder, manifest, read_columns(folder / manifest.index.file), used)
        except BaseException:
            os.close(used)
            raise
    return replace(dataset, root=bucket.url, residency=residency)


def _prepare(bucket: Bucket, manifest_bytes: bytes, folder: Path) -> Manifest:
    """Manifest, index and empty shards of the right sizes."""
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    _write(folder / "new" / MANIFEST, manifest_bytes)
    manifest = read_manifest(folder / "new")
    reserve(folder, sum(shard.size for shard in manifest.shards) + manifest.index.size)
    index = bucket.read(manifest.index.file)
    if index is None:
        raise FormatError(f"{bucket.url}/{manifest.index.file} is missing", hint="copy the dataset again")
    if hashlib.sha256(index).hexdigest() != manifest.index.sha256:
        raise FormatError(f"{bucket.url}/{manifest.index.file} is not the file that the manifest describes")
    _write(folder / manifest.index.file, index)
    for shard in manifest.shards:
        with open(folder / shard.file, "ab") as file:
            file.truncate(shard.size)
    with open(folder / "present", "wb") as file:
        file.truncate(max(1, manifest.records))
    (folder / "boot").write_text(_boot())
    (folder / "new" / MANIFEST).replace(folder / MANIFEST)
    return manifest


class RemoteShards:
    """Brings records of a remote dataset to local disk; `begin` returns at once."""

    def __init__(self, bucket: Bucket, folder: Path, manifest: Manifest, columns: Columns, used: int) -> None:
        self.bucket, self.folder, self.manifest, self.columns = bucket, folder, manifest, columns
        self.requests = 0  # ranged reads so far, for tests and reports
        with open(folder / "present", "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._present: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._claim()
        self._files = [os.open(folder / shard.file, os.O_RDWR) for shard in manifest.shards]
        self._process, self._pool = os.getpid(), _pool()
        self._open = (*self._files, used)

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.shutdown(wait=False, cancel_futures=True)
        for descriptor in getattr(self, "_open", ()):
            os.close(descriptor)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.bucket.url, self.folder)  # in a spawned process: same cache, own threads

    def begin(self, records: npt.NDArray[np.int64]) -> Fetch:
        """Starts to fetch the records that are not here yet."""
        missing = np.unique(records[self._present[records] != _PRESENT])
        if os.getpid() != self._process:  # threads do not survive a fork
            self._process, self._pool = os.getpid(), _pool()
        return Fetch([self._pool.submit(self._fetch, group) for group in self._groups(missing)])

    def _groups(self, missing: npt.NDArray[np.int64]) -> Iterator[list[int]]:
        """Records (ascending, so in the order of the shards) cut into runs that are read by one request each."""
        group: list[int] = []
        for record in missing.tolist():
            if group and not self._follows(group, record):
                yield group
                group = []
            group.append(record)
        if group:
            yield group

    def _follows(self, group: list[int], record: int) -> bool:
        columns, last = self.columns, group[-1]
        near = int(columns.offset[record]) - self._end(last) <= _GAP
        short = self._end(record) - int(columns.offset[group[0]]) <= _COALESCE
        return bool(columns.shard[last] == columns.shard[record]) and near and short

    def _end(self, record: int) -> int:
        """Where a record ends in its shard, with its JSON, which lies behind the image."""
        columns = self.columns
        end = int(columns.offset[record] + columns.size[record])
        if columns.json_offset is not None and columns.json_size is not None and columns.json_size[record]:
            end = max(end, int(columns.json_offset[record] + columns.json_size[record]))
        return end

    def _fetch(self, group: list[int]) -> None:
        wanted = [record for record in group if not self._is_here(record)]
        if not wanted:
            return
        columns, shard = self.columns, int(self.columns.shard[wanted[0]])
        begin = int(columns.offset[wanted[0]])
        end = self._end(wanted[-1])

        def intact(data: bytes) -> bool:
            return all(self._crc(data[int(columns.offset[i]) - begin :][: int(columns.size[i])], i) for i in wanted)

        self.requests += 1
        data = self.bucket.read_range(self.manifest.shards[shard].file, begin, end - begin, intact)
        try:
            written = os.pwrite(self._files[shard], data, begin)
        except OSError as error:
            raise _no_room(self.folder, error) from error
        if written != len(data):
            raise _no_room(self.folder, None)
        self._present[wanted] = _PRESENT  # only now: another process may be looking

    def _is_here(self, record: int) -> bool:
        if self._present[record] == _CLAIMED:
            columns = self.columns
            data = os.pread(self._files[columns.shard[record]], int(columns.size[record]), int(columns.offset[record]))
            if self._crc(data, record):
                self._present[record] = _PRESENT
        return bool(self._present[record] == _PRESENT)

    def _crc(self, data: bytes, record: int) -> bool:
        return _native.crc32c(data) == int(self.columns.crc32c[record])

    def _claim(self) -> None:
        """After a restart of the machine, what was marked may never have reached the disk."""
        path = self.folder / "boot"
        if path.read_text() != _boot():
            self._present[self._present == _PRESENT] = _CLAIMED
            _write(path, _boot().encode())


def _reopened(url: str, folder: Path) -> RemoteShards:
    manifest = read_manifest(folder)
    columns = read_columns(folder / manifest.index.file)
    return RemoteShards(open_bucket(url), folder, manifest, columns, hold(folder))


class Fetch:
    """Records on their way."""

    def __init__(self, parts: list[Future[None]]) -> None:
        self._parts = parts

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return all(part.done() for part in self._parts)

    def wait(self) -> None:
        """Waits until all are here. Raises SourceError when one could not be fetched."""
        for part in self._parts:
            part.result()

    def cancel(self) -> None:
        """Gives up what has not begun."""
        for part in self._parts:
            part.cancel()


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="headrace-fetch")


def _no_room(folder: Path, error: OSError | None) -> SourceError:
    why = error.strerror if error is not None else "No space left on device"
    return SourceError(
        f"cannot write to the cache {folder}: {why}", hint="free some space, or set HEADRACE_CACHE to another disk"
    )


def _boot() -> str:
    """Names the time since the machine was started (Linux, proc(5))."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
