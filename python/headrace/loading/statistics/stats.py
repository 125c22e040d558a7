"""Counts and times of a loader. A value that was not measured is None, never 0."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Literal

from headrace.system.text.sizes import count_text, percent_text, size_text

__all__ = ["CacheStats", "FeedStats", "LoaderStats", "ShuffleQuality", "SkippedRecord", "StageStats", "Stopwatch", "summarize"]

Timer = Literal["wait_ns", "python_ns"]
_MAX_LISTED = 1000  # list at most this many skipped records by name; all are counted


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A bad record that was substituted: its key and the reason."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Records found and not found in the byte cache, and the bytes that this process added to it."""

    hits: int
    misses: int
    kept_bytes: int


@dataclass(slots=True)
class FeedStats:
    """Running totals of one feed, in nanoseconds where they are times."""

    threads: int
    batches: int = 0
    wait_ns: int = 0  # time that the consumer waited for batches
    python_ns: int = 0  # time in the user's own functions
    skipped_count: int = 0
    skipped: list[SkippedRecord] = field(default_factory=list)
    cache: CacheStats | None = None
    closed: dict[str, int] = field(default_factory=dict)  # native counters of engines that were closed, summed

    def skip(self, key: str, reason: str) -> None:
        """Count a bad record that was substituted, and add it to `skipped` unless that is full."""
        self.skipped_count += 1
        if len(self.skipped) < _MAX_LISTED:
            self.skipped.append(SkippedRecord(key, reason))

    def add_counters(self, counters: dict[str, int]) -> None:
        """Add the totals of an engine that is being closed."""
        self.closed = self.counters(counters)

    def counters(self, current: dict[str, int]) -> dict[str, int]:
        """Return the totals of all closed engines plus `current`, those of the running one."""
        return {name: self.closed.get(name, 0) + current.get(name, 0) for name in self.closed | current}


class Stopwatch:
    """A context manager that adds the time of its block to a field of FeedStats."""

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
    """One stage over all threads: total seconds, and milliseconds an image (None before the first image)."""

    name: str
    total_s: float
    per_image_ms: float | None


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How well an epoch is shuffled: the chance that neighbours come from one shard, or are of one class.

    Both chances are Simpson's concentration, the sum of n(n-1) over N(N-1) (Simpson 1949, "Measurement of Diversity"), within a
    window; `uniform_same_shard` and `uniform_same_class` are those of the whole dataset, the best that a shuffle can reach. A
    window that is too small for a dataset sorted by class shows in `same_class`.

    For a stream the neighbours are counted while records are handed out. Its shards are not known; `distance` is the mean
    distance in the stream between neighbours, over that of a full shuffle of n records, (n + 1) / 3 (the mean of |i - j| over
    all pairs). 1 is a full shuffle, near 0 the order of the stream. `distance` is None for other datasets.
    """

    same_shard: float | None
    uniform_same_shard: float | None
    same_class: float
    uniform_same_class: float
    distance: float | None = None

    def describe(self) -> str:
        """Return one sentence that compares the shuffle with a full shuffle."""
        percent = partial(percent_text, digits=2)
        if self.same_shard is None or self.uniform_same_shard is None:
            return (
                f"neighbours lay {percent_text(self.distance or 0)} as far apart in the stream as after a full shuffle,"
                f" and are of one class {percent(self.same_class)} of the time"
                f" (full shuffle: {percent(self.uniform_same_class)})"
            )
        return (
            f"chance that neighbours come from one shard {percent(self.same_shard)}"
            f" (full shuffle: {percent(self.uniform_same_shard)}), that they are of one class {percent(self.same_class)}"
            f" (full shuffle: {percent(self.uniform_same_class)})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class LoaderStats:
    """Counts and times of a loader since it was made. It prints as a short table."""

    batches: int
    images: int
    bytes_read: int
    stages: tuple[StageStats, ...]  # read, decode, resample, store, python
    wait_s: float  # seconds that the consumer waited in next(); near 0: the loader keeps up
    occupancy: float | None  # share of the threads' time spent working; near 1: more threads may help; None: not started
    skipped_count: int
    skipped: tuple[SkippedRecord, ...]
    ring_batches: int  # number of batch buffers in the ring
    index_bytes: int  # memory that JPEG indexes take; with them later epochs decode less of each file
    indexes_found: int  # number of records whose JPEG index an earlier run had stored
    cache: CacheStats | None  # counts of the byte cache; None without `cache=`
    shuffle: ShuffleQuality | None = None  # how well a block shuffle's first epoch, or a stream's pass so far, is mixed

    def __repr__(self) -> str:
        images = f"{count_text(self.batches, 'batch')}, {count_text(self.images, 'image')}"
        busy = "not measured" if self.occupancy is None else percent_text(self.occupancy)
        rows = [
            ("read", size_text(self.bytes_read), ""),
            ("wait for batches", f"{self.wait_s:.1f} s", ""),
            ("threads at work", busy, ""),
            ("skipped records", f"{self.skipped_count:,}", ""),
        ]
        if self.cache is not None:
            rows.append(("cache", f"{self.cache.hits:,} found", f"{self.cache.misses:,} not found"))
        rows.append(("stage", "in all", "an image"))
        for stage in self.stages:
            each = "not measured" if stage.per_image_ms is None else f"{stage.per_image_ms:.3f} ms"
            rows.append((f"  {stage.name}", f"{stage.total_s:.1f} s", each))
        table = "\n".join(f"{name:<18}{value:>12}{more:>16}".rstrip() for name, value, more in rows)
        return f"{images}\n{table}"


def summarize(
    stats: FeedStats,
    counters: dict[str, int],
    *,
    ring_batches: int,
    indexes: tuple[int, int],
    shuffle: ShuffleQuality | None,
) -> LoaderStats:
    """Return the running totals as `LoaderStats`. indexes: what `Feed.indexes()` returns."""
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
        shuffle=shuffle,
    )
