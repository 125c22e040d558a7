"""The steps that took much longer than the others, each with the pause or wait that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.diagnosis.measure.stats import median, percentile
from headrace.diagnosis.result.model import Timeline, TimelineEvent

__all__ = ["EVENT_WORDS", "SLOW_FACTOR", "SlowStep", "slow_steps"]

SLOW_FACTOR = 2.0
"""List a step that takes more than this many times the median. SageMaker's notebook views use the same factor."""

P90_FACTOR = 1.25
"""A listed step must also exceed this many times the 90th percentile: waits in every n-th step are a pattern, no outliers."""

MAX_SLOW_STEPS = 8
"""List at most this many slow steps, the longest ones."""

EVENT_WORDS = {
    "gc": "garbage collection",
    "save": "checkpoint",
    "startup": "start-up",
    "epoch_start": "start of an epoch",
    "epoch_end": "end of an epoch",
    "workers_start": "start of the workers",
    "validation": "validation",
}


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One slow step of the timeline. number: counted from 1. wait_s: the part of `step_s` spent waiting. cause: in words."""

    number: int
    start_s: float
    step_s: float
    wait_s: float
    cause: str


def slow_steps(timeline: Timeline, *, limit: int = MAX_SLOW_STEPS) -> tuple[SlowStep, ...]:
    """Return the `limit` longest slow steps in order of time: over `SLOW_FACTOR` × median, `P90_FACTOR` × 90th percentile."""
    totals = [wait + compute for wait, compute in zip(timeline.wait_s, timeline.compute_s, strict=True)]
    typical_s, typical_wait_s = median(totals), median(timeline.wait_s)
    if typical_s is None or typical_wait_s is None:
        return ()
    threshold_s = max(SLOW_FACTOR * typical_s, P90_FACTOR * percentile(totals, 0.9))
    slow = [index for index, total in enumerate(totals) if total > threshold_s]
    longest = sorted(slow, key=lambda index: -totals[index])[:limit]
    return tuple(
        SlowStep(
            number=index * timeline.stride + 1,
            start_s=timeline.start_s[index],
            step_s=totals[index],
            wait_s=timeline.wait_s[index],
            cause=_cause(timeline, index, totals[index], totals[index] - typical_s, timeline.wait_s[index] - typical_wait_s),
        )
        for index in sorted(longest)
    )


def _cause(timeline: Timeline, index: int, step_s: float, excess_s: float, wait_excess_s: float) -> str:
    """Return in words the longest pause within the step, else the part (wait or compute) in which the excess time lies."""
    start_s = timeline.start_s[index]
    end_s = start_s + step_s * timeline.stride
    overlapping = [event for event in timeline.events if event.start_s < end_s and event.start_s + event.duration_s > start_s]
    longest = max(overlapping, key=lambda event: event.duration_s, default=None)
    if longest is not None and longest.duration_s >= 0.25 * excess_s:
        return _event_words(longest)
    if wait_excess_s >= 0.5 * excess_s:
        return "waited for the first batch" if index == 0 else "waited for input"
    return "long compute, cause unknown"


def _event_words(event: TimelineEvent) -> str:
    return EVENT_WORDS.get(event.name, event.name.replace("_", " "))
