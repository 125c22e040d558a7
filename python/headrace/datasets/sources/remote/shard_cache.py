"""The cached records of a remote dataset: sparse files of the shards' sizes, shared by the processes of a machine.

With room for the whole dataset nothing is evicted, and native code reads the files as if they were complete. With less room
(`allowance`), the least recently used shards are emptied when others need space, except shards with announced records that
were not read yet. Every read then checks the record's CRC-32C, so that emptied bytes are never taken for data.
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
from headrace.system.files.atomic_write import atomic_write

__all__ = ["WRITING", "Reservation", "ShardCache", "boot", "no_room"]

WRITING = ".writing"  # locked by the process that changes the shards
_ABSENT, _PRESENT, _UNCHECKED = 0, 1, 2  # unchecked: written before the machine was last started
_PAGE = 4096
_SLACK = 8 * _PAGE  # bytes beyond the data of one write: its first and last page, and the file system's metadata


@dataclass(slots=True)
class Reservation:
    """Room in the cache that is reserved and not used yet."""

    size_bytes: int


class ShardCache:
    """The cached records of the dataset in `folder`. `allowance`: bytes they may take; None: all fit."""

    def __init__(self, folder: Path, manifest: Manifest, columns: Columns, allowance: int | None) -> None:
        self.folder, self.columns, self.allowance = folder, columns, allowance
        self._present: npt.NDArray[np.uint8] = _shared(folder / "present", np.dtype(np.uint8))
        self._facts: npt.NDArray[np.int64] = _shared(folder / "use", np.dtype(np.int64)).reshape(2, -1)
        self._disk_bytes, self._last_use = self._facts[0], self._facts[1]  # [shards]; last use in ns since 1970
        self._sizes = [shard.size for shard in manifest.shards]
        self._files = [os.open(folder / shard.file, os.O_RDWR) for shard in manifest.shards]
        self._wanted = np.zeros(len(columns), dtype=bool)  # [records] announced and not read since
        self._announced = np.empty(0, dtype=np.int64)  # records of the last announcement
        self._reserved_bytes = 0  # room for records that are being fetched
        self._lock, self._lock_file = self._locks()
        self._distrust_after_restart()

    def _locks(self) -> tuple[threading.Lock, int]:
        """Return the lock for this process's threads, and the lock file for processes (one for all threads of a process)."""
        return threading.Lock(), os.open(self.folder / WRITING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def after_fork(self) -> None:
        """Make new locks in a forked child: a thread of the parent may hold the inherited ones for ever."""
        os.close(self._lock_file)
        self._lock, self._lock_file = self._locks()

    def close(self) -> None:
        """Close the files. The object cannot be used afterwards."""
        for descriptor in (*self._files, self._lock_file):
            os.close(descriptor)
        self._files = []

    def missing(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of `records` that are not known to be cached, ascending."""
        return np.unique(records[self._present[records] != _PRESENT])

    def holds(self, record: int) -> bool:
        """Return whether the record is cached. With an allowance it may be evicted at any time."""
        if self._present[record] == _UNCHECKED and self.read(record) is not None:
            self._present[record] = _PRESENT
        return bool(self._present[record] == _PRESENT)

    def announce(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Protect the cached bytes of `records` from eviction until they are read.

        Return the unread records of the announcement before this one. They stay protected; those of older announcements do not.
        """
        unread = self._announced[self._wanted[self._announced]]
        self._announced = records
        self._wanted[:] = False
        self._wanted[unread] = self._wanted[records] = True
        return unread

    def forget_announced(self) -> None:
        """Allow all records to be evicted, announced ones too: the epoch that would have read them ended early."""
        self._announced = np.empty(0, dtype=np.int64)
        self._wanted[:] = False

    def mark_read(self, records: list[int]) -> None:
        """Allow records that were read to be evicted: an epoch reads each record once."""
        self._wanted[records] = False

    @contextlib.contextmanager
    def reserve(self, shard: int, size: int) -> Iterator[Reservation | None]:
        """Reserve room for `size` bytes of a shard while the block runs, for `store`; None: nothing may be evicted for it."""
        reservation = Reservation(size + 2 * _SLACK)
        with self._alone():
            if not self._has_room(shard, reservation.size_bytes, evict=True):
                reservation.size_bytes = 0
            self._reserved_bytes += reservation.size_bytes
        try:
            yield reservation if reservation.size_bytes else None
        finally:
            with self._alone():
                self._reserved_bytes -= reservation.size_bytes

    def read(self, record: int) -> bytes | None:
        """Return the record's image after a check of its CRC-32C, or None if it is not cached."""
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
        """Return whether `data` is the record's image unchanged, by the CRC-32C in the index."""
        return crc32c(data) == int(self.columns.crc32c[record])

    def store(self, shard: int, begin: int, data: bytes, records: list[int], reservation: Reservation | None = None) -> bool:
        """Write `data`, which holds `records`, at byte `begin` of a shard; return False if there is no room.

        The bytes written are taken off the `reservation`. Raises SourceError if the disk is full.
        """
        with self._alone():
            own = reservation or Reservation(0)
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
            used = min(own.size_bytes, len(data))  # these bytes are on the disk now and must not count twice
            own.size_bytes -= used
            self._reserved_bytes -= used
        return True

    def disk_bytes(self) -> int:
        """Return the bytes that the shards take on disk."""
        return int(self._disk_bytes.sum())

    def _has_room(self, shard: int, size: int, *, evict: bool) -> bool:
        if self.allowance is None:
            return True
        while self.disk_bytes() + self._reserved_bytes + size > self.allowance:
            others = self._evictable(shard) if evict else np.empty(0, dtype=np.int64)
            if not len(others):
                return False
            self._empty(int(others[np.argmin(self._last_use[others])]))
        return True

    def _evictable(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the shards with bytes on disk except `shard` and those with a protected record."""
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

    def _distrust_after_restart(self) -> None:
        """Mark records as unchecked after a restart of the machine: their bytes may never have reached the disk."""
        path = self.folder / "boot"
        if path.read_text() != boot():
            self._present[self._present == _PRESENT] = _UNCHECKED
            for shard in range(len(self._files)):
                self._measure(shard)
            atomic_write(path, boot())


def _shared(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype)


def no_room(folder: Path, why: str | None) -> SourceError:
    """Return the error for a failed write to the cache."""
    return SourceError(
        f"cannot write to the cache {folder}: {why}",
        hint="free some space, or set HEADRACE_CACHE to another disk, or HEADRACE_CACHE_SIZE to the free space",
    )


def boot() -> str:
    """Return the id of the machine's current boot (Linux, proc(5))."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
