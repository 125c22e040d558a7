"""The fetcher of a part: each of its rows is a row of a dataset that it was made of, whose own fetcher knows that row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.table import PendingRecords, RecordFetcher, RecordTable

__all__ = ["PartFetcher", "joined_fetcher", "selected_fetcher"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PartFetcher:
    """Fetches the records of a part from the datasets that it was made of."""

    table: RecordTable  # of the part
    sources: tuple[RecordFetcher | None, ...]  # None: the records of this dataset are in local files
    source: npt.NDArray[np.int32]  # [n] index into `sources`
    row: Rows  # [n] row in the dataset of that source

    def begin(self, records: Rows) -> PendingRecords:
        """Start fetching records, each from its source, and return at once."""
        source = self.source[records]
        pending = []
        for number, fetcher in enumerate(self.sources):
            places = np.flatnonzero(source == number)
            if fetcher is not None and len(places):
                pending.append((places, fetcher.begin(self.row[records[places]])))
        return _PendingPart(self.table, records, pending)

    def prefetch(self, records: Rows) -> None:
        """Announce records that will be read soon to their sources."""
        source = self.source[records]
        for number, fetcher in enumerate(self.sources):
            if fetcher is not None and len(own := self.row[records[source == number]]):
                fetcher.prefetch(own)

    def read(self, record: int, offset: int, size: int) -> bytes | None:
        """Return bytes of a record's file, or None if the table's own file holds them."""
        fetcher = self.sources[self.source[record]]
        return None if fetcher is None else fetcher.read(int(self.row[record]), offset, size)


@dataclass(frozen=True, slots=True, eq=False)
class _PendingPart:
    """Records that several sources are fetching."""

    table: RecordTable
    records: Rows
    pending: Sequence[tuple[npt.NDArray[np.int64], PendingRecords]]  # places in `records`, and what fetches these

    def done(self) -> bool:
        return all(pending.done() for _, pending in self.pending)

    def wait(self) -> list[bytes] | None:
        """Return the bytes of all records if one source returns bytes; None if the table's files now hold all."""
        found: dict[int, bytes] = {}
        for places, pending in self.pending:
            data = pending.wait()
            if data is not None:
                found.update(zip(places.tolist(), data, strict=True))
        return [found[at] if at in found else self._read(at) for at in range(len(self.records))] if found else None

    def cancel(self) -> None:
        for _, pending in self.pending:
            pending.cancel()

    def _read(self, at: int) -> bytes:
        record = int(self.records[at])
        return self.table.read(record, int(self.table.offset[record]), int(self.table.size[record]))


def selected_fetcher(fetcher: RecordFetcher | None, rows: Rows, table: RecordTable) -> RecordFetcher | None:
    """Return the fetcher of the records at `rows`, whose table is `table`; None if all are in local files."""
    if isinstance(fetcher, PartFetcher):
        return PartFetcher(table, fetcher.sources, fetcher.source[rows], fetcher.row[rows])
    return None if fetcher is None else PartFetcher(table, (fetcher,), np.zeros(len(rows), dtype=np.int32), rows)


def joined_fetcher(parts: Sequence[tuple[RecordFetcher | None, int]], table: RecordTable) -> RecordFetcher | None:
    """Return the fetcher of joined datasets, each given by (fetcher, number of records); None if all are in local files."""
    if all(fetcher is None for fetcher, _ in parts):
        return None
    counts = [count for _, count in parts]
    source = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    row = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    return PartFetcher(table, tuple(fetcher for fetcher, _ in parts), source, row)
