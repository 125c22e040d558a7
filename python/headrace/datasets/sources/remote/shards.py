"""Packed datasets in an object store: records are fetched by ranged reads when they are needed, through a cache on local disk.

The index locates every record, so a batch is a few hundred concurrent ranged reads in any order, and the first batch needs no
whole shard. Records announced early (a block shuffle's next shards) are read in large pieces. Every answer is checked against
the records' CRC-32C. Native code reads a dataset that fits into the cache from the cache's files; of a larger dataset the cache
holds a part, and records reach native code as bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.shards.index import Columns, read_columns
from headrace.datasets.shards.manifest import MANIFEST, Manifest, read_manifest
from headrace.datasets.sources.archives.shards import open_shards
from headrace.datasets.sources.remote.eviction import mark_in_use, reserve_some, reserved_bytes
from headrace.datasets.sources.remote.locks import PATIENCE_S, claim, claim_free
from headrace.datasets.sources.remote.mirror import copy_object
from headrace.datasets.sources.remote.shard_cache import WRITING, Reservation, ShardCache, boot, no_room
from headrace.datasets.sources.remote.store import Bucket, open_bucket
from headrace.errors import FormatError
from headrace.system.files import open_files
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.private_files import private_opener
from headrace.system.processes.scheduling import yield_to_running_threads

__all__ = ["RemoteShards", "empty_files", "open_remote_shards", "overhead"]

_OWN_NAMES = frozenset(("boot", "names.json", "new", "present", "size", "use"))  # of the cache, beside the shards
_LAYOUT = b"2\0"  # version of the cache's folders; another version makes a new entry
_CONNECTIONS = 64  # threads, and concurrent requests; S3 gives 50 to 90 MB/s each, after some tens of ms to the first byte
_AHEAD_CONNECTIONS = 16  # more of them, for announced records
_COALESCE = 4 << 20  # bytes; neighbours in a shard are read by one request up to this size
_COALESCE_AHEAD = 8 << 20
_GAP = 1 << 16  # bytes; a smaller gap between neighbours is read and dropped instead of making two requests
_SMALL_INDEX = 64 << 20  # bytes; a larger index goes to the disk in parts
_TOGETHER = 8  # requests of a bundle, which one thread makes
_AT_ONCE = 10  # requests of one call that obstore sends at the same time, at most

Records = npt.NDArray[np.int64]


def open_remote_shards(bucket: Bucket, manifest_bytes: bytes, cache: Path) -> Dataset:
    """Open the packed dataset at the bucket's URL; images are fetched when they are read.

    Raises FormatError if manifest and index contradict each other, SourceError if the store does not answer or the index does
    not fit into the cache.
    """
    folder = cache / hashlib.sha256(_LAYOUT + bucket.url.encode() + b"\0" + manifest_bytes).hexdigest()[:32]
    make_cache_folder(folder)
    with open(folder / ".lock", "ab", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that two processes that open at the same time make the files once
        used = mark_in_use(folder)
        try:
            manifest = _prepare(bucket, manifest_bytes, folder)
            open_files.require(2 * len(manifest.shards), bucket.url)  # native code opens them too
            with open(
                folder / WRITING, "ab"
            ) as writing:  # a shard that another process empties has the wrong size for a moment
                fcntl.flock(writing, fcntl.LOCK_SH)
                dataset = open_shards(folder)
            fetcher = RemoteShards(bucket, folder, manifest, read_columns(folder / manifest.index.file), used)
        except BaseException as error:
            os.close(used)
            if isinstance(error, OSError):
                raise no_room(folder, error.strerror) from error
            raise
    return replace(dataset, root=bucket.url, fetcher=fetcher)


def _prepare(bucket: Bucket, manifest_bytes: bytes, folder: Path) -> Manifest:
    """Return the manifest; make index and empty shards in the cache if they are missing."""
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    # A manifest in the folder means that it is complete, so it stays in `new` until the index is there.
    (folder / "new").mkdir(exist_ok=True)
    atomic_write(folder / "new" / MANIFEST, manifest_bytes)
    manifest = read_manifest(folder / "new")
    taken = _OWN_NAMES.intersection((manifest.index.file, *(shard.file for shard in manifest.shards)))
    if taken:
        what = f"{bucket.url} has a file {min(taken)!r}, which is the name of one of the cache's own"
        raise FormatError(what, hint="rename the file, also in its manifest")
    reserve_some(folder, sum(shard.size for shard in manifest.shards) + overhead(manifest), at_least=overhead(manifest))
    _fetch_index(bucket, manifest, folder)
    empty_files(folder, manifest)
    (folder / "boot").write_text(boot())
    (folder / "new" / MANIFEST).replace(folder / MANIFEST)
    return manifest


def _fetch_index(bucket: Bucket, manifest: Manifest, folder: Path) -> None:
    """Store the index, and check that it holds the records that the manifest claims: they decide what is allocated."""
    name, path = f"{bucket.url}/{manifest.index.file}", folder / manifest.index.file
    path.unlink(missing_ok=True)
    try:
        if manifest.index.size <= _SMALL_INDEX:
            found = bucket.read(manifest.index.file, limit=_SMALL_INDEX)
            if found is not None:
                atomic_write(path, found)
        elif (entry := bucket.find(manifest.index.file)) is not None:
            copy_object(bucket, replace(entry, size=manifest.index.size), folder)
        if not path.exists():
            raise FormatError(f"{name} is missing", hint="copy the dataset again")
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest.index.sha256:
                raise FormatError(f"{name} is not the file that the manifest describes")
        if (records := len(read_columns(path))) != manifest.records:
            raise FormatError(f"{name} holds {records:,} records, the manifest claims {manifest.records:,}")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def empty_files(folder: Path, manifest: Manifest) -> None:
    """Make the sparse files of the shards, and the files that mark cached records and last uses."""
    for shard in manifest.shards:
        with open(folder / shard.file, "ab") as file:
            file.truncate(shard.size)
    for name, size in (("present", manifest.records), ("use", 16 * len(manifest.shards))):
        with open(
            folder / name, "wb"
        ) as file:  # allocate its blocks: the file is mapped, and a full disk would raise SIGBUS later
            os.posix_fallocate(file.fileno(), 0, max(16, size))


def overhead(manifest: Manifest) -> int:
    """Return the bytes on disk beside the shards: index, manifest, and the marks of each record and shard."""
    return manifest.index.size + manifest.records + (len(manifest.shards) + 16) * 4096


class RemoteShards:
    """The record fetcher of a remote dataset. `begin` and `prefetch` return at once."""

    def __init__(self, bucket: Bucket, folder: Path, manifest: Manifest, columns: Columns, used: int) -> None:
        self.bucket, self.folder, self.manifest, self.columns = bucket, folder, manifest, columns
        self._names = _names(folder, manifest)  # names of the shards in the store
        self.requests = 0  # ranged reads so far, and below the bytes they brought; for tests and reports
        self.fetched_bytes = 0
        allowance = max(0, reserved_bytes(folder) - overhead(manifest))
        self.allowance = None if allowance >= sum(shard.size for shard in manifest.shards) else allowance
        self._cache = ShardCache(folder, manifest, columns, self.allowance)
        self._used = used
        self._start_threads()

    def __del__(self) -> None:
        if hasattr(self, "_ahead"):
            for pool in (self._planning, self._pool, self._ahead):
                pool.shutdown(wait=False, cancel_futures=True)
            self._cache.close()
            os.close(self._used)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.bucket.url, self.folder)  # in a spawned process: same cache, own threads

    def begin(self, records: Records) -> Fetch:
        """Start to fetch those of `records` that are not cached, in threads. `wait` of the result waits for them."""
        self._after_fork()
        # A batch is a few dozen requests. To hand them out takes 0.3 ms of Python, which the thread that trains need not spend.
        if self.allowance is None:
            cancelled = threading.Event()
            return Fetch(self._planning.submit(self._begin_caching, records, cancelled), None, cancelled.set)
        return Fetch(self._planning.submit(self._begin_reading, records), records, self._cache.forget_announced)

    def _begin_caching(self, records: Records, cancelled: threading.Event) -> list[Future[None]]:
        bundles = self._bundles(self._cache.missing(records))
        return [self._pool.submit(self._ensure_cached, some, None, cancelled) for some in bundles]

    def _begin_reading(self, records: Records) -> list[Future[dict[int, bytes]]]:
        # Not in bundles: with a small cache a few records of a bundle often wait for a large request for announced records.
        groups = self._groups(np.unique(records).tolist(), _COALESCE)
        return [self._pool.submit(self._read_records, group) for group in groups]

    def prefetch(self, records: Records) -> None:
        """Start fetching `records` into the cache in large pieces, as far as there is room beside protected records."""
        self._after_fork()
        unread = self._cache.announce(records)
        wanted = self._cache.missing(records)
        if self.allowance is not None:
            # At the border of two epochs a record can be wanted in both. The epoch that ends will fetch it in a moment, and
            # must not wait for a large request for the other.
            wanted = np.setdiff1d(wanted, unread)
        for group in self._groups(wanted.tolist(), _COALESCE_AHEAD):
            self._ahead.submit(self._cache_ahead, group)

    def read(self, record: int, offset: int, size: int) -> bytes | None:
        """Return bytes of the record's shard (image, JSON or sidecar file), or None if the cache's file holds them."""
        self._after_fork()
        if self.allowance is None and offset + size <= self._end(record):
            self.begin(np.array([record])).wait()
            return None
        if offset == self.columns.offset[record] and size == self.columns.size[record]:
            return self._read_records([record])[record]
        return self.bucket.read_range(self._names[int(self.columns.shard[record])], offset, size)

    def _bundles(self, records: Records) -> Iterator[list[int]]:
        """Cut ascending `records` into bundles and yield them: few requests to one shard, for few bytes. One thread reads each.

        A thread for each request is slower: dozens of them wake within a millisecond and take Python's lock in turn.
        """
        bundle: list[int] = []
        groups = size = 0
        for group in self._groups(records.tolist(), _COALESCE):
            further = self._end(group[-1]) - int(self.columns.offset[group[0]])
            elsewhere = bool(bundle) and self.columns.shard[bundle[0]] != self.columns.shard[group[0]]
            if bundle and (elsewhere or groups == _TOGETHER or size + further > _COALESCE):
                yield bundle
                bundle, groups, size = [], 0, 0
            bundle += group
            groups += 1
            size += further
        if bundle:
            yield bundle

    def _groups(self, records: Iterable[int], coalesce: int) -> Iterator[list[int]]:
        """Cut ascending `records` into groups and yield them; one request reads each group, of at most `coalesce` bytes."""
        group: list[int] = []
        for record in records:
            if group and not self._follows(group, record, coalesce):
                yield group
                group = []
            group.append(record)
        if group:
            yield group

    def _follows(self, group: list[int], record: int, coalesce: int) -> bool:
        columns, last = self.columns, group[-1]
        near = int(columns.offset[record]) - self._end(last) <= _GAP
        short = self._end(record) - int(columns.offset[group[0]]) <= coalesce
        return bool(columns.shard[last] == columns.shard[record]) and near and short

    def _end(self, record: int) -> int:
        """Return the end of a record in its shard: of its JSON, which follows the image, if it has any."""
        columns = self.columns
        end = int(columns.offset[record] + columns.size[record])
        if columns.json_offset is not None and columns.json_size is not None and columns.json_size[record]:
            end = max(end, int(columns.json_offset[record] + columns.json_size[record]))
        return end

    def _cache_ahead(self, group: list[int]) -> None:
        """Fetch a group into the cache if there is room: without room its bytes would be fetched twice."""
        size = self._end(group[-1]) - int(self.columns.offset[group[0]])
        with self._cache.reserve(int(self.columns.shard[group[0]]), size) as reservation:
            if reservation:
                self._ensure_cached(group, reservation)

    def _ensure_cached(
        self, records: list[int], reservation: Reservation | None = None, cancelled: threading.Event | None = None
    ) -> None:
        """Fetch those of `records` that are not cached. They lie in one shard and are ascending."""

        def missing(some: list[int]) -> list[int]:
            return [record for record in some if not self._cache.holds(record)]

        self._fetch_missing(records, missing, reservation, cancelled)

    def _read_records(self, records: list[int]) -> dict[int, bytes]:
        """Return the images of ascending records of one shard from the cache or the store."""
        found: dict[int, bytes] = {}

        def missing(some: list[int]) -> list[int]:
            found.update({record: data for record in some if (data := self._cache.read(record)) is not None})
            return [record for record in some if record not in found]

        found.update(self._fetch_missing(records, missing))
        self._cache.mark_read(records)
        return found

    def _fetch_missing(
        self,
        records: list[int],
        missing: Callable[[list[int]], list[int]],
        reservation: Reservation | None = None,
        cancelled: threading.Event | None = None,
    ) -> dict[int, bytes]:
        """Fetch the records that are not cached. Return their images, or nothing where the cache has room for all.

        Records that another thread or process is fetching come last, so that the others need not wait for them.

        records: of one shard, ascending. missing: takes some of them and returns those that are not cached.
        """
        groups = list(self._groups(missing(records), _COALESCE_AHEAD))
        if not groups:
            return {}
        path = self.folder / ".claims"
        with claim_free(path, [(group[0], group[-1]) for group in groups]) as free:
            ours = [record for group, own in zip(groups, free, strict=True) if own for record in group]
            found = self._fetch(ours, reservation, cancelled)
        deadline_s = time.monotonic() + PATIENCE_S
        for group, own in zip(groups, free, strict=True):
            if not own:
                with claim(path, group[0], group[-1], deadline_s):
                    found |= self._fetch(missing(group), reservation, cancelled)
        return found

    def _fetch(
        self, wanted: list[int], reservation: Reservation | None = None, cancelled: threading.Event | None = None
    ) -> dict[int, bytes]:
        """Fetch ascending records of one shard from the store, and cache them if there is room.

        Return their images, or nothing where the cache has room for all. Once `cancelled` is set nothing is fetched.
        """
        if not wanted:
            return {}
        columns, shard = self.columns, int(self.columns.shard[wanted[0]])
        groups = list(self._groups(wanted, _COALESCE_AHEAD))
        begins = [int(columns.offset[group[0]]) for group in groups]
        ranges = [(begin, self._end(group[-1]) - begin) for begin, group in zip(begins, groups, strict=True)]

        def image(place: int, data: bytes, record: int) -> bytes:
            begin = int(columns.offset[record]) - begins[place]
            return data[begin : begin + int(columns.size[record])]

        def intact(place: int, data: bytes) -> bool:
            return all(self._cache.intact(image(place, data, record), record) for record in groups[place])

        with self._requesting(min(len(ranges), _AT_ONCE)):
            if cancelled is not None and cancelled.is_set():
                return {}
            self.requests += len(ranges)
            answers = self.bucket.read_ranges(self._names[shard], ranges, intact)
        self.fetched_bytes += sum(map(len, answers))
        found: dict[int, bytes] = {}
        for place, (group, data) in enumerate(zip(groups, answers, strict=True)):
            self._cache.store(shard, begins[place], data, group, reservation)
            if self.allowance is not None:
                found |= {record: image(place, data, record) for record in group}
        return found

    @contextmanager
    def _requesting(self, count: int) -> Iterator[None]:
        """Wait until `count` more requests may run, and count them while the block runs."""
        with self._turn:  # one thread at a time collects its share, so that no two hold a part and wait for the rest
            for _ in range(count):
                self._free.acquire()
        try:
            yield
        finally:
            self._free.release(count)

    def _after_fork(self) -> None:
        if os.getpid() != self._process:  # a forked child has none of the threads
            self._start_threads()
            self._cache.after_fork()

    def _start_threads(self) -> None:
        self._process = os.getpid()
        self._planning, self._pool, self._ahead = _pool(1), _pool(_CONNECTIONS), _pool(_AHEAD_CONNECTIONS)
        self._turn, self._free = threading.Lock(), threading.Semaphore(_CONNECTIONS + _AHEAD_CONNECTIONS)


def _names(folder: Path, manifest: Manifest) -> Sequence[str]:
    """Return the names of the shards in the store; those of containers differ from the names in the cache."""
    try:
        names: list[str] = json.loads((folder / "names.json").read_bytes())
    except FileNotFoundError:
        return [shard.file for shard in manifest.shards]
    return names


def _reopened(url: str, folder: Path) -> RemoteShards:
    manifest = read_manifest(folder)
    columns = read_columns(folder / manifest.index.file)
    return RemoteShards(open_bucket(url), folder, manifest, columns, mark_in_use(folder))


class Fetch:
    """Records being fetched. `parts`: the requests, once they are handed out.

    `records`: those whose bytes `wait` returns; None: they go to the cache's files. `on_cancel`: called by `cancel`.
    """

    def __init__(
        self,
        parts: Future[list[Future[None]]] | Future[list[Future[dict[int, bytes]]]],
        records: Records | None,
        on_cancel: Callable[[], None],
    ) -> None:
        self._parts, self._records, self._on_cancel = parts, records, on_cancel

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        if not self._parts.done():
            return False
        return self._parts.exception() is not None or all(part.done() for part in self._parts.result())

    def wait(self) -> list[bytes] | None:
        """Wait for all records. Raise SourceError if one could not be fetched."""
        found: dict[int, bytes] = {}
        for part in self._parts.result():
            found.update(part.result() or {})
        return None if self._records is None else [found[record] for record in self._records.tolist()]

    def cancel(self) -> None:
        """Cancel the requests that have not begun."""
        self._on_cancel()
        if self._parts.cancel() or self._parts.exception() is not None:
            return
        for part in self._parts.result():
            part.cancel()


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="headrace-fetch", initializer=yield_to_running_threads)
