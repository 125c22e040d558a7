"""The order of causes: which one is the verdict."""

from __future__ import annotations

import pytest
from diagnosis_checks import check
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Session
from session_factory import make_session


def kinds(session: Session) -> list[str]:
    return [found.kind for found in diagnose(session).findings]


@pytest.mark.parametrize(
    ("throttled", "order"),
    [(0.2, ["CPU_PREP", "CPU_QUOTA"]), (0.6, ["CPU_QUOTA", "CPU_PREP"])],
    ids=["less than half of the input's share", "more than half"],
)
def test_cause_outside_the_job_leads_from_half_of_the_inside_share(throttled: float, order: list[str]) -> None:
    assert kinds(make_session(workers=1, cpu_s=0.03, compute_s=0.015, cores=4, throttled_share=throttled)) == order


@pytest.mark.parametrize(("throttled", "verdict"), [(0.06, "COMPUTE_BOUND"), (0.12, "CPU_QUOTA")])
def test_small_cause_outside_the_job_stands_behind_compute_bound(throttled: float, verdict: str) -> None:
    diagnosis = check(make_session(workers=1, cpu_s=0.001, compute_s=0.1, throttled_share=throttled), verdict)
    assert "CPU_QUOTA" in [found.kind for found in diagnosis.findings]
