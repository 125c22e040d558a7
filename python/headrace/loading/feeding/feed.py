"""The feed: native threads decode batches. A `FeedPass` decides which ones are ahead of the consumer."""

from __future__ import annotations

import atexit
import os
import shlex
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace._native import Engine, Job, Program, Ring, Store, Table, status_names
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.table import RecordFetcher, RecordTable
from headrace.datasets.sources.archives.readahead import Readahead
from headrace.errors import DecodeError, HeadraceError, SourceError, UsageError
from headrace.images.decode import OPEN_FILES, SYSTEM_FAILED, UNSUPPORTED
from headrace.loading.feeding.byte_cache import CacheLocation
from headrace.loading.feeding.feed_pass import FeedPass, FetchedBatches, FilledBatch, IndexBatch
from headrace.loading.feeding.gpu_decode import Cropped, GpuDecoding, GpuJob, GpuPart
from headrace.loading.feeding.jpeg_index_cache import index_file
from headrace.loading.feeding.options import LoaderOptions
from headrace.loading.order.arithmetic import hashed
from headrace.loading.statistics.stats import CacheStats, FeedStats, Stopwatch
from headrace.system.files import open_files
from headrace.system.hardware.machine import cores
from headrace.system.text.size_limits import max_pixels
from headrace.system.text.sizes import size_text
from headrace.transforms.compile import NUMPY_DTYPES, Pipeline, encode

__all__ = ["BatchAllocator", "Feed", "Masks"]

# Bytes of memory that JPEG indexes may take. A 470×400 photograph without restart markers has one of about 4 KB.
INDEX_BYTES = 1 << 30
_MAX_SUBSTITUTES = 100  # records tried in place of a bad one before the pass fails
_REPAIR_HINT = "repair or remove it"
_AS_JPEG = "make it a JPEG (headrace pack --quality 95); floating-point values must be scaled to 8 or 16 bits first"
_HINTS = {UNSUPPORTED: _AS_JPEG}  # the file is undamaged, so repairing is no advice
_FETCHED_AHEAD = 3  # fetch the records of up to this many times `prefetch` batches of a remote dataset
_STATUS = status_names()


@dataclass(frozen=True, slots=True)
class Masks:
    """The segmentation masks of a dataset: one record per image, in the same order."""

    table: RecordTable  # a row for each record of the dataset
    fill: int  # class number, 0 to 255, for pixels outside the image


class BatchAllocator(Protocol):
    """Allocates a batch of `size_bytes` bytes: a flat uint8 array, and the tensor that owns the memory or None."""

    def __call__(self, size_bytes: int, /) -> tuple[npt.NDArray[np.uint8], Any]: ...


class Feed:
    """Decodes batches of `dataset` on `options.threads` native threads, up to `options.prefetch` ahead of the consumer.

    primary: for a further view of the same records, the feed of the first view, whose threads and table this feed uses.
    view: number of the view, which decides its random draws.
    gpu: what makes a part of each batch on the GPU, for a feed of one view without masks.
    """

    def __init__(
        self,
        dataset: Dataset,
        pipeline: Pipeline,
        options: LoaderOptions,
        *,
        allocate: BatchAllocator | None = None,
        cache: CacheLocation | None = None,
        primary: Feed | None = None,
        view: int = 0,
        masks: Masks | None = None,
        gpu: GpuDecoding | None = None,
    ) -> None:
        self.dataset, self.pipeline, self.options = dataset, pipeline, options
        self.stats = FeedStats(threads=options.threads)
        table = dataset.table
        tables = (table,) if masks is None else (table, masks.table)
        if shards := sum(len(one.files) for one in tables if bool((one.size >= 0).any())):
            open_files.allow(shards)
        self._primary, self._draw_seed = primary, hashed(options.seed, view) if view else options.seed
        self._cache = cache
        if cache is not None and cache.lock_descriptor is not None:
            weakref.finalize(self, os.close, cache.lock_descriptor)
        self._own_table: Table | None = None if primary is not None else self._open_table()
        self._fetcher: RecordFetcher | None = dataset.fetcher
        # For local shards the first view asks the kernel to read ahead. With a cache most records are not read from there.
        if (
            dataset.fetcher is None
            and self._own_table is not None
            and cache is None
            and len(table)
            and bool((table.size >= 0).all())
        ):
            self._fetcher = Readahead(self._own_table)
        self._masks = masks
        self._mask_table: Table | None = None
        self._store = pipeline.store()
        # A batch holds no more records than the dataset; of a stream their number is not known.
        self._block_bytes = min(options.batch_size, len(table) or options.batch_size) * pipeline.image_bytes()
        self._ring = self._new_ring(options.prefetch + 3)
        self._allocate = allocate  # not a bound method: a cycle would keep the threads until the collector runs
        self._engine: Engine | None = None
        self._gpu = gpu
        _live_feeds.add(self)

    def begin(self, batches: Iterable[IndexBatch], epoch: int, views: Sequence[Feed] = ()) -> FeedPass:
        """Return a new pass over the batches. `views`: feeds of further views of the same records. Nothing is submitted yet."""
        fetched = FetchedBatches(batches, self._fetcher, _FETCHED_AHEAD * self.options.prefetch)
        return FeedPass(_EpochWork(self, tuple(views), epoch), fetched, epoch, self.options.prefetch, self.stats)

    def pass_ended(self) -> None:
        """Write the JPEG indexes of a pass to disk. The time from its last batch to the next pass is not measured as a step."""
        if self._gpu is not None:
            self._gpu.pass_ended()
        (self._primary or self).flush()

    def _submit(self, batch: IndexBatch, memories: tuple[_BatchMemory, ...], epoch: int) -> _PendingBatch:
        """Start making a batch: its first images by the native threads; the last ones by the GPU; those between are decoded by
        the native threads and augmented by the GPU."""
        count = len(batch.records)
        first, decoded = (count, count) if self._gpu is None else self._gpu.slots(count)
        if self._gpu is None or first == count:
            return _PendingBatch(batch, memories, self._fill(batch, memories, epoch))

        def fill(begin: int, end: int, program: Program | None = None) -> Job | None:
            part = [memory.slots(begin, end, count) for memory in memories]
            return self._fill(batch.part(begin, end), part, epoch, program) if begin < end else None

        job = fill(first, decoded, self._gpu.crop_program)
        cropped = None if job is None else Cropped(job, memories[0].slots(first, decoded, count).raw)
        rest = batch.part(first, count)
        on_gpu = self._gpu.begin(rest.records, rest.draws, rest.data, first, epoch, cropped)
        return _PendingBatch(batch, memories, fill(0, first), on_gpu)

    def close(self) -> None:
        """Stop and join the threads. A feed that is used again starts new ones."""
        if self._gpu is not None:
            self._gpu.close()
        if self._engine is not None:
            self.stats.add_counters(self._engine.counters())
            self._engine.close()
            self._engine = None

    def counters(self) -> dict[str, int]:
        """Return totals of the native stages so far: nanoseconds over all threads, images, bytes."""
        return self.stats.counters(self._engine.counters() if self._engine else {})

    def indexes(self) -> tuple[int, int]:
        """Return the bytes of memory that JPEG indexes use, and the number of records whose index came from an earlier run."""
        return self._table.index_bytes(), self._table.indexes_found()

    def cache_stats(self) -> CacheStats | None:
        """Return the counts of the byte cache; None without `cache=`."""
        counts = self._table.cache_counts()
        return None if counts is None else CacheStats(*counts)

    def ring_batches(self) -> int:
        """Return the number of batch buffers in the ring."""
        return self._ring.counts()[0]

    def abandon(self) -> None:
        """In a forked child, drop the native threads, which do not exist there, and the tables of records and masks.

        A thread of the parent may have held a lock of a table during the fork, which nobody in the child would release.
        """
        if self._gpu is not None:
            self._gpu.abandon()
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        if self._own_table is not None:
            self._own_table.abandon()
            self._own_table, self._fetcher = None, self.dataset.fetcher
        if self._mask_table is not None:
            self._mask_table.abandon()
            self._mask_table = None

    def flush(self) -> None:
        """Write the JPEG indexes that were made to disk, for later runs."""
        if self._own_table is not None:
            self._own_table.flush_indexes()

    @property
    def _table(self) -> Table:
        if self._primary is not None:
            return self._primary._table
        if self._own_table is None:
            self._own_table = self._open_table()
        return self._own_table

    def _open_table(self) -> Table:
        table, cache = self.dataset.table, self._cache
        max_pixels()  # a setting that is no number ends the run here: the native core would go on with the default
        return Table(
            *_columns(table),
            INDEX_BYTES,
            index_file(table.files, table.file, table.offset, table.size) if len(table) else None,
            cache.limit_bytes if cache else 0,
            cache.folder if cache else None,
            cache.sizes if cache else None,
            None if table.crc32c is None else np.ascontiguousarray(table.crc32c, dtype=np.uint32),
        )

    def _new_ring(self, batches: int) -> Ring:
        try:
            return Ring(self._block_bytes, batches)
        except (ValueError, OverflowError) as error:
            raise self._too_large() from error

    def _from_ring(self, size_bytes: int) -> tuple[npt.NDArray[np.uint8], Any]:
        try:
            if size_bytes > self._block_bytes:  # a batch that repeats records of a small dataset
                return np.zeros(size_bytes, dtype=np.uint8), None
            return np.frombuffer(self._ring.take(), dtype=np.uint8, count=size_bytes), None
        except MemoryError as error:
            raise self._too_large() from error

    def _too_large(self) -> UsageError:
        words = f"a batch of {self.options.batch_size:,} images takes {size_text(self._block_bytes)}, more than there is memory"
        return UsageError(words, hint="make batch_size smaller")

    def _batch_memory(self, count: int) -> _BatchMemory:
        # The user's functions need uint8 pixels, which are mapped to the batch's own dtype after them.
        final, owner = (self._allocate or self._from_ring)(count * self.pipeline.image_bytes())
        if self.pipeline.functions:
            raw = np.empty(count * self.pipeline.height * self.pipeline.width * 3, dtype=np.uint8)
        else:
            raw = final
        masks = None
        if self._masks is not None:
            masks = np.empty((count, self.pipeline.height, self.pipeline.width), dtype=np.uint8)
        return _BatchMemory(self, final, owner, raw, masks)

    def _fill(self, batch: IndexBatch, memories: Sequence[_BatchMemory], epoch: int, other: Program | None = None) -> Job:
        """Start filling the memories of a batch natively; return the job. other: program to run in place of the pipeline's."""
        (program, store, seed, pixels, masks), *further = (memory.feed._native_view(memory) for memory in memories)
        return self._running_engine().submit(
            self._table, other or program, store, seed, epoch, batch.records, batch.draws, pixels, batch.data, masks, further
        )

    def _native_view(self, memory: _BatchMemory) -> _NativeView:
        masks = None
        if self._masks is not None and memory.masks is not None:
            if self._mask_table is None:
                self._mask_table = Table(*_columns(self._masks.table))
            masks = (self._mask_table, memory.masks.reshape(-1), self._masks.fill)
        return self.pipeline.program, self._store, self._draw_seed, memory.raw, masks

    def _running_engine(self) -> Engine:
        if self._primary is not None:
            return self._primary._running_engine()
        if self._engine is None:
            try:
                self._engine = Engine(self.options.threads, cores().parallel)
            except OSError as error:
                raise HeadraceError(
                    f"cannot start {self.options.threads} threads: {error}",
                    hint="pass fewer threads, or raise the limit on processes (ulimit -u)",
                ) from error
        return self._engine

    def _finish(self, pending: _PendingBatch, epoch: int) -> tuple[FilledBatch, ...]:
        records, labels = pending.batch.records, pending.batch.labels
        statuses, on_gpu = self._statuses(pending, epoch)
        if any(statuses):
            records, labels = records.copy(), None if labels is None else labels.copy()
            for slot, status in enumerate(statuses):
                if not status:
                    continue
                memories = [memory.slots(slot, slot + 1, len(records)) for memory in pending.memories]
                other = self._substitute(pending.batch, slot, status, memories, epoch)
                records[slot] = other.records[0]
                if labels is not None and other.labels is not None:
                    labels[slot] = other.labels[0]
        self.stats.batches += 1
        count, draws = len(records), pending.batch.draws
        return tuple(
            FilledBatch(memory.feed._pixels(memory, count), records, labels, draws, memory.owner, memory.masks, on_gpu)
            for memory in pending.memories
        )

    def _statuses(self, pending: _PendingBatch, epoch: int) -> tuple[list[int], GpuPart | None]:
        """Return the statuses of a decoded batch, and its images on the GPU. What the GPU left is decoded here, by the CPU."""
        statuses = [] if pending.job is None else pending.job.statuses()
        found = None if pending.on_gpu is None else pending.on_gpu.found()
        if self._gpu is not None:
            self._gpu.see(found, self.counters())
        if found is None:
            return statuses, None
        first, count = len(statuses), len(pending.batch.records)
        left = [first + at for at, status in enumerate(found.statuses) if status]
        jobs = [
            self._fill(
                pending.batch.part(slot, slot + 1), [memory.slots(slot, slot + 1, count) for memory in pending.memories], epoch
            )
            for slot in left
        ]
        whole = statuses + [0] * (count - first)
        for slot, job in zip(left, jobs, strict=True):
            job.wait()
            whole[slot] = job.statuses()[0]
        return whole, found.part

    def _pixels(self, memory: _BatchMemory, count: int) -> npt.NDArray[Any]:
        """Return the batch in the pipeline's shape and dtype, after the user's functions."""
        if self.pipeline.functions:
            self._run_functions(memory.raw.reshape(count, self.pipeline.height, self.pipeline.width, 3), memory.final)
        return memory.final.view(NUMPY_DTYPES[self.pipeline.dtype]).reshape(self.pipeline.shape(count))

    def _substitute(
        self,
        bad: IndexBatch,
        slot: int,
        status: int,
        memories: Sequence[_BatchMemory],
        epoch: int,
    ) -> IndexBatch:
        """Fill a bad record's slot with a good record and return it: the same one each time for (seed, epoch, draw)."""
        record, draw = int(bad.records[slot]), int(bad.draws[slot])
        key = bad.keys[slot] if bad.keys is not None else self.dataset.table.keys[record]
        reason = _STATUS[status][1]
        if status in (OPEN_FILES, SYSTEM_FAILED):
            limit = f"; this process may open {open_files.limit()}" if status == OPEN_FILES else ""
            hint = (
                "raise the limit (ulimit -n), or hold fewer files open"
                if limit
                else "look at the disk, the network and free memory"
            )
            raise SourceError(f"record {key!r} ({self._where(bad, record)}): {reason}{limit}", hint=hint)
        if self.options.on_error == "raise":
            raise DecodeError(
                f"record {key!r} ({self._where(bad, record)}): {reason}",
                key=key,
                status=status,
                hint=f"{_HINTS.get(status, _REPAIR_HINT)}, or pass on_error='skip' to substitute such records and count them",
            )
        self.stats.skip(key, reason)
        for attempt in range(_MAX_SUBSTITUTES):
            other = self._substitute_record(bad, draw, hashed(self.options.seed, epoch, draw, attempt))
            job = self._fill(other, memories, epoch)
            job.wait()
            if job.statuses() == [0]:
                return other
        raise DecodeError(
            f"record {key!r}: {reason}; and none of {_MAX_SUBSTITUTES} records tried in its place could be decoded",
            key=key,
            status=status,
            hint=f"check the dataset:  headrace verify {shlex.quote(str(self.dataset.root))}",
        )

    def _substitute_record(self, bad: IndexBatch, draw: int, chosen: int) -> IndexBatch:
        """Return the record that the hash `chosen` selects: of the batch's `stand_ins`, or of the same batch for a stream."""
        draws = np.array([draw], dtype=np.uint64)
        if bad.labels is not None and bad.data is not None:
            at = chosen % len(bad.records)
            return IndexBatch(bad.records[at : at + 1], draws, [bad.data[at]], bad.labels[at : at + 1])
        rows = bad.stand_ins
        record = chosen % len(self.dataset) if rows is None else rows[chosen % len(rows)]
        records = np.array([record], dtype=np.int64)
        fetcher = self.dataset.fetcher
        return IndexBatch(records, draws, None if fetcher is None else fetcher.begin(records).wait())

    def _where(self, batch: IndexBatch, record: int) -> str:
        if batch.keys is not None:
            return f"record {record} of {self.dataset.root}"
        table = self.dataset.table
        path = table.files[table.file[record]]
        return path if table.size[record] < 0 else f"{path} at byte {table.offset[record]}"

    def _run_functions(self, images: npt.NDArray[np.uint8], final: npt.NDArray[np.uint8]) -> None:
        """Run the user's functions on each image in place, then map the values into `final`."""
        with Stopwatch(self.stats, "python_ns"):
            for image in images:
                result = image
                for function in self.pipeline.functions:
                    result = _called(function, result)
                _check_result(result, image.shape, self.pipeline.functions[-1])
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


def _called(function: Callable[[Any], Any], image: npt.NDArray[np.uint8]) -> Any:
    """Call the user's function. Say what it is given if it takes the image for one of Pillow or a tensor."""
    try:
        return function(image)
    except (AttributeError, TypeError) as error:
        if "ndarray" not in str(error):
            raise
        raise UsageError(
            f"the function {getattr(function, '__qualname__', type(function).__name__)} fails: {error}",
            hint="it gets one image as a uint8 array [H, W, 3]; PIL.Image.fromarray(image) makes a Pillow image of it",
        ) from error


_NativeView = tuple[
    Program,
    Store,
    int,
    npt.NDArray[np.uint8],
    tuple[Table, npt.NDArray[np.uint8], int] | None,
]  # one view of a batch, as `_native.Engine.submit` takes it: program, store, seed of its draws, output memory, masks


@dataclass(frozen=True, slots=True)
class _EpochWork:
    """Makes the batches of one epoch for a `FeedPass`: of `feed`, and of the feeds of further views."""

    feed: Feed
    views: tuple[Feed, ...]
    epoch: int

    def submit(self, batch: IndexBatch) -> _PendingBatch:
        """Start making a batch for the loader and for each of its further views; return it as pending."""
        memories = tuple(feed._batch_memory(len(batch.records)) for feed in (self.feed, *self.views))
        return self.feed._submit(batch, memories, self.epoch)

    def finish(self, pending: _PendingBatch) -> tuple[FilledBatch, ...]:
        """Return the batch of each view. Raises DecodeError for a bad record, unless on_error is "skip"."""
        return self.feed._finish(pending, self.epoch)

    def batch_given(self) -> None:
        """Record that the consumer has got a batch."""
        if self.feed._gpu is not None:
            self.feed._gpu.clock.out()

    def batch_asked(self) -> None:
        """Record that the consumer has come back for the next batch."""
        if self.feed._gpu is not None:
            self.feed._gpu.clock.back()

    def end(self) -> None:
        """Tell the feed that its pass has ended."""
        self.feed.pass_ended()


@dataclass(frozen=True, slots=True)
class _BatchMemory:
    """Memory of a batch of one view."""

    feed: Feed
    final: npt.NDArray[np.uint8]  # what the consumer gets
    owner: Any
    raw: npt.NDArray[np.uint8]  # what native code fills: `final`, or uint8 pixels for the user's functions
    masks: npt.NDArray[np.uint8] | None

    def slots(self, first: int, end: int, count: int) -> _BatchMemory:
        """Return the memory of the images from slot `first` up to `end`, of `count`, for native code to fill."""
        size = self.raw.nbytes // count
        masks = None if self.masks is None else self.masks[first:end]
        return replace(self, raw=self.raw[first * size : end * size], masks=masks)


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that is being decoded."""

    batch: IndexBatch
    memories: tuple[_BatchMemory, ...]
    job: Job | None  # the native threads' work; None: the GPU makes all images
    on_gpu: GpuJob | None = None  # the GPU's work on the last images; None: the native threads make all

    def is_done(self) -> bool:
        """Return whether all images are decoded. False where the GPU makes some."""
        return self.on_gpu is None and self.job is not None and self.job.wait(0.0)

    def wait(self) -> None:
        """Wait until all images are decoded."""
        for job in (self.job, self.on_gpu):
            if job is not None:
                job.wait()

    def cancel(self) -> None:
        """Cancel the images of this batch that no thread has begun. Wait for those that native threads have begun."""
        for job in (self.job, self.on_gpu):
            if job is not None:
                job.cancel()


def _columns(
    table: RecordTable,
) -> tuple[Sequence[str], npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return table.files, table.file, table.offset, table.size


def _check_result(result: Any, shape: tuple[int, ...], function: Callable[[Any], Any]) -> None:
    if not isinstance(result, np.ndarray) or result.shape != shape or result.dtype != np.uint8:
        got = f"{result.dtype} {list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError(f"the transform {name} returned {got}; a uint8 array of shape {list(shape)} is needed")


_live_feeds: weakref.WeakSet[Feed] = weakref.WeakSet()


def _after_fork() -> None:
    for feed in list(_live_feeds):
        feed.abandon()


def _at_exit() -> None:
    for feed in list(_live_feeds):
        feed.flush()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
