"""How fast the storage of a job's own files can be read at most, from the read sweep that a session holds."""

from __future__ import annotations

from headrace.session.model import Session

__all__ = ["best_rate"]


def best_rate(session: Session) -> float | None:
    """The most bytes per second that any number of readers got, or None where that was not measured."""
    rates = session.facts.get("read_sweep") or {}
    return max(rates.values(), default=None)
