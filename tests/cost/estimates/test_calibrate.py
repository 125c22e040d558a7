"""Calibration: factors from finished runs, and their use."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from headrace.cli.main import main
from headrace.cost.estimates.calibrate import FinishedRun, calibrate, factor, factors, leave_one_out, read_run
from headrace.errors import UsageError


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))


def write(path: Path, *runs: tuple[str, float, float]) -> Path:
    path.write_text(json.dumps([{"kind": kind, "predicted_s": was, "observed_s": now} for kind, was, now in runs]))
    return path


def test_a_factor_is_the_geometric_mean_of_each_kind(tmp_path: Path) -> None:
    found = calibrate([write(tmp_path / "a.json", ("ec2:g5.xlarge", 100, 200), ("ec2:g5.xlarge", 100, 50), ("local", 10, 12))])
    assert found.factors == {"ec2:g5.xlarge": pytest.approx(1.0), "local": pytest.approx(1.2)}
    assert factors() == found.factors
    again = calibrate([write(tmp_path / "b.json", ("local", 10, 12 * 1.44))])
    assert again.factors["local"] == pytest.approx(1.44)
    assert len(again.runs) == 4


def test_a_run_is_predicted_from_the_others_only() -> None:
    runs = [FinishedRun("local", 10, 20), FinishedRun("local", 10, 20), FinishedRun("ec2:g5.xlarge", 10, 10)]
    assert leave_one_out(runs) == pytest.approx([0.0, 0.0, 0.0])
    assert leave_one_out([FinishedRun("local", 10, 20), FinishedRun("local", 10, 40)]) == pytest.approx([1.0, 0.5])
    assert factor([]) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"factors": {"local": 0}, "runs": []}',
        '{"factors": {"local": "x"}, "runs": []}',
        '{"factors": {}, "runs": [3]}',
        '{"factors": {}, "runs": [{"kind": "local", "predicted_s": "x", "observed_s": 1}]}',
    ],
)
def test_a_file_of_factors_that_holds_something_else_counts_as_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(text)
    assert factors() == {}
    assert calibrate([write(tmp_path / "a.json", ("local", 10, 12))]).factors == {"local": pytest.approx(1.2)}


def test_the_same_run_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", ("local", 10, 12))
    calibrate([path])
    assert len(calibrate([path]).runs) == 1


def test_a_finished_sagemaker_job_is_read(tmp_path: Path) -> None:
    job = {"TrainingJobName": "a", "ResourceConfig": {"InstanceType": "ml.g5.xlarge"}, "predicted_s": 100}
    (tmp_path / "a.json").write_text(json.dumps({**job, "BillableTimeInSeconds": 130, "TrainingTimeInSeconds": 300}))
    assert read_run(tmp_path / "a.json") == [FinishedRun("sagemaker:g5.xlarge", 100, 130)]
    times = {"TrainingStartTime": "2026-11-22T10:00:00+00:00", "TrainingEndTime": "2026-11-22T10:02:00+00:00"}
    (tmp_path / "a.json").write_text(json.dumps({**job, **times}))
    assert read_run(tmp_path / "a.json") == [FinishedRun("sagemaker:g5.xlarge", 100, 120)]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": "local", "predicted_s": 0, "observed_s": 1}', '{"kind": 1}'])
def test_what_is_no_run_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.json"):
        calibrate([tmp_path / "a.json"])
    assert factors() == {}


def test_a_factor_slows_later_estimates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cost", "--model", "resnet50", "--images", "1000000", "--instance", "g5.xlarge", "--json"]
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)["rows"][0]["hours"]
    path = write(tmp_path / "a.json", ("ec2:g5.xlarge", 100, 130))
    assert main(["cost", "--calibrate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["factors"] == {"ec2:g5.xlarge": pytest.approx(1.3)}
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["hours"] == pytest.approx(1.3 * before)


def test_many_runs_of_a_stranger_take_a_moment(tmp_path: Path) -> None:
    """Each run was compared with each other one, and each kind with all runs: minutes for a megabyte."""
    runs = [(f"kind{place % 5000}", 10 + place, 12) for place in range(10_000)]
    began_s = time.process_time()
    found = calibrate([write(tmp_path / "a.json", *runs)])
    assert len(found.lines()) == 5000 + 2
    assert time.process_time() - began_s < 5
