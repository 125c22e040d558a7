"""When the GPU of a host worked: its start, its phases of work, and the phases between them in which it stood idle.

Curves come in points of half a second to an hour, and work comes in bursts: a GPU that waits for each batch is busy one second
in three. So work is what lies between two moments with a kernel, unless they are minutes and many usual gaps apart.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.stats import median, percentile
from headrace.launch.finished_job.times import JobTimes, Spans
from headrace.launch.finished_job.use import HostUse

__all__ = ["Work", "find_work", "work_level"]

ACTIVE_PART, ACTIVE_LEAST = 0.05, 0.02
"""Count a point as work from this part of the 90th percentile of such points on, and from this share on."""

TEST_PART, TEST_POINTS = 0.05, 2
"""Take the first points for a test of the GPU if they are at most this part of all work, or so few."""

TEST_GAP_S, TEST_GAP = 120.0, 1.5
"""And if the time without work after them lasts so long, and this many times longer than any other."""

PAUSE_S, PAUSE_POINTS, PAUSE_GAPS = 120.0, 3, 8.0
"""Time without work is a phase of its own if it lasts so long, so many points, and so many usual gaps between its moments."""

SEEN = 0.5
"""And if points show it for this part of it, of the part of the training that has points: what was not seen was not idle."""

USUAL = 0.8
"""The usual gap is this percentile of those between moments of work: most may lie within bursts."""

PHASE_S, PHASE_POINTS = 60.0, 3
"""Phases of work last so long, and so many points. Shorter ones are bursts: the time between them belongs to the work."""


@dataclass(frozen=True, slots=True)
class Work:
    """The training of one host. start_s: seconds before the first work, over all attempts; None where no GPU was measured.

    spans: phases of work; the whole training where no GPU tells. pauses: phases between and after them without work.
    """

    spans: Spans
    start_s: float | None
    pauses: Spans = ()


def work_level(values: Sequence[float]) -> float | None:
    """Return the use from which on a point of a GPU's curve is work; None if no point is."""
    active = [value for value in values if value >= ACTIVE_LEAST]
    return max(ACTIVE_LEAST, ACTIVE_PART * percentile(active, 0.9)) if active else None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt from its first work to its end, with the moments of its work, and of all its points."""

    begin_s: float
    end_s: float
    moments: list[float]
    times_s: list[float]


def find_work(use: HostUse, times: JobTimes) -> Work:
    """Return when the GPU of a host worked in the training of all attempts."""
    series = times.in_training(use.gpu, lasts_s=use.interval_s) if use.gpu else ()
    if not series:
        return Work(times.trainings, None)
    level = work_level([value for _, value in series])
    if level is None:
        return Work(times.trainings, 0.0)
    start_s, attempts = 0.0, list[_Attempt]()
    for begin, end in times.trainings:
        points = series[bisect_left(series, (begin,)) : bisect_left(series, (end,))]
        times_s = [time for time, _ in points]
        moments = _without_test([time for time, value in points if value >= level], times_s, use.interval_s)
        if not moments:  # an attempt that was taken before its first step
            start_s += end - begin
            continue
        # The first whole point may begin up to an interval after the status did.
        moment = begin if moments[0] == points[0][0] else moments[0]
        start_s += moment - begin
        attempts.append(_Attempt(moment, end, moments, times_s))
    gaps = [after - before for one in attempts for before, after in itertools.pairwise(one.moments)]
    least_s = max(
        PAUSE_S, PAUSE_POINTS * use.interval_s, PAUSE_GAPS * (percentile(gaps, USUAL) - use.interval_s) if gaps else 0.0
    )
    spans, pauses = _phases(attempts, use.interval_s, least_s)
    lengths = [end - begin for begin, end in spans]
    if (median(lengths) or 0.0) < max(PHASE_S, PHASE_POINTS * use.interval_s):
        return Work(tuple((one.begin_s, one.end_s) for one in attempts), start_s)
    return Work(spans, start_s, pauses)


def _seen_s(times_s: list[float], begin_s: float, end_s: float, interval_s: float) -> float:
    """Return how much of the time between two moments points show."""
    return min(end_s - begin_s, interval_s * (bisect_left(times_s, end_s) - bisect_left(times_s, begin_s)))


def _without_test(moments: list[float], times_s: list[float], interval_s: float) -> list[float]:
    """Return the moments of work without those of a test before it: few, and before by far the longest time without work."""
    pairs = enumerate(itertools.pairwise(moments), 1)
    gaps = sorted(((_seen_s(times_s, *pair, interval_s), place) for place, pair in pairs), reverse=True)
    if not gaps:
        return moments
    longest_s, place = gaps[0]
    next_s = gaps[1][0] if len(gaps) > 1 else interval_s
    is_test = place <= max(TEST_POINTS, TEST_PART * len(moments)) and 2 * place < len(moments)
    return moments[place:] if is_test and longest_s >= max(TEST_GAP_S, TEST_GAP * next_s) else moments


def _phases(attempts: Sequence[_Attempt], interval_s: float, least_s: float) -> tuple[Spans, Spans]:
    """Return the phases of work, and those of at least `least_s` seconds without."""
    spans, pauses = [], []
    for one in attempts:
        begin_s, end_s = one.begin_s, one.end_s
        part = SEEN * _seen_s(one.times_s, begin_s, end_s, interval_s) / (end_s - begin_s)
        for before, after in itertools.pairwise((*one.moments, end_s)):
            idle_s = min(before + interval_s, after)
            # Minutes without a point are not known to be idle: the seconds of the points between count.
            seen_s = _seen_s(one.times_s, before, after, interval_s) - interval_s
            if seen_s >= max(least_s, part * (after - idle_s)):
                spans.append((begin_s, idle_s))
                pauses.append((idle_s, after))
                begin_s = after
        if begin_s < end_s:
            spans.append((begin_s, end_s))
    return tuple(spans), tuple(pauses)
