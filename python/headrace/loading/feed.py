"""The feed: a stream of index batches becomes a stream of filled batches, in order, decoded ahead by native threads.

Loader drives it with its own order, `headrace run` with the script's sampler. All work ahead is submitted from the consumer's
own `next()`; there are no Python threads, so nothing runs when nobody asks and nothing survives `close()`.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace._native import Engine, Job, Program, Ring, Store, Table, status_names
from headrace.datasets.records import Dataset, PendingRecords, RecordFetcher, RecordTable
from headrace.datasets.sources.readahead import readahead
from headrace.errors import DecodeError, UsageError
from headrace.images.decode import UNSUPPORTED
from headrace.loading.byte_cache import Kept
from headrace.loading.jpeg_index_cache import index_file
from headrace.loading.order import hashed
from headrace.loading.stats import CacheStats, FeedStats, Stopwatch
from headrace.system import open_files as descriptors
from headrace.transforms.compile import NUMPY_DTYPES, Pipeline, encode

__all__ = ["Begun", "Feed", "Filled", "IndexBatch", "Masks", "OnError"]

OnError = Literal["raise", "skip"]
# Checkpoint indexes of JPEGs without restart markers: about 4 KB for a 470×400 photograph, made while decoding.
INDEX_BYTES = 1 << 30
_SUBSTITUTES = 100  # tries to find a good record in place of a bad one, before giving up
_REPAIR = "repair or remove it"
_REMEDIES = {UNSUPPORTED: "make it a JPEG (headrace pack --quality 95)"}  # nothing is wrong with it
_FETCHED_AHEAD = 3  # times `prefetch`: batches of a remote dataset whose records are on their way
_STATUS = status_names()


@dataclass(frozen=True, slots=True)
class IndexBatch:
    """Which records, and the key of each one's random draws (the record itself, unless a sampler repeats records)."""

    records: npt.NDArray[np.int64]  # [n]
    draws: npt.NDArray[np.uint64]  # [n]
    data: list[bytes] | None = None  # [n] the encoded images, where they are not read from the table's files
    labels: npt.NDArray[np.int64] | None = None  # [n] of a stream, whose records are in no table
    keys: list[str] | None = None  # [n] likewise


@dataclass(frozen=True, slots=True)
class Filled:
    """A finished batch. `records` are those in the batch: substitutes in place of bad records where they are skipped."""

    pixels: npt.NDArray[Any]  # Pipeline.shape(n), dtype NUMPY_DTYPES[pipeline.dtype]
    records: npt.NDArray[np.int64]  # [n]
    labels: npt.NDArray[np.int64] | None  # [n] where the batch brought them
    draws: npt.NDArray[np.uint64]  # [n] the keys of their random draws
    owner: Any  # what `allocate` gave beside the memory: a tensor over it, or None
    masks: npt.NDArray[np.uint8] | None = None  # [n, H, W] where the feed has masks


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks beside the images of a dataset."""

    table: RecordTable  # a row for each record of the dataset
    fill: int  # class of what comes from outside the image, 0 to 255


class Allocate(Protocol):
    """Gives memory for a batch of `size_bytes` bytes as a flat uint8 array, and an owner to hand on with the batch."""

    def __call__(self, size_bytes: int, /) -> tuple[npt.NDArray[np.uint8], Any]: ...


class Feed:
    """Decodes batches of `dataset` on `threads` native threads, up to `prefetch` batches ahead of the consumer."""

    def __init__(
        self,
        dataset: Dataset,
        pipeline: Pipeline,
        *,
        batch_size: int,
        threads: int,
        prefetch: int = 3,
        seed: int = 0,
        on_error: OnError = "raise",
        allocate: Allocate | None = None,
        index_bytes: int = INDEX_BYTES,
        cache: Kept | None = None,
        view_of: Feed | None = None,
        view: int = 0,
        masks: Masks | None = None,
    ) -> None:
        if threads < 1 or prefetch < 1:
            raise UsageError(f"threads and prefetch must be at least 1, not {threads} and {prefetch}")
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
        self.dataset, self.pipeline = dataset, pipeline
        self.threads, self.prefetch, self.seed, self.on_error = threads, prefetch, seed, on_error
        self.stats = FeedStats(threads=threads)
        table = dataset.table
        if len(table) and bool((table.size >= 0).any()):
            shards = len(table.files) + (0 if masks is None or bool((masks.table.size < 0).all()) else len(masks.table.files))
            descriptors.need(shards, dataset.root)
        # Of a local dataset the system is told what comes next, by the first view; a cache knows better what must be read.
        told = readahead(table) if view_of is None and cache is None else None
        self._fetcher: RecordFetcher | None = dataset.fetcher if dataset.fetcher is not None else told
        # A further view of the same records: its own pixels and draws, the other feed's threads and table.
        self._view_of, self._draw_seed = view_of, hashed(seed, view) if view else seed
        self._index_bytes, self._cache = index_bytes, cache
        if cache is not None and cache.used is not None:
            weakref.finalize(self, os.close, cache.used)
        self._made_table: Table | None = None if view_of is not None else self._make_table()
        self._masks = masks
        self._mask_table: Table | None = None
        self._store = pipeline.store()
        self._ring = Ring(batch_size * pipeline.image_bytes(), prefetch + 3)
        self._allocate = allocate  # not a bound method: a cycle would keep the threads until the collector runs
        self._engine: Engine | None = None
        _live.add(self)

    def begin(self, batches: Iterable[IndexBatch], epoch: int, views: Sequence[Feed] = ()) -> Begun:
        """A pass over the batches, for `run`; nothing is in work yet."""
        return Begun(_Resident(batches, self._fetcher, _FETCHED_AHEAD * self.prefetch), epoch, tuple(views))

    def start(self, begun: Begun) -> None:
        """Starts on the first batches of a pass whose `run` comes later; does not wait for records on their way."""
        try:
            if begun.source.is_next_here():
                self._refill(begun)
        except BaseException:
            begun.cancel()
            raise

    def run(self, begun: Begun) -> Generator[tuple[Filled, ...], None, None]:
        """Yields the batches of `begin`, filled, in order, each with those of further views. Abandoning it gives up what is in
        work.

        Raises DecodeError, with the record's key and the reason, for a bad record when on_error is "raise".
        """
        try:
            while True:
                self._refill(begun)
                if not begun.ahead:
                    return
                with Stopwatch(self.stats, "wait_ns"):
                    begun.ahead[0].job.wait()
                yield self._finish(begun.ahead.popleft(), begun.epoch)
        finally:
            begun.cancel()
            (self._view_of or self).flush()

    def _refill(self, begun: Begun) -> None:
        ahead, source = begun.ahead, begun.source
        # While one batch is in work, the next is not waited for: its records may still be on their way.
        while len(ahead) < self.prefetch and (not ahead or source.is_next_here()):
            if (batch := next(source, None)) is None:
                break
            rooms = tuple(feed._room(len(batch.records)) for feed in (self, *begun.views))
            ahead.append(_InWork(batch, rooms, self._fill(batch, rooms, begun.epoch)))

    def close(self) -> None:
        """Stops and joins the native threads. The feed may be used again: it starts new ones."""
        if self._engine is not None:
            self.stats.add_counters(self._engine.counters())
            self._engine.close()
            self._engine = None

    def counters(self) -> dict[str, int]:
        """Totals of the native stages so far (nanoseconds over all threads, images, bytes)."""
        return self.stats.counters(self._engine.counters() if self._engine else {})

    def indexes(self) -> tuple[int, int]:
        """Bytes of memory that checkpoint indexes use now, and how many records had one from an earlier run."""
        return self._table.index_bytes(), self._table.indexes_found()

    def cache_stats(self) -> CacheStats | None:
        """What the cache of encoded bytes did; None without one."""
        counts = self._table.cache_counts()
        return None if counts is None else CacheStats(*counts)

    def ring_batches(self) -> int:
        """Batches of memory made so far and not given back to the system."""
        return self._ring.counts()[0]

    def abandon(self) -> None:
        """In a forked child: forgets the threads, which exist in the parent only, and the table, whose locks they may hold."""
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        if self._made_table is not None:
            self._made_table.abandon()
            self._made_table = None
        if self._mask_table is not None:
            self._mask_table.abandon()
            self._mask_table = None

    def flush(self) -> None:
        """Writes down what was learned of the files, for later runs."""
        if self._made_table is not None:
            self._made_table.flush_indexes()

    @property
    def _table(self) -> Table:
        if self._view_of is not None:
            return self._view_of._table
        if self._made_table is None:
            self._made_table = self._make_table()
        return self._made_table

    def _make_table(self) -> Table:
        table, cache = self.dataset.table, self._cache
        return Table(
            *_columns(table),
            self._index_bytes,
            index_file(table.files, table.file, table.offset, table.size) if self._index_bytes and len(table) else None,
            cache.limit_bytes if cache else 0,
            cache.folder if cache else None,
            cache.sizes if cache else None,
        )

    def _from_ring(self, size_bytes: int) -> tuple[npt.NDArray[np.uint8], Any]:
        return np.frombuffer(self._ring.take(), dtype=np.uint8, count=size_bytes), None

    def _room(self, count: int) -> _Room:
        # With callables the native part leaves uint8 pixels, which are then mapped to the batch's own dtype.
        final, owner = (self._allocate or self._from_ring)(count * self.pipeline.image_bytes())
        if self.pipeline.functions:
            raw = np.empty(count * self.pipeline.height * self.pipeline.width * 3, dtype=np.uint8)
        else:
            raw = final
        masks = None
        if self._masks is not None:
            masks = np.empty((count, self.pipeline.height, self.pipeline.width), dtype=np.uint8)
        return _Room(self, final, owner, raw, masks)

    def _fill(self, batch: IndexBatch, rooms: Sequence[_Room], epoch: int) -> Job:
        (program, store, seed, memory, masks), *further = (room.feed._view(room) for room in rooms)
        return self._running().submit(
            self._table, program, store, seed, epoch, batch.records, batch.draws, memory, batch.data, masks, further
        )

    def _view(self, room: _Room) -> _View:
        beside = None
        if self._masks is not None and room.masks is not None:
            if self._mask_table is None:
                self._mask_table = Table(*_columns(self._masks.table))
            beside = (self._mask_table, room.masks.reshape(-1), self._masks.fill)
        return self.pipeline.program, self._store, self._draw_seed, room.raw, beside

    def _running(self) -> Engine:
        if self._view_of is not None:
            return self._view_of._running()
        if self._engine is None:
            self._engine = Engine(self.threads)
        return self._engine

    def _finish(self, work: _InWork, epoch: int) -> tuple[Filled, ...]:
        records, labels = work.batch.records, work.batch.labels
        statuses = np.asarray(work.job.statuses(), dtype=np.int32)
        bad = np.flatnonzero(statuses)
        if len(bad):
            records, labels = records.copy(), None if labels is None else labels.copy()
            for slot in bad.tolist():
                rooms = [room.slot(slot, len(records)) for room in work.rooms]
                other = self._substitute(work.batch, slot, int(statuses[slot]), rooms, epoch)
                records[slot] = other.records[0]
                if labels is not None and other.labels is not None:
                    labels[slot] = other.labels[0]
        self.stats.batches += 1
        return tuple(
            Filled(room.feed._pixels(room, len(records)), records, labels, work.batch.draws, room.owner, room.masks)
            for room in work.rooms
        )

    def _pixels(self, room: _Room, count: int) -> npt.NDArray[Any]:
        """The batch as the pipeline wants it, after the user's functions."""
        if self.pipeline.functions:
            self._call(room.raw.reshape(count, self.pipeline.height, self.pipeline.width, 3), room.final)
        return room.final.view(NUMPY_DTYPES[self.pipeline.dtype]).reshape(self.pipeline.shape(count))

    def _substitute(
        self,
        bad: IndexBatch,
        slot: int,
        status: int,
        rooms: Sequence[_Room],
        epoch: int,
    ) -> IndexBatch:
        """Puts a good record in a bad one's slot: the same one each time for (seed, epoch, draw). Returns it."""
        record, draw = int(bad.records[slot]), int(bad.draws[slot])
        key = bad.keys[slot] if bad.keys is not None else self.dataset.table.keys[record]
        reason = _STATUS[status][1]
        if self.on_error == "raise":
            raise DecodeError(
                f"record {key!r} ({self._where(bad, record)}): {reason}",
                key=key,
                status=status,
                hint=f"{_REMEDIES.get(status, _REPAIR)}, or pass on_error='skip' to substitute such records and count them",
            )
        self.stats.skip(key, reason)
        for attempt in range(_SUBSTITUTES):
            other = self._other(bad, draw, hashed(self.seed, epoch, draw, attempt))
            job = self._fill(other, rooms, epoch)
            job.wait()
            if job.statuses() == [0]:
                return other
        raise DecodeError(
            f"record {key!r}: {reason}; and none of {_SUBSTITUTES} records tried in its place could be decoded",
            key=key,
            status=status,
            hint=f"check the dataset:  headrace verify {self.dataset.root}",
        )

    def _other(self, bad: IndexBatch, draw: int, chosen: int) -> IndexBatch:
        """Any record, drawn by `chosen`; of a stream one of the same batch: there are no others any more."""
        draws = np.array([draw], dtype=np.uint64)
        if bad.labels is not None and bad.data is not None:
            at = chosen % len(bad.records)
            return IndexBatch(bad.records[at : at + 1], draws, [bad.data[at]], bad.labels[at : at + 1])
        records = np.array([chosen % len(self.dataset)], dtype=np.int64)
        fetcher = self.dataset.fetcher
        return IndexBatch(records, draws, None if fetcher is None else fetcher.begin(records).wait())

    def _where(self, batch: IndexBatch, record: int) -> str:
        if batch.keys is not None:
            return f"record {record} of {self.dataset.root}"
        table = self.dataset.table
        path = table.files[table.file[record]]
        return path if table.size[record] < 0 else f"{path} at byte {table.offset[record]}"

    def _call(self, images: npt.NDArray[np.uint8], final: npt.NDArray[np.uint8]) -> None:
        """Runs the user's functions on each image in place, then maps the values into `final`."""
        with Stopwatch(self.stats, "python_ns"):
            for image in images:
                result = image
                for function in self.pipeline.functions:
                    result = function(result)
                _checked(result, image.shape, self.pipeline.functions[-1])
                if result is not image:
                    image[...] = result
            values = images if self.pipeline.layout == "hwc" else images.transpose(0, 3, 1, 2)
            target = final.view(NUMPY_DTYPES[self.pipeline.dtype]).reshape(self.pipeline.shape(len(images)))
            if self.pipeline.table is None:
                target[...] = values
                return
            table = encode(self.pipeline.table, self.pipeline.dtype).view(NUMPY_DTYPES[self.pipeline.dtype])
            for channel in range(3):
                axis = (..., channel) if self.pipeline.layout == "hwc" else (slice(None), channel)
                target[axis] = table[channel][values[axis]]


class _Resident:
    """The batches, each when its records are on local disk; those of a remote dataset are fetched some batches ahead."""

    def __init__(self, batches: Iterable[IndexBatch], fetcher: RecordFetcher | None, ahead: int) -> None:
        self._batches = iter(batches)
        self._is_next_here = getattr(batches, "is_next_here", None)  # of a stream: a batch may still be on its way
        self._fetcher = fetcher
        self._ahead = ahead
        self._allowed = 1  # the first batch has the link for itself
        self._coming: deque[tuple[IndexBatch, PendingRecords]] = deque()

    def __iter__(self) -> Iterator[IndexBatch]:
        return self

    def __next__(self) -> IndexBatch:
        if self._fetcher is None:
            return next(self._batches)
        self._fetch(self._fetcher)
        if not self._coming:
            raise StopIteration
        batch, arrival = self._coming.popleft()
        data = arrival.wait()
        self._allowed = self._ahead
        return batch if data is None else replace(batch, data=data)

    def is_next_here(self) -> bool:
        """Whether the next batch can be had at once."""
        if self._fetcher is None:
            return self._is_next_here is None or self._is_next_here()
        self._fetch(self._fetcher)
        return not self._coming or self._coming[0][1].done()

    def cancel(self) -> None:
        """Gives up what is on its way."""
        for _, arrival in self._coming:
            arrival.cancel()

    def _fetch(self, fetcher: RecordFetcher) -> None:
        while len(self._coming) < self._allowed and (batch := next(self._batches, None)) is not None:
            self._coming.append((batch, fetcher.begin(batch.records)))


_View = tuple[
    Program,
    Store,
    int,
    npt.NDArray[np.uint8],
    tuple[Table, npt.NDArray[np.uint8], int] | None,
]  # as `_native.Engine.submit` takes it


@dataclass(frozen=True, slots=True)
class Begun:
    """A pass whose first batches are in work, or not yet."""

    source: _Resident
    epoch: int
    views: tuple[Feed, ...]
    ahead: deque[_InWork] = field(default_factory=deque)

    def cancel(self) -> None:
        """Gives up what is on its way and in work."""
        self.source.cancel()
        for work in self.ahead:
            work.job.cancel()


@dataclass(frozen=True, slots=True)
class _Room:
    """Where the images of a batch go, of one view."""

    feed: Feed
    final: npt.NDArray[np.uint8]
    owner: Any
    raw: npt.NDArray[np.uint8]  # what the native part fills
    masks: npt.NDArray[np.uint8] | None

    def slot(self, number: int, slots: int) -> _Room:
        """The part for one image, of which only the native part is asked."""
        size = self.raw.nbytes // slots
        masks = None if self.masks is None else self.masks[number : number + 1]
        return replace(self, raw=self.raw[number * size : (number + 1) * size], masks=masks)


@dataclass(frozen=True, slots=True)
class _InWork:
    batch: IndexBatch
    rooms: tuple[_Room, ...]
    job: Job


def _columns(
    table: RecordTable,
) -> tuple[list[str], npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return list(table.files), table.file, table.offset, table.size


def _checked(result: Any, shape: tuple[int, ...], function: Callable[[Any], Any]) -> None:
    if not isinstance(result, np.ndarray) or result.shape != shape or result.dtype != np.uint8:
        got = f"{result.dtype} {list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError(f"the transform {name} returned {got}; a uint8 array of shape {list(shape)} is needed")


_live: weakref.WeakSet[Feed] = weakref.WeakSet()


def _after_fork() -> None:
    for feed in list(_live):
        feed.abandon()


def _at_exit() -> None:
    for feed in list(_live):
        feed.flush()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
