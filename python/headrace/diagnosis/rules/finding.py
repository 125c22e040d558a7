"""Build findings, and write durations in their evidence."""

from __future__ import annotations

from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.model import Finding

__all__ = ["duration", "make_finding"]


def make_finding(kind: str, share: float | None, *evidence: str) -> Finding:
    """A finding with the verdict's own words as its summary."""
    return Finding(kind, None if share is None else round(min(1.0, max(0.0, share)), 4), evidence, summary=KINDS[kind].summary)


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
