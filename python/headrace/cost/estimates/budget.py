"""Choose a machine and a purchase by deadline, budget and number of instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.cost.estimates.runs import Row

__all__ = ["Choice", "Limits", "choose", "pareto"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run: hours from ordering the machine to the last step, and USD, start-up included. None: no limit."""

    deadline_hours: float | None = None
    budget_usd: float | None = None

    def allow(self, row: Row) -> bool:
        """Return whether the run takes at most `deadline_hours` and costs at most `budget_usd` on this row's machine."""
        in_time = self.deadline_hours is None or row.total_hours <= self.deadline_hours
        return in_time and (self.budget_usd is None or row.best_usd <= self.budget_usd)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen row (None: no row is within the limits), and the reason in words.

    nearest: where no row is within the limits, the row that exceeds them by the smallest factor.
    """

    row: Row | None
    reason: str
    nearest: Row | None = None


def choose(rows: Sequence[Row], limits: Limits) -> Choice:
    """Return the cheapest row within the limits; with a budget and no deadline the fastest one."""
    allowed = [row for row in rows if limits.allow(row)]
    if not allowed:
        return Choice(None, "no instance type keeps the limits", _nearest(rows, limits))
    if limits.budget_usd is not None and limits.deadline_hours is None:
        return Choice(min(allowed, key=lambda row: (row.total_hours, row.best_usd)), "the fastest within the budget")
    reason = "the cheapest within the deadline" if limits.deadline_hours is not None else "the cheapest"
    return Choice(min(allowed, key=lambda row: (row.best_usd, row.total_hours)), reason)


def _nearest(rows: Sequence[Row], limits: Limits) -> Row | None:
    def excess(row: Row) -> float:
        late = row.total_hours / limits.deadline_hours if limits.deadline_hours else 0.0
        dear = row.best_usd / limits.budget_usd if limits.budget_usd else 0.0
        return max(late, dear)

    return min(rows, key=excess, default=None)


def pareto(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that no other row beats in both time and money, the fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.total_hours, row.best_usd)):
        if not best or row.best_usd < best[-1].best_usd:
            best.append(row)
    return best
