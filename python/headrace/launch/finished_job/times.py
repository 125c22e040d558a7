"""Where the time of a job went: its statuses, the attempts of a spot job, and what of it was billed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.launch.finished_job.documents import Series, moment_s

__all__ = ["BILLED", "JobTimes", "Spans", "job_times"]

Spans = tuple[tuple[float, float], ...]
"""Pairs of begin and end, Unix times."""

MOST_TRAININGS = 1000
"""Look at so many trainings of a job at most: each curve of each host is divided by them."""

BILLED = ("Downloading", "Training", "Uploading")
"""Statuses whose time is billed: SageMaker counts from TrainingStartTime, which is after Starting, to TrainingEndTime."""


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Times of a job in seconds; moments are Unix times.

    seconds: by status. trainings: begin and end of the training of each attempt. interruptions: of a spot job.
    problems: sentences about transitions that cannot be read.
    """

    seconds: Mapping[str, float]
    trainings: Spans
    begin_s: float | None
    end_s: float | None
    interruptions: int
    problems: tuple[str, ...] = ()

    @property
    def billed_s(self) -> float:
        """Seconds in which machines were paid for, before the discount of spot."""
        return sum(self.seconds.get(status, 0.0) for status in BILLED)

    @property
    def training_s(self) -> float:
        """Seconds of training, over all attempts."""
        return self.seconds.get("Training", 0.0)

    def in_training(self, series: Series, *, lasts_s: float, trainings: Spans | None = None) -> Series:
        """Return the points whose whole interval, of `lasts_s` seconds, lies in the training of an attempt."""
        spans = sorted(self.trainings if trainings is None else trainings)
        begins = [begin for begin, _ in spans]
        places = (bisect_right(begins, time) - 1 for time, _ in series)  # of the last training that had begun
        return tuple(
            point
            for point, place in zip(series, places, strict=True)
            if place >= 0 and point[0] + lasts_s <= spans[place][1] + 0.5
        )


def job_times(description: Mapping[str, Any], *, now_s: float = 0.0) -> JobTimes:
    """Return the times of a job from its SecondaryStatusTransitions. now_s: until when a job that still runs is known."""
    seconds: dict[str, float] = {}
    trainings: list[tuple[float, float]] = []
    problems: list[str] = []
    begins: list[float] = []
    ends: list[float] = []
    interruptions = 0
    transitions = [one for one in description.get("SecondaryStatusTransitions") or [] if isinstance(one, dict)]
    for place, one in enumerate(transitions):
        status = str(one.get("Status"))
        interruptions += status == "Interrupted"
        try:
            begin = moment_s(one.get("StartTime"))
            end = moment_s(one.get("EndTime") or one["StartTime"])
            if place + 1 == len(transitions) and not one.get("EndTime"):
                # AWS modifies a job when its status changes, and not while it trains.
                end = max(now_s, moment_s(description.get("LastModifiedTime") or end))
        except (ValueError, KeyError) as reason:
            problems.append(f"the times of the status {status} cannot be read: {reason}")
            continue
        end = max(begin, end)
        begins.append(begin)
        ends.append(end)
        seconds[status] = seconds.get(status, 0.0) + end - begin
        if status == "Training" and end > begin:
            trainings.append((begin, end))
    merged = _merged(trainings)
    if len(merged) > MOST_TRAININGS:
        problems.append(f"of {len(merged):,} attempts the first {MOST_TRAININGS:,} are looked at")
    return JobTimes(
        seconds, merged[:MOST_TRAININGS], min(begins, default=None), max(ends, default=None), interruptions, tuple(problems)
    )


def _merged(spans: list[tuple[float, float]]) -> Spans:
    """Return the union of spans, in order: one attempt follows another, whatever a description says."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)
