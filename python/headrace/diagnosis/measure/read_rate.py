"""The highest rate at which storage delivers a job's own files, from the read sweep in a session."""

from __future__ import annotations

from headrace.session.model import Session

__all__ = ["best_rate"]


def best_rate(session: Session) -> float | None:
    """Return the bytes per second of the best number of readers, or None without a read sweep."""
    rates = session.facts.get("read_sweep") or {}
    return max(rates.values(), default=None)
