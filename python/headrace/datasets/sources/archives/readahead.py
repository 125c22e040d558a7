"""Readahead of shards on local disk: announce the next records to the kernel, which reads them before a thread needs them.

Without it a cold disk gets only as many requests at once as there are threads, and each random read also loads the bytes that
follow (128 KiB of readahead by default). For a record in the page cache it costs a system call of about a microsecond.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.table import RecordTable
from headrace.system.files import open_files
from headrace.system.files.regular_file import open_regular

__all__ = ["Readahead", "readahead"]


class Readahead:
    """Announces records to the kernel, which reads them into the page cache (posix_fadvise(2), WILLNEED)."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self._files: dict[int, int] = {}  # shard -> descriptor

    def __del__(self) -> None:
        for descriptor in self._files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def begin(self, records: npt.NDArray[np.int64]) -> _Announced:
        """Ask the kernel to read records into the page cache, and return at once. `wait` of the result does nothing."""
        table = self._table
        with contextlib.suppress(OSError):  # reading the record reports what is wrong with its file
            for shard, offset, size in zip(
                *(column[records].tolist() for column in (table.file, table.offset, table.size)), strict=True
            ):
                if shard not in self._files:
                    self._files[shard] = open_regular(table.files[shard])
                os.posix_fadvise(self._files[shard], offset, size, os.POSIX_FADV_WILLNEED)
        return _ANNOUNCED

    def prefetch(self, records: npt.NDArray[np.int64]) -> None:
        """Do nothing: the kernel would drop pages that are announced too early."""

    def read(self, record: int, offset: int, size: int) -> bytes | None:
        """Return None: all bytes are in the local file."""
        return None


class _Announced:
    """Records on local disk, which need no fetching."""

    def done(self) -> bool:
        return True

    def wait(self) -> list[bytes] | None:
        return None

    def cancel(self) -> None:
        pass


_ANNOUNCED = _Announced()


def readahead(table: RecordTable) -> Readahead | None:
    """Return the readahead of a table of shards; None for image files, which are read whole, or if descriptors are scarce."""
    if not len(table) or bool((table.size < 0).any()) or not open_files.allow(2 * len(table.files)):
        return None
    return Readahead(table)
