"""Statistics of a series of numbers."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

__all__ = ["Spans", "fit_line", "mean", "mean_of_known", "median", "overlap_s", "percentile", "required"]

FEW = 8
"""Add up so many spans one by one, which is exact."""


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of an empty series."""
    return math.fsum(values) / len(values) if values else None


def median(values: Sequence[float]) -> float | None:
    """Return the middle value; None of an empty series."""
    return percentile(values, 0.5) if values else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share (0 to 1) of a non-empty series lies, with the linear interpolation of NumPy."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None when there are none."""
    return mean([float(value) for value in values if value is not None])


def required(value: float | None) -> float:
    """Return `value`, which the caller knows is not None: tells the type checker so."""
    assert value is not None
    return value


def overlap_s(begin_s: float, end_s: float, other_begin_s: float, other_end_s: float) -> float:
    """Return how many seconds two intervals have in common."""
    return max(0.0, min(end_s, other_end_s) - max(begin_s, other_begin_s))


class Spans:
    """Spans of time, in any order, that may overlap: how much of them lies between two times, whatever their number.

    spans: pairs of begin and end. Those of no length are left out.

        Spans([(0.0, 2.0), (1.0, 3.0)]).within(1.5, 9.0)  # 2.0
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._pairs = sorted((begin, end) for begin, end in spans if end > begin)
        self._begins = [begin for begin, _ in self._pairs]
        self._ends = sorted(end for _, end in self._pairs)
        self._sum_of_begins = [0.0, *accumulate(self._begins)]
        self._sum_of_ends = [0.0, *accumulate(self._ends)]

    def within(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of all spans between two times. Where several overlap, the seconds of each count."""
        first, last = bisect_left(self._begins, begin_s), bisect_left(self._begins, end_s)
        if first == bisect_right(self._ends, begin_s) and last - first <= FEW:  # all that reach here begin here
            return math.fsum(overlap_s(begin_s, end_s, *pair) for pair in self._pairs[first:last])
        return max(0.0, self._until(end_s) - self._until(begin_s)) if end_s > begin_s else 0.0

    def touches(self, begin_s: float, end_s: float) -> bool:
        """Return whether a span has begun before `end_s` and not ended by `begin_s`."""
        return bisect_left(self._begins, end_s) > bisect_right(self._ends, begin_s)

    def _until(self, time_s: float) -> float:
        """Return the seconds of all spans up to a time: since their begins, less those since their ends."""
        begun, ended = bisect_left(self._begins, time_s), bisect_left(self._ends, time_s)
        return (begun - ended) * time_s - (self._sum_of_begins[begun] - self._sum_of_ends[ended])


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and r² of the least-squares line through (x, y) points; (0, 0) when x or y does not vary."""
    count = len(points)
    mean_x = math.fsum(x for x, _ in points) / count
    mean_y = math.fsum(y for _, y in points) / count
    xx = math.fsum((x - mean_x) ** 2 for x, _ in points)
    yy = math.fsum((y - mean_y) ** 2 for _, y in points)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return (xy / xx, xy * xy / (xx * yy)) if xx > 0 and yy > 0 else (0.0, 0.0)
