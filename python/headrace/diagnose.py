"""From a session to a diagnosis: what sets the pace of the step, how sure that is, and what each change would bring."""

from __future__ import annotations

from headrace.diagnosis import (
    SHARES,
    VERDICTS,
    Diagnosis,
    Finding,
    Fix,
    HeatMap,
    Percentiles,
    RankRow,
    StageRow,
    Timeline,
    TimelineEvent,
    Verdict,
)

__all__ = [
    "SHARES",
    "VERDICTS",
    "Diagnosis",
    "Finding",
    "Fix",
    "HeatMap",
    "Percentiles",
    "RankRow",
    "StageRow",
    "Timeline",
    "TimelineEvent",
    "Verdict",
]
