"""Shards on local disk: the system is told which records come next, so that it reads them before a thread asks.

Without that, a cold disk serves as many requests at once as there are threads, and each random read drags in what lies behind
it (128 KiB of readahead by default). Records already in the page cache cost a system call of about a microsecond.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import numpy.typing as npt

from headrace.datasets.records import RecordTable
from headrace.system import open_files as descriptors

__all__ = ["Readahead", "readahead"]


class Readahead:
    """Announces records to the system (posix_fadvise(2), WILLNEED)."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self._files: dict[int, int] = {}  # shard -> descriptor

    def __del__(self) -> None:
        for descriptor in self._files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def begin(self, records: npt.NDArray[np.int64]) -> _Announced:
        """Announces records; there is nothing to wait for."""
        table = self._table
        with contextlib.suppress(OSError):  # whoever reads the record says what is wrong with its file
            for shard, offset, size in zip(
                *(column[records].tolist() for column in (table.file, table.offset, table.size)), strict=True
            ):
                if shard not in self._files:
                    self._files[shard] = os.open(table.files[shard], os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(self._files[shard], offset, size, os.POSIX_FADV_WILLNEED)
        return _ANNOUNCED

    def prefetch(self, records: npt.NDArray[np.int64]) -> None:
        """Nothing: pages announced too early would be thrown out again."""

    def read(self, record: int, offset: int, size: int) -> bytes | None:
        """Nothing is elsewhere: the file is read."""
        return None


class _Announced:
    """Records that are here already."""

    def done(self) -> bool:
        return True

    def wait(self) -> list[bytes] | None:
        return None

    def cancel(self) -> None:
        pass


_ANNOUNCED = _Announced()


def readahead(table: RecordTable) -> Readahead | None:
    """For a table of shards; None for image files, which are opened and read whole, and where descriptors are short."""
    if not len(table) or bool((table.size < 0).any()) or not descriptors.allow(2 * len(table.files)):
        return None
    return Readahead(table)
