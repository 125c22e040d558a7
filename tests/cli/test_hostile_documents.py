"""Options, experiments, requests and documents of finished jobs that others wrote: wrong values are errors in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main

DEEP = "[" * 100_000
JOB: dict[str, Any] = {
    "TrainingJobName": "job",
    "TrainingJobStatus": "Completed",
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
}
REQUEST: dict[str, Any] = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "AlgorithmSpecification": {"TrainingImage": "image:1", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 10**9, "VolumeSizeInGB": 50},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
}


def error(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail in one sentence; return it."""
    code = main(words)
    printed = capsys.readouterr().err
    assert code in (1, 2) and "Traceback" not in printed and "internal error" not in printed, printed
    return printed


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "epochs = " + "9" * 5000, "epochs = 0x" + "f" * 6000, "epochs = 3\n" * 300_000, "\0"]
)
@pytest.mark.parametrize("verb", [["train", "--config"], ["tune", "--config"], ["trials"]])
def test_a_damaged_options_file(text: str, verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(text)
    assert "own.toml" in error([*verb, str(tmp_path / "own.toml")], capsys)


@pytest.mark.parametrize("verb", [["launch", "sagemaker", "--dry-run", "--request"], ["cost", "--calibrate"]])
def test_deep_json_is_refused(verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.json").write_text(DEEP)
    assert "own.json" in error([*verb, str(tmp_path / "own.json")], capsys)


def test_a_request_for_any_number_of_hosts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each host becomes a name, a folder and a process: 10^9 of them filled the memory."""
    (tmp_path / "job.json").write_text(json.dumps(REQUEST))
    words = ["launch", "local", "--request", str(tmp_path / "job.json"), "--out", str(tmp_path / "job"), "--yes"]
    assert "1,000,000,000 instances are more than an account can have" in error(words, capsys)
    groups = [{"InstanceGroupName": "a", "InstanceType": "ml.g5.xlarge", "InstanceCount": 10**9}]
    (tmp_path / "job.json").write_text(json.dumps({**REQUEST, "ResourceConfig": {"InstanceGroups": groups}}))
    assert "more than an account can have" in error(words, capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 10**12}},
        {"ResourceConfig": {"InstanceGroups": [3]}},
        {"ResourceConfig": {"InstanceCount": "many"}},
        {"ResourceConfig": []},
        {"SecondaryStatusTransitions": 3},
        {"BillableTimeInSeconds": "x"},
        {"FinalMetricDataList": 3},
        {"HyperParameters": [3]},
        {"AlgorithmSpecification": 7},
    ],
)
def test_wrong_values_of_a_finished_job(change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "describe.json").write_text(json.dumps(JOB | change))
    code = main(["diagnose", "--from-files", str(tmp_path), "--out", str(tmp_path / "session")])
    printed = capsys.readouterr().err
    assert code in (0, 1) and "Traceback" not in printed and "internal error" not in printed, printed


@pytest.mark.parametrize("name", ["describe.json", "metrics.json", "profiler-output/system/a.json"])
def test_deep_json_of_a_finished_job(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "describe.json").write_text(json.dumps(JOB))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(DEEP)
    code = main(["diagnose", "--from-files", str(tmp_path), "--out", str(tmp_path / "session")])
    assert code == (1 if name == "describe.json" else 0), capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "3", '"x"', "NaN", DEEP, '{"ingest": 3}', '{"ingest": [3]}', '{"ingest": [{"img_s": "x", "threads": 1}]}'),
        *(
            '{"ingest": [{"img_s": 3, "threads": 0}]}',
            '{"ingest": [], "compute_img_s": -1}',
            '{"rows": [{"compute_img_s": 1e400}]}',
        ),
        *('{"rows": {"a": 1}}', '{"rows": [{"ingest_img_s": NaN, "workers": 1}]}', '{"rows": [{"compute_img_s": [1]}]}'),
    ],
)
def test_wrong_rates_for_a_price(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.json").write_text(text)
    words = ["cost", "--session", str(tmp_path / "rates.json"), "--images", "1000", "--bytes", "1000"]
    assert "rates.json" in error(words, capsys)


@pytest.mark.parametrize(
    "entry",
    [
        {"ResourceConfig": 3},
        {"ResourceConfig": {}, "TrainingStartTime": "x", "TrainingEndTime": "y"},
        {"ResourceConfig": {}, "TrainingStartTime": [1], "TrainingEndTime": [2]},
        {"kind": "a", "predicted_s": 10**400, "observed_s": 1},
        {"kind": "a", "predicted_s": {}, "observed_s": 1},
        3,
    ],
)
def test_wrong_values_of_a_finished_run(entry: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(entry))
    assert "run.json" in error(["cost", "--calibrate", str(tmp_path / "run.json")], capsys)
