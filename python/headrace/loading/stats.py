"""What the feed counts and times. Missing is None, never 0."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

__all__ = ["CacheStats", "FeedStats", "LoaderStats", "ShuffleQuality", "Skipped", "StageStats", "Stopwatch"]

Timer = Literal["wait_ns", "python_ns"]
_LISTED = 1000  # skipped records kept by name; all are counted


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was substituted, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What `cache=` did, in records, and the bytes that this process has put in."""

    hits: int
    misses: int
    kept_bytes: int


@dataclass(slots=True)
class FeedStats:
    """Running totals of one feed. Times are nanoseconds."""

    threads: int
    batches: int = 0
    wait_ns: int = 0  # the consumer waited for a batch
    python_ns: int = 0  # in the user's own functions
    skipped_count: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    cache: CacheStats | None = None
    closed: dict[str, int] = field(default_factory=dict)  # native counters of engines that have ended

    def skip(self, key: str, reason: str) -> None:
        """Counts a substituted record; the first thousand are listed."""
        self.skipped_count += 1
        if len(self.skipped) < _LISTED:
            self.skipped.append(Skipped(key, reason))

    def add_counters(self, counters: dict[str, int]) -> None:
        """Adds the totals of an engine that ends."""
        self.closed = self.counters(counters)

    def counters(self, current: dict[str, int]) -> dict[str, int]:
        """The totals of all engines so far, with those of the running one."""
        return {name: self.closed.get(name, 0) + current.get(name, 0) for name in self.closed | current}


class Stopwatch:
    """Adds the time of a `with` block to a field of FeedStats."""

    __slots__ = ("_began", "_stats", "_timer")

    def __init__(self, stats: FeedStats, timer: Timer) -> None:
        self._stats, self._timer, self._began = stats, timer, 0

    def __enter__(self) -> None:
        self._began = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        elapsed = time.perf_counter_ns() - self._began
        setattr(self._stats, self._timer, getattr(self._stats, self._timer) + elapsed)


@dataclass(frozen=True, slots=True)
class StageStats:
    """One step of the feed, over all threads: seconds in all, and milliseconds an image (None before the first image)."""

    name: str
    total_s: float
    per_image_ms: float | None


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How well an epoch is mixed: the chance that two records next to each other come from one shard, and are of one class.

    Both are Simpson's concentration, the sum of n(n-1) over N(N-1) (Simpson 1949, "Measurement of Diversity"), of what is
    mixed together; `uniform_…` are those of the whole dataset, which no shuffle can better. Where shards hold one class
    after the other, a window that is too small shows in `same_class`.

    Of a stream it is counted while records are handed out, of neighbours in this order; what shards it has is not known, but
    how far apart neighbours lay in it: `distance` is their mean distance over that of a random order of n records, (n + 1) / 3
    (the mean of |i - j| over all pairs), so 1 is all mixed and near 0 the order of the stream.
    """

    same_shard: float | None
    uniform_same_shard: float | None
    same_class: float
    uniform_same_class: float
    distance: float | None = None  # None: no stream

    def describe(self) -> str:
        """One sentence."""
        if self.same_shard is None or self.uniform_same_shard is None:
            return (
                f"neighbours lay {self.distance or 0:.0%} as far apart in the stream as all mixed,"
                f" and are of one class {self.same_class:.2%} of the time (all mixed: {self.uniform_same_class:.2%})"
            )
        return (
            f"chance that two neighbours come from one shard {self.same_shard:.2%} (all mixed: {self.uniform_same_shard:.2%}),"
            f" that they are of one class {self.same_class:.2%} (all mixed: {self.uniform_same_class:.2%})"
        )


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader did so far."""

    batches: int
    images: int
    bytes_read: int
    stages: tuple[StageStats, ...]  # read, decode, resample, store, python
    wait_s: float  # the consumer waited in next(): near 0 = the loader keeps up
    occupancy: float | None  # share of the threads' time spent working; near 1 = more threads may help; None: not started
    skipped_count: int
    skipped: tuple[Skipped, ...]
    ring_batches: int  # batches of memory in the ring
    index_bytes: int  # memory of checkpoint indexes, which make later epochs decode less
    indexes_found: int  # records whose index an earlier run has left
    cache: CacheStats | None  # None: without `cache=`
    shuffle: ShuffleQuality | None = None  # of a block shuffle; of a stream, of what was handed out in the last pass


def summarise(stats: FeedStats, counters: dict[str, int], *, ring_batches: int, indexes: tuple[int, int]) -> LoaderStats:
    """The public form of the running totals. `indexes`: bytes in memory, and records that had one from an earlier run."""
    images = counters.get("images", 0)

    def stage(name: str, time_ns: int) -> StageStats:
        return StageStats(name, time_ns / 1e9, time_ns / 1e6 / images if images else None)

    stages = [stage(name, counters.get(f"{name}_ns", 0)) for name in ("read", "decode", "resample", "store")]
    busy = sum(counters.get(f"{name}_ns", 0) for name in ("read", "decode", "resample", "store"))
    total = busy + counters.get("idle_ns", 0)
    return LoaderStats(
        batches=stats.batches,
        images=images,
        bytes_read=counters.get("bytes", 0),
        stages=(*stages, stage("python", stats.python_ns)),
        wait_s=stats.wait_ns / 1e9,
        occupancy=busy / total if total else None,
        skipped_count=stats.skipped_count,
        skipped=tuple(stats.skipped),
        ring_batches=ring_batches,
        index_bytes=indexes[0],
        indexes_found=indexes[1],
        cache=stats.cache,
    )
