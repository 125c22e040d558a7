"""`diagnose --verify`: how fixes are applied, measured gains, and what the log says about predictions and disturbances."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.attach.overrides import OVERRIDES_VARIABLE
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fixes.fix_kind import Rerun
from headrace.diagnosis.model import Diagnosis, Fix
from headrace.profiling import verify_fixes
from headrace.session.model import Session
from session_factory import make_session


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Diagnosis, str]]:
    """Measure the fixes of `first`; `unchanged` and `changed` stand for further runs without and with a fix."""

    def run(
        first: Session, unchanged: Session, changed: Session, overridden: tuple[str, ...] = ("num_workers",)
    ) -> tuple[Diagnosis, str]:
        lines: list[str] = []
        monkeypatch.setattr(verify_fixes, "watch", lambda *arguments, **options: None)
        applied = replace(changed, loaders=tuple(replace(one, overridden=overridden) for one in changed.loaders))
        monkeypatch.setattr(Session, "load", lambda folder: unchanged if "unchanged" in folder.name else applied)
        return verify_fixes.remeasure_fixes(
            diagnose(first), first, tmp_path, command=first.command, log=lines.append
        ), "\n".join(lines)

    return run


SLOW = make_session(workers=1, cpu_s=0.06, compute_s=0.015)
FAST = make_session(workers=4, cpu_s=0.06, compute_s=0.015)


def test_a_prediction_that_holds_keeps_its_confidence(verify) -> None:
    found, log = verify(SLOW, SLOW, FAST)
    assert found.confidence == diagnose(SLOW).confidence
    assert found.fixes[0].verified_img_s == pytest.approx(diagnose(FAST).img_s, rel=0.01)
    assert "wrong" not in log and "unsure" not in log


def test_a_prediction_that_fails_on_a_quiet_machine_costs_confidence(verify) -> None:
    found, log = verify(SLOW, SLOW, SLOW)
    assert found.confidence < diagnose(SLOW).confidence
    assert "the step model is wrong for this job" in log


def test_a_prediction_that_fails_on_a_busy_machine_keeps_its_confidence(verify) -> None:
    busy = make_session(workers=1, cpu_s=0.06, compute_s=0.015, foreign_cores=3.0)
    found, log = verify(SLOW, SLOW, busy)
    assert found.confidence == diagnose(SLOW).confidence
    assert "of the CPU meanwhile" in log and "wrong" not in log


def test_a_fix_whose_run_gave_no_steps_stays_unmeasured(verify) -> None:
    found, log = verify(SLOW, SLOW, replace(SLOW, steps=()))
    assert found.fixes[0].verified_img_s is None
    assert "too few steps" in log


def test_a_loader_that_ignores_the_change_is_not_measured(verify) -> None:
    found, log = verify(SLOW, SLOW, FAST, overridden=())
    assert found.fixes[0].id.startswith("num_workers=") and found.fixes[0].verified_img_s is None
    assert "ignores the change" in log


def test_only_fixes_that_need_no_edit_can_be_applied() -> None:
    loader = make_session(workers=2).loaders[0]
    more_workers = verify_fixes.launch_with(Fix("num_workers=6", ""), loader)
    assert more_workers is not None
    assert json.loads(dict(more_workers.env)["HEADRACE_OVERRIDES"]) == {
        "match": {"num_workers": 2, "batch_size": 32},
        "set": {"num_workers": 6},
    }
    headrace_run = verify_fixes.launch_with(Fix("headrace_run", ""), loader)
    assert headrace_run is not None and "headrace.accelerate.hook" in headrace_run.hooks
    threads = verify_fixes.launch_with(Fix("threads=1", ""), loader)
    assert threads is not None and "headrace.attach.overrides" in threads.hooks
    assert json.loads(dict(threads.env)["HEADRACE_OVERRIDES"]) == {"threads": 1}
    assert dict(threads.env)["OMP_NUM_THREADS"] == dict(threads.env)["OPENBLAS_NUM_THREADS"] == "1"
    assert verify_fixes.launch_with(Fix("pack", ""), loader) is None
    assert verify_fixes.launch_with(Fix("remove_sync", ""), loader) is None


def test_a_rerun_applies_threads_and_loader_arguments_together(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Rerun(loader_arguments={"num_workers": 1}, environment={"OMP_NUM_THREADS": "1"}, threads=1)
    monkeypatch.setattr(verify_fixes, "rerun_with", lambda *_: both)
    launch = verify_fixes.launch_with(Fix("threads=1", ""), make_session().loaders[0])
    assert launch is not None and launch.sets_loader_arguments
    settings = json.loads(dict(launch.env)[OVERRIDES_VARIABLE])
    assert settings["threads"] == 1 and settings["set"] == {"num_workers": 1} and "match" in settings
    assert dict(launch.env)["OMP_NUM_THREADS"] == "1"
