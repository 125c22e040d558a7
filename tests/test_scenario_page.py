"""The benchmark of the diagnosis: kept runs are judged by today's rules, and every job has an expectation."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from session_factory import make_session

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("scenarios", "scenarios.baselines", "scenarios.page", "scenarios.jobs"):
        sys.modules.pop(name, None)
    return importlib.import_module("scenarios.page")


def keep(folder: Path, name: str, repeat: int, *, fix: str | None = None, traceml: str = "", **run: float) -> Path:
    """One finished run of a job, as the benchmark leaves it."""
    kept = folder / f"{name}-{repeat}"
    make_session(**run).save(kept / "plain")  # type: ignore[arg-type]
    facts = {"name": name, "repeat": repeat, "time_to_verdict_s": 12.0, "fix": fix, "traceml": traceml}
    (kept / "run.json").write_text(json.dumps(facts))
    return kept


def test_every_job_has_an_expectation(page: ModuleType) -> None:
    pytest.importorskip("torch")
    jobs = importlib.import_module("scenarios.jobs")
    assert set(jobs.SCENARIOS) == set(page.EXPECTED)
    assert {expected.number for expected in page.EXPECTED.values()} == set(range(1, 24))


def test_runs_are_scored(page: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, "healthy", 0, traceml="COMPUTE-BOUND", compute_s=0.04, cpu_s=0.008, workers=1)
    slow = {"workers": 2, "cpu_s": 0.001, "blocked_s": 0.06, "compute_s": 0.01, "cores": 2}
    tried = keep(tmp_path, "storage_latency", 0, fix="num_workers=7", traceml="INPUT-BOUND", **slow)
    make_session(**{**slow, "workers": 7}).save(tried / "fixed")  # type: ignore[arg-type]
    keep(tmp_path, "storage_bandwidth", 0, **slow)  # said to be latency: wrong
    keep(tmp_path, "garbage", 1, foreign_cores=2.0, cores=4, cpu_s=0.002, compute_s=0.05)  # others took half of the CPU: void
    (tmp_path / "network-0").mkdir()  # was stopped in the middle
    rows = page.judge_all(tmp_path)
    assert [row.name for row in rows] == ["healthy", "storage_latency", "storage_bandwidth", "garbage"]
    text = page.page(rows)
    assert "right: 2 of 3 valid runs (1 void)" in text
    assert "repeat 0: scenarios 1 to 16: 2 of 3 right" in text
    assert "false alarms on the two controls: 0 in 1 runs" in text
    assert "STORAGE_LATENCY **wrong**" in text
    assert "names the class (not the cause within it) in 2 of the 2 jobs" in text
    row = rows[1]
    assert row.fix.startswith("num_workers=") or row.fix == ""
    assert "median 12 s" in text
