"""The first verdict while the command still runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from headrace.diagnosis.result.model import Diagnosis
from headrace.profiling.first_verdict import FirstVerdict
from headrace.session.model import Session
from session_factory import example_session


def test_the_first_verdict_comes_from_a_growing_session(tmp_path: Path) -> None:
    diagnoses: list[Diagnosis] = []
    called = threading.Event()

    def on_verdict(diagnosis: Diagnosis) -> None:
        diagnoses.append(diagnosis)
        called.set()

    with FirstVerdict(tmp_path, on_verdict) as first:
        example_session().save(tmp_path)
        assert called.wait(20)
    assert [diagnosis.verdict for diagnosis in diagnoses] == ["CPU_PREP"]
    assert first.after_s is not None


def test_there_is_no_first_verdict_without_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.profiling.first_verdict.POLL_S", 0.05)
    Session(command=("a",)).save(tmp_path)
    diagnoses: list[Diagnosis] = []
    with FirstVerdict(tmp_path, diagnoses.append) as first:
        threading.Event().wait(0.5)  # several looks at the session
    assert diagnoses == []
    assert first.after_s is None
