"""A pass over the data: it owns the batches of one epoch that are ahead of the consumer.

All work ahead is submitted from the consumer's own `next()`, or where the consumer says so (`top_up`, `handed_out`). There are
no Python threads: nothing is submitted while nobody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.table import PendingRecords, RecordFetcher
from headrace.datasets.sources.archives.readahead import Readahead
from headrace.loading.feeding.gpu_decode import GpuPart
from headrace.loading.statistics.stats import FeedStats, Stopwatch

__all__ = ["BatchMaker", "FeedPass", "FetchedBatches", "FilledBatch", "IndexBatch"]


@dataclass(frozen=True, slots=True)
class IndexBatch:
    """The records of a batch, and the keys of their random draws (`draw_keys`; with `parts`, records count over all parts)."""

    records: npt.NDArray[np.int64]  # [n] row of each record in the dataset's table
    draws: npt.NDArray[np.uint64]  # [n] key of each record's random draws
    data: list[bytes] | None = None  # [n] the encoded images, if they are not read from the table's files
    labels: npt.NDArray[np.int64] | None = None  # [n] for a stream, whose records are in no table; else None
    keys: list[str] | None = None  # [n] for a stream; else None
    stand_ins: npt.NDArray[np.int64] | None = None  # rows that may take the place of a bad record; None: all

    def part(self, first: int, end: int) -> IndexBatch:
        """Return the records from slot `first` up to `end`."""
        own = slice(first, end)
        columns: tuple[Any, ...] = (self.data, self.labels, self.keys)
        data, labels, keys = (None if column is None else column[own] for column in columns)
        return replace(self, records=self.records[own], draws=self.draws[own], data=data, labels=labels, keys=keys)


@dataclass(frozen=True, slots=True)
class FilledBatch:
    """A decoded batch. With on_error="skip", `records` and `labels` are those of the substitutes of bad records."""

    pixels: npt.NDArray[Any]  # the images, of shape Pipeline.shape(n) and dtype NUMPY_DTYPES[pipeline.dtype]
    records: npt.NDArray[np.int64]  # [n] row of each record in the dataset's table
    labels: npt.NDArray[np.int64] | None  # [n] for a stream; else None
    draws: npt.NDArray[np.uint64]  # [n] key of each record's random draws
    owner: Any  # the tensor that owns the memory, or None
    masks: npt.NDArray[np.uint8] | None = None  # [n, H, W] if the feed has masks
    on_gpu: GpuPart | None = None  # the images that are not in `pixels`, because the GPU decoded them


class FetchedBatches:
    """An iterator over batches that fetches the records of a remote dataset ahead, and yields a batch when they are local."""

    def __init__(self, batches: Iterable[IndexBatch], fetcher: RecordFetcher | None, ahead: int) -> None:
        self._batches = iter(batches)
        self._is_next_here = getattr(batches, "is_next_here", None)  # a stream's next batch may still be read
        self._fetcher = fetcher
        self._ahead = ahead
        self._allowed = 1  # batches in flight; the first batch has the network for itself
        self._in_flight: deque[tuple[IndexBatch, PendingRecords]] = deque()

    def __iter__(self) -> Iterator[IndexBatch]:
        return self

    def __next__(self) -> IndexBatch:
        if self._fetcher is None:
            return next(self._batches)
        self._fetch(self._fetcher)
        if not self._in_flight:
            raise StopIteration
        batch, pending = self._in_flight.popleft()
        data = pending.wait()
        self._allowed = self._ahead
        return batch if data is None else replace(batch, data=data)

    @property
    def never_waits(self) -> bool:
        """Whether all batches come without a wait: their records are in local files, and in a table."""
        return self._is_next_here is None and (self._fetcher is None or isinstance(self._fetcher, Readahead))

    def is_next_here(self) -> bool:
        """Return whether the records of the next batch are here already, so that `next()` does not wait."""
        if self._fetcher is None:
            return self._is_next_here is None or self._is_next_here()
        self._fetch(self._fetcher)
        return not self._in_flight or self._in_flight[0][1].done()

    def cancel(self) -> None:
        """Cancel the requests for records that are still on their way."""
        for _, pending in self._in_flight:
            pending.cancel()

    def _fetch(self, fetcher: RecordFetcher) -> None:
        while len(self._in_flight) < self._allowed and (batch := next(self._batches, None)) is not None:
            self._in_flight.append((batch, fetcher.begin(batch.records)))


class PendingBatch(Protocol):
    """The interface of a batch that is being made."""

    def is_done(self) -> bool:
        """Return whether the batch is complete, without waiting."""

    def wait(self) -> None:
        """Wait until the batch is complete."""

    def cancel(self) -> None:
        """Cancel the images of this batch that no thread has begun. Wait for those that native threads have begun."""


class BatchMaker(Protocol):
    """The interface of the object that makes the batches of a pass."""

    def submit(self, batch: IndexBatch, /) -> Any:
        """Start making a batch. Return a `PendingBatch`."""

    def finish(self, pending: Any, /) -> tuple[FilledBatch, ...]:
        """Return a complete batch, one for each view. Raises DecodeError for a bad record, unless on_error is "skip"."""

    def batch_given(self) -> None:
        """Note the time at which the consumer gets a batch."""

    def batch_asked(self) -> None:
        """Note the time at which the consumer asks for the next batch."""

    def end(self) -> None:
        """Note that the pass has ended."""


class FeedPass:
    """One pass over the data, up to `prefetch` batches ahead of the consumer. epoch: number of the pass.

    for batches in feed_pass.run():
        ...  # give them to the consumer
        feed_pass.handed_out()
    """

    def __init__(self, maker: BatchMaker, source: FetchedBatches, epoch: int, prefetch: int, stats: FeedStats) -> None:
        self.epoch = epoch
        self._maker, self._source, self._prefetch, self._stats = maker, source, prefetch, stats
        self._ahead: deque[PendingBatch] = deque()

    def top_up(self) -> None:
        """Submit the next batches now. Does not wait for records that are being fetched."""
        try:
            if self._source.is_next_here():
                self._refill(self._prefetch)
        except BaseException:
            self.cancel()
            raise

    def run(self) -> Generator[tuple[FilledBatch, ...], None, None]:
        """Yield the filled batches in order, those of all views at a time. Closing the generator cancels the pass.

        Raises DecodeError with the record's key and the reason for a bad record, unless on_error is "skip".
        """
        ahead = self._ahead
        try:
            while True:
                if not (ahead and ahead[0].is_done() and self._source.never_waits):  # else `handed_out` submits
                    self._refill(self._prefetch)
                    if not ahead:
                        return
                    with Stopwatch(self._stats, "wait_ns"):
                        ahead[0].wait()
                yield self._maker.finish(ahead.popleft())
                self._maker.batch_asked()
        finally:
            self.cancel()
            self._maker.end()

    def handed_out(self) -> None:
        """Note that a batch is complete on its device and is handed to the consumer; submit further batches.

        If it was ready when the consumer asked, the next batch is submitted only now: threads that wake up while a batch is
        handed out take the consumer's core, on some kernels for a whole tick (4 ms).
        """
        if self._source.never_waits:
            self._refill(self._prefetch - 1)
        self._maker.batch_given()

    def cancel(self) -> None:
        """Cancel the requests for records, and the batches of this pass that no thread has begun."""
        self._source.cancel()
        for pending in self._ahead:
            pending.cancel()

    def _refill(self, count: int) -> None:
        """Submit batches until `count` are ahead."""
        ahead, source = self._ahead, self._source
        # Wait for the records of the next batch only if no other batch is being decoded.
        while len(ahead) < count and (not ahead or source.is_next_here()):
            if (batch := next(source, None)) is None:
                return
            ahead.append(self._maker.submit(batch))
