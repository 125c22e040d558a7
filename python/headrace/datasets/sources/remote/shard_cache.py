"""Records of a remote dataset on local disk: sparse files of the shards' sizes, shared by the processes of a machine.

With room for the whole dataset nothing is ever given up, and native code reads the files as if they were whole. With less
room (`allowance`), shards that were not used for longest are emptied when others need the space, but none that holds a record
that is wanted soon and was not read yet; whoever reads then checks the record's CRC-32C, so that bytes that were emptied
meanwhile count as absent and are never taken for data.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._native import crc32c
from headrace.datasets.shards.index import Columns
from headrace.datasets.shards.manifest import Manifest
from headrace.errors import SourceError
from headrace.system.atomic_write import atomic_write

__all__ = ["WRITING", "Reservation", "ShardCache", "boot", "no_room"]

WRITING = ".writing"  # the lock of whoever changes the shards
_ABSENT, _PRESENT, _CLAIMED = 0, 1, 2  # claimed: written before the machine was last started, so checked before use
_PAGE = 4096
_SLACK = 8 * _PAGE  # of one write: its first and last page, and what the file system needs to note where they are


@dataclass(slots=True)
class Reservation:
    """Room in the cache that was given and not used yet."""

    size_bytes: int


class ShardCache:
    """What is on local disk of the dataset in `folder`. `allowance`: bytes it may take, or None for all."""

    def __init__(self, folder: Path, manifest: Manifest, columns: Columns, allowance: int | None) -> None:
        self.folder, self.columns, self.allowance = folder, columns, allowance
        self._present: npt.NDArray[np.uint8] = _shared(folder / "present", np.dtype(np.uint8))
        self._facts: npt.NDArray[np.int64] = _shared(folder / "use", np.dtype(np.int64)).reshape(2, -1)
        self._disk_bytes, self._last_use = self._facts[0], self._facts[1]  # [shards]; last use in ns since the epoch
        self._sizes = [shard.size for shard in manifest.shards]
        self._files = [os.open(folder / shard.file, os.O_RDWR) for shard in manifest.shards]
        self._wanted = np.zeros(len(columns), dtype=bool)  # announced and not read since
        self._told = np.empty(0, dtype=np.int64)  # what was announced last
        self._promised_bytes = 0  # room for what is being fetched
        self._lock, self._lock_file = self._locks()
        self._claim_after_restart()

    def _locks(self) -> tuple[threading.Lock, int]:
        """One for this process's threads, and one for all processes, which is one for all threads of a process."""
        return threading.Lock(), os.open(self.folder / WRITING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def after_fork(self) -> None:
        """In the child: its own locks; those of the parent may be held by a thread that is not here, or shared with it."""
        os.close(self._lock_file)
        self._lock, self._lock_file = self._locks()

    def close(self) -> None:
        """Closes the files. The object is of no use afterwards."""
        for descriptor in (*self._files, self._lock_file):
            os.close(descriptor)
        self._files = []

    def missing(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of `records` that are not known to be here, ascending."""
        return np.unique(records[self._present[records] != _PRESENT])

    def has(self, record: int) -> bool:
        """Whether the record is here. Only without an allowance is that sure to last."""
        if self._present[record] == _CLAIMED and self.read(record) is not None:
            self._present[record] = _PRESENT
        return bool(self._present[record] == _PRESENT)

    def want(self, records: npt.NDArray[np.int64]) -> None:
        """Says that `records` are wanted soon, after those that were announced before; what was before these is past."""
        unread = self._told[self._wanted[self._told]]
        self._told = records
        self._wanted[:] = False
        self._wanted[unread] = self._wanted[records] = True

    def used(self, records: list[int]) -> None:
        """Says that these records were read: an epoch wants each of them once."""
        self._wanted[records] = False

    @contextlib.contextmanager
    def promised(self, shard: int, size: int) -> Iterator[Reservation | None]:
        """Room for `size` bytes of a shard while the block runs, for `keep`; None: there is none that may be taken."""
        promise = Reservation(size + 2 * _SLACK)
        with self._alone():
            if not self._has_room(shard, promise.size_bytes, evict=True):
                promise.size_bytes = 0
            self._promised_bytes += promise.size_bytes
        try:
            yield promise if promise.size_bytes else None
        finally:
            with self._alone():
                self._promised_bytes -= promise.size_bytes

    def read(self, record: int) -> bytes | None:
        """The record's image, checked, or None when it is not here."""
        if self._present[record] == _ABSENT:
            return None
        columns = self.columns
        shard = int(columns.shard[record])
        data = os.pread(self._files[shard], int(columns.size[record]), int(columns.offset[record]))
        if not self.intact(data, record):
            return None
        self._last_use[shard] = time.time_ns()
        return data

    def intact(self, data: bytes, record: int) -> bool:
        """Whether `data` is the record's image."""
        return crc32c(data) == int(self.columns.crc32c[record])

    def keep(self, shard: int, begin: int, data: bytes, records: list[int], promise: Reservation | None = None) -> bool:
        """Writes `data` at byte `begin` of a shard: it holds `records`. False: there is no room.

        What is written is taken off the `promise`. Raises SourceError when the disk is full.
        """
        with self._alone():
            own = promise or Reservation(0)
            if not self._has_room(shard, len(data) + _SLACK - own.size_bytes, evict=False):
                return False
            try:
                written = os.pwrite(self._files[shard], data, begin)
            except OSError as error:
                raise no_room(self.folder, error.strerror) from error
            if written != len(data):
                raise no_room(self.folder, "No space left on device")
            self._present[records] = _PRESENT
            self._last_use[shard] = time.time_ns()
            self._measure(shard)
            used = min(own.size_bytes, len(data))  # it is on the disk now, and must not count twice
            own.size_bytes -= used
            self._promised_bytes -= used
        return True

    def disk_bytes(self) -> int:
        """What the shards take on disk."""
        return int(self._disk_bytes.sum())

    def _has_room(self, shard: int, size: int, *, evict: bool) -> bool:
        if self.allowance is None:
            return True
        while self.disk_bytes() + self._promised_bytes + size > self.allowance:
            others = self._expendable(shard) if evict else np.empty(0, dtype=np.int64)
            if not len(others):
                return False
            self._empty(int(others[np.argmin(self._last_use[others])]))
        return True

    def _expendable(self, shard: int) -> npt.NDArray[np.int64]:
        """Shards with something on disk, but for `shard` and those that hold a record that is wanted soon."""
        there = self._disk_bytes > 0
        there[self.columns.shard[self._wanted & (self._present != _ABSENT)]] = False
        there[shard] = False
        return np.flatnonzero(there)

    def _empty(self, shard: int) -> None:
        rows = slice(*np.searchsorted(self.columns.shard, [shard, shard + 1]).tolist())
        self._present[rows] = _ABSENT
        os.ftruncate(self._files[shard], 0)
        os.ftruncate(self._files[shard], self._sizes[shard])
        self._measure(shard)

    def _measure(self, shard: int) -> None:
        self._disk_bytes[shard] = os.fstat(self._files[shard]).st_blocks * 512

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _claim_after_restart(self) -> None:
        """After a restart of the machine, what was marked may never have reached the disk."""
        path = self.folder / "boot"
        if path.read_text() != boot():
            self._present[self._present == _PRESENT] = _CLAIMED
            for shard in range(len(self._files)):
                self._measure(shard)
            atomic_write(path, boot())


def _shared(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype)


def no_room(folder: Path, why: str | None) -> SourceError:
    """The error that says why nothing can be written."""
    return SourceError(
        f"cannot write to the cache {folder}: {why}",
        hint="free some space, or set HEADRACE_CACHE to another disk, or HEADRACE_CACHE_SIZE to what there is",
    )


def boot() -> str:
    """Names the time since the machine was started (Linux, proc(5))."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
