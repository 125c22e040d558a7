"""The benchmark of the diagnosis: kept runs are judged by today's rules, and every job has an expectation."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from headrace.diagnosis.diagnose import diagnose
from headrace.session.model import Session
from headrace.session.standstill import StandingProcess, Standstill, StandstillSample
from session_factory import MAIN_PID, make_session

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.split(".")[0] in ("scenarios", "pages")]:
        del sys.modules[name]
    return importlib.import_module("scenarios.judge")


def keep(folder: Path, name: str, repeat: int, *, fix: str | None = None, traceml: str = "", **run: float) -> Path:
    """One finished run of a job, as the benchmark leaves it."""
    kept = folder / f"{name}-{repeat}"
    make_session(**run).save(kept / "plain")  # type: ignore[arg-type]
    facts = {"name": name, "repeat": repeat, "time_to_verdict_s": 12.0, "fix": fix, "traceml": traceml}
    (kept / "run.json").write_text(json.dumps(facts))
    return kept


def test_every_job_has_an_expectation(judge: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scenarios"))  # where the jobs are run from, as scripts
    jobs = importlib.import_module("scenarios.jobs")
    assert set(jobs.SCENARIOS) == set(judge.EXPECTED)
    numbers = {expected.number for expected in judge.EXPECTED.values()}
    assert numbers == set(range(1, max(numbers) + 1))


def test_a_hang_that_was_told_of_a_job_that_went_on_is_found(judge: ModuleType) -> None:
    session = replace(make_session(), exit_code=0)
    since_s = session.steps[-1].start_s + session.steps[-1].step_s
    frames = (("<module>", "/work/train.py", 3), ("recv", "socket.py", 9))
    stands = StandingProcess(MAIN_PID, phase="runs", longest_s=1.0, begun_s=1.0, steps=90, frames=frames)
    samples = tuple(StandstillSample(since_s + 200 + 2 * number, (stands,)) for number in range(4))
    found = Standstill(since_s, samples, over=True)
    assert judge.was_hang(replace(session, standstills=(found,)))
    works = tuple(replace(one, processes=(replace(stands, cpu_s=float(n)),)) for n, one in enumerate(samples))
    assert not judge.was_hang(replace(session, standstills=(replace(found, samples=works),)))


def test_runs_are_scored(judge: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, "healthy", 0, traceml="COMPUTE-BOUND", compute_s=0.04, cpu_s=0.008, workers=1)
    slow = {"workers": 2, "cpu_s": 0.001, "blocked_s": 0.06, "compute_s": 0.01, "cores": 2}
    tried = keep(tmp_path, "storage_latency", 0, fix="num_workers=7", traceml="INPUT-BOUND", **slow)
    make_session(**{**slow, "workers": 7}).save(tried / "fixed")  # type: ignore[arg-type]
    keep(tmp_path, "storage_bandwidth", 0, **slow)  # judged to be latency: wrong
    keep(tmp_path, "garbage", 1, foreign_cores=2.0, cores=4, cpu_s=0.002, compute_s=0.05)  # others took half of the CPU: void
    (tmp_path / "network-0").mkdir()  # was stopped in the middle
    rows = judge.judge_all(tmp_path)
    assert [row.name for row in rows] == ["healthy", "storage_latency", "storage_bandwidth", "garbage"]
    results = judge.results(rows)
    score = results["score"]
    assert (score["right"], score["valid"], score["void"]) == (2, 3, 1)
    assert score["repeats"][0] == {"repeat": 0, "first": 2, "of_first": 3, "stretch": 0, "of_stretch": 0}
    assert (score["false_alarms"], score["control_runs"]) == (0, 1)
    assert score["first_verdict"] == {"median_s": 12.0, "longest_s": 12.0, "runs": 3}
    assert [run["right"] for run in results["runs"]][:3] == [True, True, False]
    assert (results["others"]["traceml_class"], results["others"]["traceml_of"]) == (2, 2)
    text = importlib.import_module("pages.diagnosis").render(document(results), overhead())
    assert "right: 2 of 3 valid runs (1 void)" in text
    assert "repeat 0: scenarios 1 to 16: 2 of 3 right" in text
    assert "false alarms on the two controls: 0 in 1 runs" in text
    assert "STORAGE_LATENCY **wrong**" in text
    assert "names the class (not the cause within it) in 2 of the 2 jobs" in text
    assert "median 12 s" in text


def test_a_verdict_counts_only_with_its_fixes_and_its_marks(judge: ModuleType) -> None:
    """A verdict of a few steps must be provisional; a fix that cannot be applied must not be offered."""
    found = diagnose(make_session(workers=0, cpu_s=0.05, compute_s=0.02))
    fix = found.fixes[0].id
    for wanted, right in (
        ({}, True),
        ({"offered": fix[:5]}, True),
        ({"offered": "headrace_run"}, False),
        ({"withheld": "headrace_run"}, True),
        ({"withheld": fix[:5]}, False),
        ({"provisional": True}, False),
    ):
        judge.EXPECTED["healthy"] = judge.Expected(1, "input", (found.verdict,), **wanted)
        assert judge.judge("healthy", 0, found).right == right, wanted
    judge.EXPECTED["healthy"] = judge.Expected(1, "input", (found.verdict,), provisional=True)
    assert judge.judge("healthy", 0, replace(found, provisional=True, confidence=0.5)).right
    assert not judge.judge("healthy", 0, replace(found, provisional=True, confidence=0.6)).right


def test_a_fix_that_was_tried_is_scored_against_what_it_gained(judge: ModuleType, tmp_path: Path) -> None:
    slow = {"workers": 2, "cpu_s": 0.001, "blocked_s": 0.06, "compute_s": 0.01, "cores": 2}
    make_session(**slow).save(tmp_path / "before")  # type: ignore[arg-type]
    found = diagnose(Session.load(tmp_path / "before"))
    fix = next(fix for fix in found.fixes if fix.id.startswith("num_workers="))
    workers = int(fix.id.partition("=")[2])
    tried = keep(tmp_path / "kept", "storage_latency", 0, fix=fix.id, **slow)
    make_session(**{**slow, "workers": workers}).save(tried / "fixed")  # type: ignore[arg-type]
    (row,) = judge.judge_all(tmp_path / "kept")
    assert row.fix == fix.id
    assert row.predicted == pytest.approx(fix.predicted_img_s)
    assert row.measured is not None and row.measured > 2 * found.img_s
    assert row.error == pytest.approx(row.predicted / row.measured - 1)
    assert row.interval is not None and row.covered == (row.interval[0] <= row.measured <= row.interval[1])
    prediction = judge.results([row])["score"]["prediction"]
    assert prediction["fixes"] == 1
    assert prediction["median_error"] == pytest.approx(abs(row.error))


def document(results: dict[str, Any]) -> dict[str, Any]:
    """A document of results around what the runs gave."""
    machine = {"processor": "none", "usable_cores": 2, "memory_gib": 1}
    facts = {"machine": machine, "versions": {}, "commit": "", "date": "", "command": "", "remarks": []}
    return {**facts, "settings": {}, **results}


def overhead() -> dict[str, Any]:
    """A document of attach_overhead without rows."""
    settings = {"rounds": 1, "steps": 1, "step_ms": 1.0, "loops": 1, "loop_steps": 1}
    return {**document({}), "settings": settings, "hook_us": 1.0, "rows": []}


def test_intervals_are_judged_by_the_rate_measured_afterwards(judge: ModuleType, tmp_path: Path) -> None:
    intervals, page = importlib.import_module("intervals"), importlib.import_module("pages.intervals")
    slow = {"workers": 1, "cpu_s": 0.06, "compute_s": 0.015, "cores": 8}
    (best, *_) = diagnose(make_session(**slow)).fixes
    assert best.interval is not None
    for number, faster in enumerate((make_session(**{**slow, "workers": 5}), make_session(**slow))):
        folder = tmp_path / f"too_few_workers-2-{number}"
        make_session(**slow).save(folder / "plain")
        faster.save(folder / "fixed")
        (folder / "run.json").write_text(json.dumps({"job": "too_few_workers", "burners": 2, "fix": best.id}))
    (tmp_path / "garbage-2-0").mkdir()  # was not finished
    rows = [row for path in sorted(tmp_path.iterdir()) if (row := intervals.judge(path)) is not None]
    assert [row["held"] for row in rows] == [True, False]
    settings = {"jobs": ["too_few_workers"], "repeat": 2, "burners": [2]}
    text = page.render({**document(intervals.results(rows)), "settings": settings})
    assert "1 of 2 intervals of 80 % hold" in text and "**Fewer** than 44 of 60" in text
    assert f"{best.interval[0]:,.0f} to {best.interval[1]:,.0f} | {rows[0]['measured_img_s']:,.0f} | yes" in text
