"""Two finished jobs side by side: seconds an epoch, training and billed time, price, and the 95th percentile of each curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.diagnosis.result.model import Diagnosis
from headrace.report.text import numbers
from headrace.session.model import Session

__all__ = ["JobFigure", "compared_epochs", "finished_job_of", "job_figures"]


@dataclass(frozen=True, slots=True)
class JobFigure:
    """One figure of two jobs. unit: "s", "USD" or "%". None: not measured."""

    name: str
    unit: str
    before: float | None
    after: float | None

    def text(self, value: float | None) -> str:
        """Return one of its values with the unit."""
        if value is None:
            return numbers.NOT_MEASURED
        if self.unit == "USD":
            return f"${value:,.2f}"
        return f"{value:,.1f} s" if self.unit == "s" else f"{value:.0f} %"

    @property
    def change_words(self) -> str:
        """Return the change in words: per cent of a time or price, points of a share."""
        if self.before is None or self.after is None:
            return ""
        if self.unit == "%":
            points = round(self.after) - round(self.before)
            return "none" if points == 0 else f"{'+' if points > 0 else '−'}{abs(points)} points"
        if self.before <= 0:
            return ""
        percent = round(100 * (self.after / self.before - 1))
        return "±0 %" if percent == 0 else f"{'+' if percent > 0 else '−'}{abs(percent):,} %"


def finished_job_of(session: Session | None) -> Mapping[str, Any] | None:
    """Return the account of a SageMaker job that already ran; None if there is no session, or it was not made from one."""
    job = session.facts.get("sagemaker_job") if session is not None else None
    return job if isinstance(job, Mapping) else None


def compared_epochs(before: Session, after: Session) -> tuple[float, float] | None:
    """Return the seconds of an epoch of two finished jobs; None unless one and the same metric of theirs tells both."""
    old, new = (finished_job_of(session) or {} for session in (before, after))
    before_s, after_s = _number(old.get("epoch_s")), _number(new.get("epoch_s"))
    return (before_s, after_s) if before_s and after_s and old.get("epoch_metric") == new.get("epoch_metric") else None


def job_figures(before: Session, after: Session, was: Diagnosis, now: Diagnosis) -> tuple[JobFigure, ...]:
    """Return the figures of two finished jobs that at least one of them has; none if one session is no such job."""
    old, new = finished_job_of(before), finished_job_of(after)
    if old is None or new is None:
        return ()
    found = [JobFigure(name, unit, _number(old.get(key)), _number(new.get(key))) for name, unit, key in _FIGURES]
    metrics = old.get("epoch_metric"), new.get("epoch_metric")
    if all(metrics) and metrics[0] != metrics[1]:
        found[0] = replace(found[0], name=f"an epoch ({metrics[0]}, {metrics[1]})")
    found += _percentiles(was, now)
    return tuple(one for one in found if one.before is not None or one.after is not None)


_FIGURES = (
    ("an epoch", "s", "epoch_s"),
    ("training", "s", "training_s"),
    ("billed", "s", "billable_s"),
    ("price", "USD", "usd"),
    ("paid without work on the GPU", "USD", "wasted_usd"),
)


def _percentiles(was: Diagnosis, now: Diagnosis) -> Iterator[JobFigure]:
    old, new = ({row.name: row.p95 for row in one.percentiles} for one in (was, now))
    for name in dict.fromkeys((*old, *new)):
        yield JobFigure(f"{name}, 95th percentile", "%", old.get(name), new.get(name))


def _number(value: object) -> float | None:
    """A session may come from anybody."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf else None
