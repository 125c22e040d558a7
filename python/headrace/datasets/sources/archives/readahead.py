"""Readahead of shards on local disk: announce the next records to the kernel, which reads them before a thread needs them.

Without it a cold disk gets only as many requests at once as there are threads, and each random read also loads the bytes that
follow (128 KiB of readahead by default). For a record in the page cache it costs a system call of about a microsecond.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace._native import Table

__all__ = ["Readahead"]


class Readahead:
    """Announces records of shards to the kernel, which reads them into the page cache (posix_fadvise(2), WILLNEED)."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def begin(self, records: npt.NDArray[np.int64]) -> _Announced:
        """Ask the kernel to read records into the page cache, and return at once. `wait` of the result does nothing."""
        self._table.announce(np.ascontiguousarray(records, dtype=np.int64))
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
