"""`diagnose --verify`: what is said of the figures, beside the prediction and beside what else the machine did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.model import Diagnosis
from headrace.profiling import verify_fixes as remeasure
from headrace.session.model import Session
from session_factory import make_session


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Session, Session, Session], tuple[Diagnosis, str]]:
    """Verifies the fixes of one session; another stands for the job run again, and a third for it with any change."""

    def run(first: Session, unchanged: Session, changed: Session) -> tuple[Diagnosis, str]:
        said: list[str] = []
        monkeypatch.setattr(remeasure, "watch", lambda *arguments, **options: None)
        monkeypatch.setattr(Session, "load", lambda folder: unchanged if "unchanged" in folder.name else changed)
        return remeasure.remeasure_fixes(diagnose(first), first, tmp_path, log=said.append), "\n".join(said)

    return run


SLOW = make_session(workers=1, cpu_s=0.06, compute_s=0.015)
FAST = make_session(workers=4, cpu_s=0.06, compute_s=0.015)


def test_a_prediction_that_holds(verify) -> None:
    found, said = verify(SLOW, SLOW, FAST)
    assert found.confidence == diagnose(SLOW).confidence
    assert found.fixes[0].verified_img_s == pytest.approx(diagnose(FAST).img_s, rel=0.01)
    assert "wrong" not in said and "unsure" not in said


def test_a_prediction_that_fails_on_a_quiet_machine_costs_confidence(verify) -> None:
    found, said = verify(SLOW, SLOW, SLOW)
    assert found.confidence < diagnose(SLOW).confidence
    assert "the step model is wrong for this job" in said


def test_a_prediction_that_fails_on_a_busy_machine_says_nothing(verify) -> None:
    busy = make_session(workers=1, cpu_s=0.06, compute_s=0.015, foreign_cores=3.0)
    found, said = verify(SLOW, SLOW, busy)
    assert found.confidence == diagnose(SLOW).confidence
    assert "of the CPU meanwhile" in said and "wrong" not in said


def test_what_nothing_was_measured_of_stays_unverified(verify) -> None:
    found, said = verify(SLOW, SLOW, replace(SLOW, steps=()))
    assert found.fixes[0].verified_img_s is None
    assert "too few steps" in said
