"""Checks of a diagnosis that the tests of all rules share."""

from __future__ import annotations

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.model import SHARES, Diagnosis, Fix
from headrace.session.model import Session


def fix(diagnosis: Diagnosis, start: str) -> Fix:
    """Return the first fix whose id begins with `start`."""
    return next(item for item in diagnosis.fixes if item.id.startswith(start))


def check(session: Session, verdict: str) -> Diagnosis:
    """Diagnose a session, and check the verdict and what holds for every diagnosis."""
    diagnosis = diagnose(session)
    assert diagnosis.verdict == verdict, (diagnosis.verdict, diagnosis.findings)
    assert diagnosis.verdict in KINDS
    assert diagnosis.primary is not None
    assert diagnosis.primary.evidence
    assert sum(diagnosis.share_of_step.values()) == pytest.approx(1)
    assert list(diagnosis.share_of_step) == list(SHARES)
    assert all(share >= 0 for share in diagnosis.share_of_step.values())
    return diagnosis
