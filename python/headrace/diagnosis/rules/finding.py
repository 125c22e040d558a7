"""Build findings, and write durations in their evidence."""

from __future__ import annotations

from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding

__all__ = ["duration", "make_finding"]


def make_finding(kind: str, share: float | None, *evidence: str) -> Finding:
    """Return a finding with the summary of its kind. `share` is a share of the step, 0 to 1; `evidence` holds sentences."""
    return Finding(kind, None if share is None else round(min(1.0, max(0.0, share)), 4), evidence, summary=KINDS[kind].summary)


def duration(seconds: float) -> str:
    """Return a time in words: 3.1 ms, 1.25 s."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"
