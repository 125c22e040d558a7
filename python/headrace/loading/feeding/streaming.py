"""A pass over a stream as batches: a thread reads ahead and shuffles records in a buffer of bounded size.

The order is a pure function of (seed, epoch, order of the stream): when the buffer is full, a generator with that seed draws
the record to hand out. A resumed pass reads the stream from its beginning and drops the records handed out before, without
decoding them.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from headrace.datasets.records.table import Stream, StreamRecord
from headrace.datasets.sources.archives.containers import MAX_CLASSES
from headrace.errors import FormatError, SourceError
from headrace.loading.feeding.feed_pass import IndexBatch
from headrace.loading.order.arithmetic import draw_keys, hashed
from headrace.loading.statistics.stats import ShuffleQuality
from headrace.system.processes.scheduling import yield_to_running_threads
from headrace.system.text.printable import value_text
from headrace.system.text.sizes import size_text

__all__ = ["BUFFER_SIZE", "StreamOptions", "StreamPass"]

BUFFER_SIZE = "512MiB"  # default size of the shuffle buffer: about 4,700 photographs of ImageNet's size
_POLL_S = 0.1  # check for a closed pass at this interval while the queue is full

_Numbered = tuple[int, StreamRecord]
_End = Literal["end"]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How one pass over a stream is shuffled and cut into batches. batch_size: per rank; all ranks read the same stream."""

    batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    seed: int
    buffer_bytes: int  # size of the shuffle buffer; 0: no shuffling
    prefetch: int  # number of batches to read ahead
    steps: int | None = None  # batches of a pass if each rank has a stream of its own; None: until the stream ends

    def describe(self, stream: Stream) -> str:
        """Return how the stream is ordered, in words for `explain`."""
        if not self.buffer_bytes:
            return f"a stream, in its own order: {stream.name}"
        size = size_text(self.buffer_bytes)
        return (
            f"a stream, shuffled in a buffer of {size}: {stream.name}\n"
            "  records farther apart are hardly shuffled: let the sender shuffle shards too (SageMaker's ShuffleConfig)"
        )


class _ShuffleMeter:
    """Counts how well the records of a pass are shuffled."""

    def __init__(self) -> None:
        self._last: _Numbered | None = None
        self._count = self._same = self._twins = self._distance = self._highest = 0
        self._of_class: dict[int | str | None, int] = {}

    def count(self, records: Iterable[_Numbered]) -> Iterator[_Numbered]:
        """Yield the records unchanged, and count them."""
        for number, record in records:
            if self._last is not None:
                self._same += record.label == self._last[1].label
                self._distance += abs(number - self._last[0])
            before = self._of_class.get(record.label, 0)
            self._of_class[record.label] = before + 1
            self._twins += 2 * before  # n(n - 1), summed over the classes
            self._last = (number, StreamRecord("", record.label, b""))  # not its bytes
            self._count, self._highest = self._count + 1, max(self._highest, number)
            yield number, record

    def quality(self) -> ShuffleQuality | None:
        """Return how well the records counted so far are shuffled (`ShuffleQuality`); None before the second record."""
        count = self._count
        if count < 2:
            return None
        return ShuffleQuality(
            same_shard=None,
            uniform_same_shard=None,
            same_class=self._same / (count - 1),
            uniform_same_class=self._twins / (count * (count - 1)),
            distance=self._distance / (count - 1) / ((self._highest + 2) / 3),
        )


class StreamPass:
    """The batches of one pass, from batch `first` on. Iterating raises the errors of the stream."""

    def __init__(self, stream: Stream, options: StreamOptions, epoch: int, first: int = 0) -> None:
        self.stream, self.options, self.epoch, self.first = stream, options, epoch, first
        self.total: int | None = None  # batches of the pass; known when the last one is handed out
        self._queue: queue.Queue[IndexBatch | _End | BaseException] = queue.Queue(maxsize=options.prefetch)
        self._meter = _ShuffleMeter()
        self._stopped = threading.Event()
        self._reading = stream.read()
        self._thread = threading.Thread(target=self._run, name="headrace-stream", daemon=True)
        self._thread.start()

    def __iter__(self) -> StreamPass:
        return self

    def __next__(self) -> IndexBatch:
        item = self._queue.get()
        if isinstance(item, IndexBatch):
            return item
        self._queue.put(item)  # a second call gets the same answer
        if isinstance(item, BaseException):
            raise item
        raise StopIteration

    def is_next_here(self) -> bool:
        """Return whether the next batch has been read already, so that asking for it does not wait."""
        return not self._queue.empty()

    def quality(self) -> ShuffleQuality | None:
        """Return how well the records handed out so far were shuffled; None before the second record."""
        return self._meter.quality()

    def close(self) -> None:
        """Stop reading and join the thread. Iterating afterwards raises SourceError."""
        self._stopped.set()
        self._reading.stop()
        self._thread.join()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put(
            SourceError(f"this pass over {self.stream.name} was ended: a newer one began, or the loader was closed")
        )

    def _run(self) -> None:
        yield_to_running_threads()
        try:
            batches = self._batches(iter(self._reading))
            held: IndexBatch | None = None  # hold one batch back, so that `total` is known before the last one is handed out
            done = self.first
            for batch in batches:
                if held is not None:
                    self._put(held)
                held, done = batch, done + 1
                if self._stopped.is_set():
                    return
            if self.options.steps is not None and done < self.options.steps:
                raise SourceError(f"{self.stream.name} ended after {done} batches; `parts` promises {self.options.steps}")
            self.total = done
            if held is not None:
                self._put(held)
            self._put("end")
        except BaseException as error:  # raised in the consumer's thread
            self._put(error)

    def _put(self, item: IndexBatch | _End | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def _batches(self, records: Iterator[StreamRecord]) -> Iterator[IndexBatch]:
        options = self.options
        draw = random.Random(hashed(options.seed, self.epoch))
        shuffled = self._meter.count(_shuffle_in_buffer(enumerate(records), options.buffer_bytes, draw))
        whole = options.batch_size * options.world_size
        front: list[_Numbered] = []  # fills up the parts of the last step, as EpochOrder does
        for step in itertools.count() if options.steps is None else range(options.steps):
            taken = list(islice(shuffled, whole))
            if len(front) < options.world_size:
                front += taken[: options.world_size]
            if len(taken) < whole:
                if not step and not taken:
                    raise SourceError(f"no images came through {self.stream.name}")
                if not step and options.drop_last:
                    raise SourceError(
                        f"{self.stream.name} had {len(taken)} records, fewer than one global batch of {whole}",
                        hint="use a smaller batch_size, or drop_last=False",
                    )
                if options.drop_last or not taken:
                    return
            count = -(-len(taken) // options.world_size)  # per rank
            if step >= self.first:
                own = slice(options.rank * count, (options.rank + 1) * count)
                again = [1 + place // len(front) for place in range(len(front) * count)]  # they came before
                yield self._batch([*taken, *front * count][own], [*([0] * len(taken)), *again][own])
            if len(taken) < whole:
                return

    def _batch(self, records: list[_Numbered], occurrences: list[int]) -> IndexBatch:
        numbers = np.array([number for number, _ in records], dtype=np.int64)
        labels = np.array([self._label(record) for _, record in records], dtype=np.int64)
        return IndexBatch(
            numbers,
            draw_keys(numbers, np.array(occurrences, dtype=np.int64)),
            [record.data for _, record in records],
            labels,
            [record.key for _, record in records],
        )

    def _label(self, record: StreamRecord) -> int:
        if isinstance(record.label, int) and 0 <= record.label < MAX_CLASSES:
            return record.label
        what = "no label" if record.label is None else f"the label {value_text(record.label)}"
        raise FormatError(
            f"{self.stream.name}: record {record.key!r} has {what}; in a stream a label must be a number from 0, below "
            f"{MAX_CLASSES:,}, as the classes that are still to come are not known",
            hint="headrace pack numbers the classes; or use FastFile mode",
        )


def _shuffle_in_buffer(records: Iterable[_Numbered], buffer_bytes: int, draw: random.Random) -> Iterator[_Numbered]:
    """Yield the records, shuffled in a buffer of `buffer_bytes` bytes of images."""
    if not buffer_bytes:
        yield from records
        return
    buffer: list[_Numbered] = []
    held_bytes = 0

    def draw_record() -> _Numbered:
        place = int(draw.random() * len(buffer))
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        return buffer.pop()

    for record in records:
        buffer.append(record)
        held_bytes += len(record[1].data)
        while held_bytes > buffer_bytes and len(buffer) > 1:
            drawn = draw_record()
            held_bytes -= len(drawn[1].data)
            yield drawn
    while buffer:
        yield draw_record()
