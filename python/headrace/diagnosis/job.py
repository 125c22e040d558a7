"""The measured job: everything that rules and fixes look at."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.diagnosis.measure import Machine, Rank
from headrace.diagnosis.step_model import StepModel
from headrace.session.model import Session

__all__ = ["MeasuredJob"]


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """Everything the rules look at. `rank` is the one that sets the pace, normally rank 0."""

    session: Session
    ranks: tuple[Rank, ...]
    rank: Rank
    machine: Machine
    model: StepModel | None

    def share(self, seconds: float) -> float:
        """Of the step."""
        return max(0.0, min(1.0, seconds / self.rank.step_s)) if self.rank.step_s > 0 else 0.0
