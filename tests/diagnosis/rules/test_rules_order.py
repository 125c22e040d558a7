"""The order of causes: which one is the verdict."""

from __future__ import annotations

import pytest
from diagnosis_checks import check
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis
from headrace.report.text.screen import first_screen
from headrace.session.model import Event, Session
from session_factory import MAIN_PID, make_session


def kinds(session: Session) -> list[str]:
    return [found.kind for found in diagnose(session).findings]


@pytest.mark.parametrize(
    ("queue_s", "order"),
    [(0.01, ["CPU_PREP", "CPU_QUOTA"]), (0.09, ["CPU_QUOTA", "CPU_PREP"])],
    ids=["less than the input's share", "more"],
)
def test_largest_share_leads_whether_the_cause_is_inside_the_job_or_outside(queue_s: float, order: list[str]) -> None:
    """A quota stops a worker while it makes a batch."""
    stopped = queue_s / (0.03 + queue_s)
    quota = {"queue_share": stopped, "throttled_share": stopped}
    assert kinds(make_session(workers=1, cpu_s=0.03, queue_s=queue_s, compute_s=0.015, cores=4, **quota)) == order


@pytest.mark.parametrize(("throttled", "verdict"), [(0.3, "COMPUTE_BOUND"), (1.0, "CPU_QUOTA")])
def test_small_cause_outside_the_job_stands_behind_compute_bound(throttled: float, verdict: str) -> None:
    diagnosis = check(make_session(workers=1, cpu_s=0.001, compute_s=0.1, throttled_share=throttled), verdict)
    assert "CPU_QUOTA" in [found.kind for found in diagnosis.findings]


def test_other_programs_that_take_less_than_half_of_what_computing_takes_are_no_headline() -> None:
    """Other programs at 9 to 17 % once stood above 62 to 85 % of computing."""

    def diagnosed(queue_s: float) -> Diagnosis:
        session = make_session(workers=2, cpu_s=0.01, compute_s=0.05, compute_queue_s=queue_s, cores=4, foreign_cores=2.0)
        return diagnose(session)

    minor, major = diagnosed(0.009), diagnosed(0.022)
    assert [found.kind for found in minor.findings] == ["COMPUTE_BOUND", "EXTERNAL_CPU"]
    assert minor.findings[0].share == pytest.approx(minor.share_of_step["compute"], abs=1e-3), "the headline is the bar's"
    assert major.verdict == "EXTERNAL_CPU"
    assert "next: other programs, 18 %." in first_screen(minor).headline


def test_pauses_lead_from_a_fifth_of_the_step() -> None:
    def verdict(pause_s: float) -> str:
        pauses = tuple(Event(MAIN_PID, "save", 2.5 + 0.5 * number, pause_s) for number in range(10))
        return diagnose(make_session(workers=2, cpu_s=0.002, compute_s=0.05, events=pauses)).verdict

    assert (verdict(0.06), verdict(0.4)) == ("COMPUTE_BOUND", "PERIODIC_STALL")


def test_a_second_larger_cause_that_does_not_lead_leaves_the_verdict_to_the_wait_for_input() -> None:
    """Pauses of less than a fifth of the step once made a job COMPUTE_BOUND that waits for input."""
    pauses = tuple(Event(MAIN_PID, "save", 2.0 + 0.35 * number, 0.06) for number in range(40))
    session = make_session(workers=2, cpu_s=0.135, compute_s=0.05, cores=8, events=pauses)
    found = diagnose(session)
    shares = {one.kind: one.share for one in found.findings}
    assert found.verdict == "CPU_PREP"
    assert (shares["PERIODIC_STALL"] or 0.0) > (shares["CPU_PREP"] or 0.0), "the verdict is not the largest share"


def test_a_cause_outside_the_job_that_does_not_lead_hides_the_smaller_ones_inside() -> None:
    options = {"cpu_s": 0.09, "queue_s": 0.03, "compute_s": 0.05, "compute_queue_s": 0.012, "cores": 2, "foreign_cores": 1.0}
    found = diagnose(make_session(workers=2, **options))
    assert [one.kind for one in found.findings] == ["COMPUTE_BOUND", "EXTERNAL_CPU", "CPU_SATURATED"]
