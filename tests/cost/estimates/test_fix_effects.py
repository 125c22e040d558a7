"""What the fixes of a session save, in money."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cost.estimates.fix_effects import watched_cost
from headrace.diagnosis.result.model import Diagnosis, Finding, Fix
from session_factory import make_session

FIXES = (
    Fix("num_workers=8", "eight workers", predicted_img_s=400.0, interval=(300.0, 500.0)),
    Fix("headrace_run", "headrace makes the batches", predicted_img_s=300.0, interval=(200.0, 400.0), verified_img_s=800.0),
    Fix("pin_memory", "pinned memory"),
    Fix("pack", "packed", predicted_img_s=50.0, interval=(0.0, 90.0)),
    Fix("cache", "cached", predicted_img_s=80.0, interval=(70.0, 90.0)),
)


def diagnosis(img_s: float | None = 100.0) -> Diagnosis:
    return Diagnosis("CPU_PREP", 0.9, {}, (Finding("CPU_PREP", 0.8, ("waits",), FIXES),), img_s, 900.0, ())


def test_each_fix_with_a_rate_is_priced_and_the_best_is_first() -> None:
    found = watched_cost(diagnosis(), images=360_000, epochs=10, usd_per_hour=2.0, machine="g5.xlarge")
    assert found is not None
    assert (found.usd_per_epoch, found.usd_run) == (2.0, 20.0)  # an hour an epoch
    assert [fix.id for fix in found.fixes] == ["headrace_run", "num_workers=8", "cache"]
    measured, predicted, worse = found.fixes
    assert (measured.kind, measured.usd_per_epoch, measured.usd_low, measured.usd_high) == ("measured", 0.25, 0.25, 0.25)
    assert (predicted.kind, predicted.usd_per_epoch) == ("predicted", 0.5)
    assert (predicted.usd_low, predicted.usd_high) == (pytest.approx(0.4), pytest.approx(2 / 3))
    assert (predicted.saved_usd_per_epoch, predicted.saved_usd_run) == (1.5, 15.0)
    assert worse.saved_usd_run == pytest.approx(-5.0)
    assert "saves $17.50 of the run" in found.lines()[1] and "adds $5.00 of the run" in found.lines()[3]


def test_a_job_without_a_rate_has_no_price() -> None:
    assert watched_cost(diagnosis(None), images=1, epochs=1, usd_per_hour=1.0, machine="x") is None


def test_the_command_prices_the_fixes_of_a_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))
    make_session(workers=1, cpu_s=0.2).save(tmp_path / "session")
    words = ["cost", "--session", str(tmp_path / "session"), "--images", "360000", "--epochs", "2", "--model", "resnet50"]
    page = tmp_path / "page.html"
    assert main([*words, "--instance", "g5.xlarge", "--html", str(page), "--json"]) == 0
    watched = json.loads(capsys.readouterr().out)["watched"]
    hours = 360_000 / watched["img_s"] / 3600
    assert (watched["machine"], watched["usd_per_epoch"]) == ("g5.xlarge", pytest.approx(1.006 * hours))
    assert watched["fixes"], "the session's fixes have predicted rates"
    best = watched["fixes"][0]
    assert best["saved_usd_run"] == pytest.approx(2 * (watched["usd_per_epoch"] - best["usd_per_epoch"]))
    assert best["usd_low"] <= best["usd_per_epoch"] <= best["usd_high"]
    text = page.read_text(encoding="utf-8")
    assert "what the session&#x27;s fixes save" in text or "what the session's fixes save" in text
    assert best["id"] in text
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "The watched job" not in printed.out and "one --instance TYPE" in printed.err
    assert main([*words, "--usd-per-hour", "3"]) == 0
    assert "the session's machine at $3.000 an hour" in " ".join(capsys.readouterr().out.split())
