"""`diagnose --verify`: how fixes are applied, measured gains, and what the log says about predictions and disturbances."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.attach.experiments.overrides import OVERRIDES_VARIABLE
from headrace.attach.launch import FinishedCommand
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.fixes.fix_kind import Rerun
from headrace.diagnosis.result.model import Diagnosis, Fix
from headrace.profiling import verify_fixes
from headrace.report.pages import html
from headrace.report.text import terminal
from headrace.session.model import Session
from session_factory import make_session


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Diagnosis, str]]:
    """Measure the fixes of `first`; `unchanged` and `changed` stand for further runs without and with a fix."""

    def run(
        first: Session, unchanged: Session, changed: Session, overridden: tuple[str, ...] = ("num_workers",)
    ) -> tuple[Diagnosis, str]:
        lines: list[str] = []
        monkeypatch.setattr(verify_fixes, "watch", lambda *arguments, **options: ENDED)
        applied = replace(changed, loaders=tuple(replace(one, overridden=overridden) for one in changed.loaders))
        monkeypatch.setattr(Session, "load", lambda folder: unchanged if "unchanged" in folder.name else applied)
        return verify_fixes.remeasure_fixes(
            diagnose(first), first, tmp_path, command=first.command, log=lines.append
        ), "\n".join(lines)

    return run


ENDED = FinishedCommand(("python", "train.py"), -15, 1, 0.0, 10.0, timed_out=True)
SLOW = make_session(workers=1, cpu_s=0.06, compute_s=0.015)
FAST = make_session(workers=4, cpu_s=0.06, compute_s=0.015)


def test_a_prediction_that_holds_keeps_its_confidence(verify) -> None:
    found, log = verify(SLOW, SLOW, FAST)
    assert found.confidence == diagnose(SLOW).confidence
    assert found.fixes[0].verified_img_s == pytest.approx(diagnose(FAST).img_s, rel=0.01)
    assert "wrong" not in log and "unsure" not in log


def test_one_measured_rate_is_shown_with_the_way_it_was_scaled(verify) -> None:
    """The machine has become faster: a rate with the fix is no measure for the watched run, the gain is."""
    faster = make_session(workers=1, cpu_s=0.03, compute_s=0.015)
    found, log = verify(SLOW, faster, FAST)
    fast, meanwhile, watched = (diagnose(one).img_s or 0.0 for one in (FAST, faster, SLOW))
    (best, *_) = found.fixes
    assert best.verified_img_s == found.reachable_img_s == pytest.approx(watched * fast / meanwhile, rel=0.01)
    words = f"{fast:,.4g} img/s with it, {meanwhile:,.4g} without it meanwhile: {fast / meanwhile:.2f} times the {watched:,.4g}"
    assert best.verified_basis == f"{words} of the watched run"
    assert words in log
    for text in (terminal.render(found, width=120).plain, html.render(found).replace("\xa0", " ")):
        assert words in text


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
    assert threads is not None and "headrace.attach.experiments.overrides" in threads.hooks
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


class FakeRuns:
    """A clock that stands still but for the runs of the command, each of which takes its window and a second more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unchanged: Session, changed: Session, stop_s: float = 1.0) -> None:
        self.now_s, self.windows, self.lines = 100.0, {}, []  # type: ignore[var-annotated]
        self.stop_s, self.interrupted_run = stop_s, 0
        monkeypatch.setattr(verify_fixes, "time", self)
        monkeypatch.setattr(verify_fixes, "watch", self.watch)
        applied = replace(changed, loaders=tuple(replace(one, overridden=("num_workers",)) for one in changed.loaders))
        monkeypatch.setattr(Session, "load", lambda folder: unchanged if "unchanged" in folder.name else applied)

    def monotonic(self) -> float:
        return self.now_s

    def watch(self, command: object, folder: Path, *, time_limit_s: float, **options: object) -> FinishedCommand:
        self.windows[folder.name] = time_limit_s
        self.now_s += time_limit_s + self.stop_s
        interrupted = len(self.windows) == self.interrupted_run
        return replace(ENDED, timed_out=False, stopped_by=signal.SIGINT) if interrupted else ENDED

    def verified(self, session: Session, folder: Path, limit_s: float | None) -> list[str]:
        """Ids of the fixes that are measured within the limit."""
        found = diagnose(session)
        if found.fixes:
            more = (Fix("persistent_workers", "", gain=1.1), Fix("prefetch=4", "", gain=1.5))
            first = replace(found.findings[0], fixes=(*found.findings[0].fixes, *more))
            found = replace(found, findings=(first, *found.findings[1:]))
        verified = verify_fixes.remeasure_fixes(
            found, session, folder, command=session.command, log=self.lines.append, limit_s=limit_s
        )
        return [fix.id for fix in verified.fixes if fix.verified_img_s is not None]


FIXES = ("num_workers=4", "prefetch=4", "persistent_workers")


@pytest.mark.parametrize("limit_s", [5.0, 9.0, 14.0, 30.0, 60.0, 90.0, None])
def test_verify_fits_its_runs_to_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit_s: float | None
) -> None:
    runs = FakeRuns(monkeypatch, SLOW, FAST)
    fixes = list(FIXES)
    verified = runs.verified(SLOW, tmp_path, limit_s)
    words = "\n".join(runs.lines)
    windows = {name: window for name, window in runs.windows.items() if name != "replay"}
    assert limit_s is None or runs.now_s - 100 <= limit_s + 0.01, "the cap is kept"
    assert set(verified) == set(fixes[: len(verified)]), "the best first"
    left_out = fixes[len(verified) :]
    assert all(name in words.partition("left out")[2] for name in left_out) and bool(left_out) == ("left out" in words)
    assert not left_out or "--seconds" in words
    if limit_s is None or limit_s >= 90:
        assert len(verified) == len(fixes) and len(windows) == 2 * len(fixes) + 1
    if limit_s == 5.0:
        assert not verified and not windows
    if limit_s == 9.0:
        assert verified == fixes[:1] and list(windows) == [f"verify-1-{fixes[0].replace('=', '-')}"]
        assert "against the watched run" in words
    if limit_s in (14.0, 30.0):
        assert verified, "shorter windows, and not none"
    assert max(windows.values(), default=0) - min(windows.values(), default=0) < 1e-6


def test_no_fix_is_compared_with_a_watched_run_that_other_programs_slowed_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The programs may have ended since: the fix would get the gain of a free machine."""
    runs = FakeRuns(monkeypatch, SLOW, FAST)
    busy = replace(SLOW, samples=tuple(replace(sample, foreign_cores=2.5) for sample in SLOW.samples))
    assert (diagnose(busy).noise or "").startswith("high")
    assert not runs.verified(busy, tmp_path, 9.0)
    words = "\n".join(runs.lines)
    assert "slowed the watched run" in words and "left out for want of time" in words and "--seconds" in words
    assert runs.verified(busy, tmp_path, 60.0), "beside unchanged runs it is measured"


def test_a_command_that_ends_slowly_keeps_the_cap_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = FakeRuns(monkeypatch, SLOW, FAST, stop_s=6.0)
    runs.verified(SLOW, tmp_path, 60.0)
    assert runs.now_s - 100 <= 60.0
    assert "left out" in "\n".join(runs.lines)


@pytest.mark.parametrize(("run", "verified"), [(1, 0), (2, 0), (3, 0), (4, 1)])
def test_an_interrupted_run_is_the_last_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: int, verified: int) -> None:
    """Ctrl-C ends the command and what measures it: without this, it ended one of thirteen runs."""
    runs = FakeRuns(monkeypatch, SLOW, FAST)
    monkeypatch.setattr(verify_fixes, "needs_replay", lambda *_: False)
    runs.interrupted_run = run
    assert len(runs.verified(SLOW, tmp_path, None)) == verified
    assert len(runs.windows) == run
    assert runs.lines[-1] == "--verify: interrupted: no further fix is measured"


def test_verify_says_why_it_measures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = FakeRuns(monkeypatch, SLOW, FAST)
    assert runs.verified(replace(SLOW, steps=()), tmp_path, None) == []
    assert "gave no rate to compare with" in runs.lines[-1]
    monkeypatch.setattr(verify_fixes, "launch_with", lambda *_: None)
    assert runs.verified(SLOW, tmp_path, None) == []
    assert "without an edit of the script" in runs.lines[-1]
    assert runs.now_s == 100
