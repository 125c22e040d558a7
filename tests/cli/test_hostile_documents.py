"""Options, experiments, requests and documents of finished jobs that others wrote: wrong values are errors in words."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable
from headrace.errors import SourceError
from headrace.launch.finished_job.diagnose import diagnose_job
from headrace.launch.finished_job.documents import read_documents
from headrace.launch.finished_job.times import job_times
from traced_memory import at_most

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


@pytest.mark.parametrize("name", ["a" + ".a" * 9000, '"a"' + '."a"' * 9000])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "t = {{ {} = 1 }}"])
def test_a_name_of_many_parts_takes_no_memory(name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 kB of one took 1.6 GB, and a file of a megabyte may hold one."""
    (tmp_path / "own.toml").write_text(form.format(name))
    with at_most(4 << 20):
        assert "more than 200 points" in error(["trials", str(tmp_path / "own.toml")], capsys)


EXPERIMENT = 'title = "t"\nquestion = "q"\naccelerator = "none"\n{top}\n[[cells]]\nloader = "pytorch"\n{cell}\n'


@pytest.mark.parametrize(
    ("top", "cell", "words"),
    [
        ("", "\n".join(f"{name} = {[*range(1, 60)]}" for name in ("workers", "batch_size", "load", "epochs")), "are the most"),
        ("", f"load = {[*range(1, 999)]}\n[[cells]]\nepochs = {[*range(2, 2000)]}", "are the most"),
        ("", "workers = 100000", "workers cannot be 100000"),
        ("", "ranks = 100000", "ranks cannot be 100000"),
        ("", "batch_size = 1000000", "batch_size cannot be 1000000"),
        ("", "load = 1000000000", "load cannot be"),
        ("", f'arguments = "{"a" * 900_000}"', "arguments have 900,000 characters"),
        ("train_images = 1000000000", "", "asks for 40,000,157 photographs"),
        ("budget_minutes = 1e9", "", "budget_minutes must be a number from 0.01 to 1440"),
        (f"published = [{'{ where = { load = 7 } }, ' * 600}]", "", "published numbers, more than 500"),
    ],
)
def test_an_experiment_of_a_stranger_takes_neither_memory_nor_hours(
    top: str, cell: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists multiply: a kilobyte of text stood for 10^8 cells. Workers and ranks are processes."""
    (tmp_path / "own.toml").write_text(EXPERIMENT.format(top=top, cell=cell))
    began_s = time.process_time()
    with at_most(16 << 20):
        assert words in error(["trials", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out")], capsys)
    assert time.process_time() - began_s < 10


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


ALGORITHM: dict[str, Any] = REQUEST["AlgorithmSpecification"]
RESOURCES: dict[str, Any] = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AlgorithmSpecification": ALGORITHM | {"MetricDefinitions": [{"Name": "a", "Regex": "(a{9999999999})"}]}}, "Regex"),
        ({"AlgorithmSpecification": ALGORITHM | {"MetricDefinitions": [{"Name": "a", "Regex": "(" * 9000}]}}, "at most 500"),
        ({"AlgorithmSpecification": ALGORITHM | {"TrainingImage": "." * 30_000 + " "}}, "at most 255"),
        ({"ResourceConfig": RESOURCES | {"VolumeSizeInGB": -(10**400)}}, "below the least"),
        ({"ResourceConfig": RESOURCES | {"InstanceType": "ml." + "a" * 900_000}}, "not one of the allowed values"),
        ({"Unknown": json.loads("[" * 900 + "]" * 900)}, "there is no such field"),
        ({f"Unknown{place}": 1 for place in range(50_000)}, "there is no such field"),
        ({"Environment": {"A": "\0"}}, "zero byte"),
        ({"HyperParameters": {"a": "\ud800"}}, "half a character"),
        ({"ResourceConfig": None, "ServerlessJobConfig": {}}, "ServerlessJobConfig"),
    ],
)
def test_wrong_values_of_a_request(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern of 30,000 dots took 90 s; others ended in tracebacks."""
    request = {name: value for name, value in (REQUEST | {"ResourceConfig": RESOURCES} | change).items() if value is not None}
    (tmp_path / "job.json").write_text(json.dumps(request))
    began_s = time.process_time()
    printed = error(["launch", "local", "--request", str(tmp_path / "job.json"), "--out", str(tmp_path / "job")], capsys)
    assert words in printed
    assert len(printed) < 100_000
    assert time.process_time() - began_s < 10


def test_a_request_to_send_shows_what_runs_with_which_rights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.json").write_text(json.dumps(REQUEST | {"ResourceConfig": RESOURCES}))
    printed = error(["launch", "sagemaker", "--request", str(tmp_path / "job.json")], capsys)
    assert "image:1 runs with the rights of arn:aws:iam::123456789012:role/r" in printed
    assert "results: s3://bucket/out" in printed


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_options_of_a_stranger_start_no_thousand_processes(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(f'model = "resnet18"\ndata = "{tmp_path}"\nprocesses = 100000\n')
    assert "--processes must be from 1 to" in error([verb, "--config", str(tmp_path / "own.toml")], capsys)


def test_a_request_larger_than_any_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.json").write_text(json.dumps(REQUEST | {"Environment": {"A": "x" * (2 << 20)}}))
    assert "2.0 MiB, more than the limit of 1.0 MiB" in error(
        ["launch", "local", "--request", str(tmp_path / "job.json")], capsys
    )


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
        {"ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": -5}},
        {"ResourceConfig": {"InstanceGroups": [{"InstanceCount": 10**9}, {"InstanceCount": 1 - 10**9}]}},
        {"SecondaryStatusTransitions": [{"Status": "Training", "StartTime": -1e17, "EndTime": 1e17}]},
        {"SecondaryStatusTransitions": [{"Status": "Training", "StartTime": float("nan"), "EndTime": 3}]},
        {"SecondaryStatusTransitions": [{"Status": "Training", "StartTime": 0, "EndTime": 1e308}]},
        {"BillableTimeInSeconds": 1e308},
        {"FinalMetricDataList": [{"MetricName": "train:images_per_second", "Value": 1e308}]},
        {"BillableTimeInSeconds": "x", "ResourceConfig": {"InstanceType": "ml.unknown.xlarge"}},
        {"TrainingTimeInSeconds": [1, 2], "ResourceConfig": {"InstanceType": "ml.unknown.xlarge"}},
    ],
)
def test_wrong_values_of_a_finished_job(change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "describe.json").write_text(json.dumps(JOB | change))
    diagnosed(tmp_path, capsys)


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Diagnose the job of a folder: an error in words, or a session that can be read again."""
    code = main(["diagnose", "--from-files", str(folder), "--out", str(folder / "session")])
    printed = capsys.readouterr().err
    assert code in (0, 1) and "Traceback" not in printed and "internal error" not in printed, printed
    assert code or main(["report", str(folder / "session")]) == 0, capsys.readouterr().err


TRAINED: dict[str, Any] = {"SecondaryStatusTransitions": [{"Status": "Training", "StartTime": 0, "EndTime": 1000}]}


def event(place: int, **change: Any) -> dict[str, Any]:
    """An event of the Debugger's system metrics."""
    usual = {"NodeId": "algo-1", "Dimension": "CPUUtilization", "Name": "cpu0", "Timestamp": 10.0 * place, "Value": 50.0}
    return usual | change


@pytest.mark.parametrize(
    "change",
    [
        {"Name": "cpu" + "9" * 5000},
        {"Name": "cpu\u00b2"},
        {"Value": 1e300},
        {"Timestamp": 1e300},
        {"Timestamp": 1e17},
        {"Dimension": "I/OWaitPercentage", "Value": 1.7e308, "Timestamp": 1.0},
    ],
)
def test_wrong_values_of_a_finished_jobs_curves(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "describe.json").write_text(json.dumps(JOB | TRAINED))
    file = tmp_path / "profiler-output" / "system" / "a.json"
    file.parent.mkdir(parents=True)
    events = [event(place) for place in range(50)] + [event(place, **change) for place in range(200)]
    file.write_text("".join(json.dumps(one) + "\n" for one in events))
    diagnosed(tmp_path, capsys)


@pytest.mark.parametrize(("time_us", "wait_us"), [(1.0, -1e300), (1.0, -1e15), (1e307, 1e308), (1e15, 1e17)])
def test_wrong_waits_of_a_finished_job(
    time_us: float, wait_us: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "describe.json").write_text(json.dumps(JOB | TRAINED))
    file = tmp_path / "profiler-output" / "framework" / "a_pythontimeline.json"
    file.parent.mkdir(parents=True)
    waits = [{"ph": "X", "name": "DataLoaderIter::GetNext", "ts": time_us * place, "dur": wait_us} for place in range(9)]
    file.write_text(json.dumps(waits))
    diagnosed(tmp_path, capsys)


def test_links_to_one_file_of_a_finished_job_are_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of ten thousand links to one file of 100 MB is small."""
    (tmp_path / "describe.json").write_text(json.dumps(JOB | TRAINED))
    file = tmp_path / "profiler-output" / "system" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(event(1)) + "\n")
    for place in range(20):
        (file.parent / f"b{place:02}.json").symlink_to("a.json")
    assert not read_documents(tmp_path).problems
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", str(3 * file.stat().st_size))
    found = read_documents(tmp_path)
    assert len(found.cores["algo-1"][0]) == 3
    assert any("more than the limit" in problem for problem in found.problems)


def test_many_trainings_and_points_of_a_finished_job_take_a_moment(tmp_path: Path) -> None:
    """2 MB of documents took six minutes: each point was compared with each training."""
    trainings = [{"Status": "Training", "StartTime": place, "EndTime": place + 1} for place in range(20_000)]
    (tmp_path / "describe.json").write_text(json.dumps(JOB | {"SecondaryStatusTransitions": trainings}))
    points = {"Label": "algo-1 GPUUtilization", "Timestamps": [*range(20_000)], "Values": [0.0] * 19_999 + [50.0]}
    (tmp_path / "metrics.json").write_text(json.dumps({"MetricDataResults": [points]}))
    began_s = time.process_time()
    assert main(["diagnose", "--from-files", str(tmp_path), "--out", str(tmp_path / "session"), "--no-report"]) == 0
    assert time.process_time() - began_s < 15


def test_trainings_at_one_time_of_a_finished_job_take_a_moment(tmp_path: Path) -> None:
    """Each had all points of the curves: 800 kB took minutes and gigabytes."""
    trainings = [{"Status": "Training", "StartTime": 0, "EndTime": 900_000_000}] * 3_000
    trainings += [{"Status": "Training", "StartTime": 10**9 + 2 * n, "EndTime": 10**9 + 2 * n + 1} for n in range(3_000)]
    (tmp_path / "describe.json").write_text(json.dumps(JOB | {"SecondaryStatusTransitions": trainings}))
    points = {"Timestamps": [*range(30_000)], "Values": [9.0] * 30_000}
    curves = [{"Label": f"algo-1 {name}Utilization", **points} for name in ("GPU", "CPU")]
    (tmp_path / "metrics.json").write_text(json.dumps({"MetricDataResults": curves}))
    began_s = time.process_time()
    assert main(["diagnose", "--from-files", str(tmp_path), "--out", str(tmp_path / "session"), "--no-report"]) == 0
    assert time.process_time() - began_s < 15
    assert len(job_times({"SecondaryStatusTransitions": trainings}).trainings) == 1000


@pytest.mark.parametrize("dimension", ["CPUUtilization", "GPUUtilization"])
def test_cores_and_gpus_of_a_finished_job_take_no_memory_at_the_times_of_others(dimension: str, tmp_path: Path) -> None:
    """Each sample had a value of each: 400 kB took gigabytes."""
    (tmp_path / "describe.json").write_text(json.dumps(JOB | TRAINED))
    file = tmp_path / "profiler-output" / "system" / "a.json"
    file.parent.mkdir(parents=True)
    events = [event(60 * n) | {"Dimension": dimension, "Name": f"x{n}"} for n in range(4_000)]
    file.write_text("".join(json.dumps(one) + "\n" for one in events))
    with at_most(200 << 20):
        diagnose_job(read_documents(tmp_path), PriceTable.load())
    events += [event(0) | {"Dimension": dimension, "Name": f"x{n}"} for n in range(9_000)]
    file.write_text("".join(json.dumps(one) + "\n" for one in events))
    with pytest.raises(SourceError, match="more than 8,192 cores or GPUs"):
        diagnose_job(read_documents(tmp_path), PriceTable.load())


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
