"""Statistics of a series of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["fit_line", "mean", "mean_of_known", "median", "overlap_s", "percentile", "required"]


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


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and r² of the least-squares line through (x, y) points; (0, 0) when x or y does not vary."""
    count = len(points)
    mean_x = math.fsum(x for x, _ in points) / count
    mean_y = math.fsum(y for _, y in points) / count
    xx = math.fsum((x - mean_x) ** 2 for x, _ in points)
    yy = math.fsum((y - mean_y) ** 2 for _, y in points)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return (xy / xx, xy * xy / (xx * yy)) if xx > 0 and yy > 0 else (0.0, 0.0)
