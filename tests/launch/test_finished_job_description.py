"""What a finished job's documents say beside the times: labels of curves, the framework, seconds an epoch, what was saved."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable
from headrace.launch.finished_job.commands import input_fixes
from headrace.launch.finished_job.description import epoch_seconds, framework_of
from headrace.launch.finished_job.diagnose import JobDiagnosis, diagnose_job
from headrace.launch.finished_job.documents import JobDocuments, read_documents
from headrace.report.pages import compare_page
from headrace.report.sessions.compare_sessions import compare_sessions
from job_curves import BEGIN_S, bursts, described, job_with_curves
from session_factory import make_session

ECR = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/"


def result(label: str, value: float, **more: Any) -> dict[str, Any]:
    return {"Id": "m0", "Label": label, "Timestamps": [BEGIN_S + 60 * at for at in range(60)], "Values": [value] * 60, **more}


def documents(folder: Path, *results: dict[str, Any], **more: Any) -> JobDocuments:
    folder.mkdir(exist_ok=True)
    (folder / "describe.json").write_text(json.dumps(described(3600, **more)))
    (folder / "metrics.json").write_text(json.dumps({"MetricDataResults": results}))
    return read_documents(folder)


# Labels


@pytest.mark.parametrize(
    "pattern", ["algo-1 {}", "job/algo-1 {}", "{} algo-1", "{}", "algo-2-tests/algo-1 {}", "{}_algo-1", "algo-1:{}"]
)
def test_a_label_names_its_metric_as_a_whole_word(tmp_path: Path, pattern: str) -> None:
    names = {"GPUMemoryUtilization": 240.0, "MemoryUtilization": 12.0, "GPUUtilization": 350.0, "CPUUtilization": 900.0}
    read = documents(tmp_path, *(result(pattern.format(name), value) for name, value in names.items()))
    assert {name: series[0][1] for name, series in read.metrics["algo-1"].items()} == names and list(read.metrics) == ["algo-1"]


def test_labels_of_two_hosts_in_every_form(tmp_path: Path) -> None:
    for place, pattern in enumerate(("{1} {0}", "algo-7/{1} {0}", "{0}_{1}", "{0} {1}", "{1}:{0}")):
        curves = (result(pattern.format("CPUUtilization", f"algo-{host}"), 100.0 * host) for host in (1, 2))
        read = documents(tmp_path / str(place), *curves)
        assert {host: all_["CPUUtilization"][0][1] for host, all_ in read.metrics.items()} == {"algo-1": 100, "algo-2": 200}
        assert read.problems == ()


def test_files_of_the_debugger_beyond_the_limit_are_left_out_of_every_host_and_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents(tmp_path)
    for host, minute in itertools.product(range(2), range(32)):
        event = {"NodeId": f"algo-{host + 1}", "Dimension": "CPUUtilization", "Name": "cpu0", "Value": 50.0}
        file = tmp_path / f"profiler-output/system/incremental/{minute // 16}/{100 + minute}.algo-{host + 1}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**event, "Timestamp": BEGIN_S + 60 * minute}) + "\n" * 2000)
    size = file.stat().st_size
    for most, counts in ((64, [32, 32]), (32, [16, 16]), (17, [8, 8])):
        monkeypatch.setenv("HEADRACE_RECORD_LIMIT", str(most * size + 1000))
        read = read_documents(tmp_path)
        assert [len(rows[0]) for _, rows in sorted(read.cores.items())] == counts
        last = [rows[0][-1][0] for rows in read.cores.values()]
        assert min(last) >= BEGIN_S + 60 * 27
        assert len(read.problems) == (most < 64)


def test_memory_of_four_gpus_is_a_share_of_theirs_and_not_the_hosts_memory(tmp_path: Path) -> None:
    curves = (result("algo-1 GPUMemoryUtilization", 240.0), result("algo-1 MemoryUtilization", 12.0))
    resources = {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1}
    found = diagnose_job(documents(tmp_path, *curves, ResourceConfig=resources), PriceTable.load()).diagnosis
    assert {row.name: round(row.p95) for row in found.percentiles} == {"memory": 12, "GPU memory": 60}
    assert not [line for line in found.not_measured if "reaches" in line]


def test_other_metrics_and_second_curves_are_listed_and_not_mixed_in(tmp_path: Path) -> None:
    read = documents(
        tmp_path,
        result("algo-1 CPUUtilization", 100.0),
        result("algo-1 CPUUtilization Maximum", 390.0),
        result("algo-1 GPUUtilizationNormalized", 50.0),
        result("algo-1 CPUUtilization", 100.0),
    )
    assert {value for _, value in read.metrics["algo-1"]["CPUUtilization"]} == {100.0}
    assert len(read.metrics["algo-1"]["CPUUtilization"]) == 120, "pages of one query belong together"
    assert list(read.metrics["algo-1"]) == ["CPUUtilization"]
    assert any("Maximum" in line and "second curve" in line for line in read.problems)
    assert any("GPUUtilizationNormalized" in line for line in read.problems)


# Frameworks


@pytest.mark.parametrize(
    ("image", "framework"),
    [
        (ECR + "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker", "pytorch"),
        (ECR + "huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310", "pytorch"),
        (ECR + "tensorflow-training:2.18.0-gpu-py310-cu125-ubuntu22.04-sagemaker", "tensorflow"),
        (ECR + "huggingface-tensorflow-training:2.6.3-transformers4.17.0-gpu-py38", "tensorflow"),
        ("520713654638.dkr.ecr.us-west-2.amazonaws.com/sagemaker-tensorflow-scriptmode:1.12.0-gpu-py3", "tensorflow"),
        ("nvcr.io/nvidia/tensorflow:23.05-tf2-py3", "tensorflow"),
        (ECR + "mxnet-training:1.9.0-gpu-py38-cu112-ubuntu20.04-sagemaker", "mxnet"),
        ("811284229777.dkr.ecr.us-east-1.amazonaws.com/image-classification:1", "mxnet"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/dali-pytorch@sha256:0123", "dali"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/vidaline:latest", None),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/convert-tensorflow-to-pytorch", None),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train:pytorch-no", None),
        (None, None),
    ],
)
def test_the_framework_is_read_from_the_image(image: str | None, framework: str | None) -> None:
    assert framework_of({"AlgorithmSpecification": {"TrainingImage": image}}) == framework


@pytest.mark.parametrize(
    ("hyperparameters", "framework"),
    [
        ({"aug": '"dali-gpu"'}, "dali"),
        ({"use-dali": "true"}, "dali"),
        ({"use_dali": '"False"'}, "pytorch"),
        ({"aug": '"pytorch-cpu"'}, "pytorch"),
        ({"city": "vidali"}, "pytorch"),
    ],
)
def test_dali_is_read_from_hyperparameters(hyperparameters: dict[str, str], framework: str) -> None:
    assert framework_of(described(10, HyperParameters=hyperparameters)) == framework


IMAGES = {"tensorflow": ECR + "tensorflow-training:2.18", "mxnet": ECR + "mxnet-training:1.9", "dali": ECR + "dali:1"}
WORDS = {
    "tensorflow": {"CPU_PREP": "num_parallel_calls", "CPU_SATURATED": "dataset.cache()", "STORAGE_LATENCY": "interleave"},
    "mxnet": {"CPU_PREP": "preprocess_threads=4", "CPU_SATURATED": "im2rec.py", "STORAGE_LATENCY": "preprocess_threads=4"},
    "dali": {"CPU_PREP": "num_threads=4", "CPU_SATURATED": 'device="mixed"', "STORAGE_LATENCY": "prefetch_queue_depth"},
}


@pytest.mark.parametrize("framework", WORDS)
def test_other_frameworks_get_their_own_advice(framework: str) -> None:
    description = described(10, image=IMAGES[framework])
    for kind, words in WORDS[framework].items():
        fixes = input_fixes(description, kind, 4, 1)
        assert words in (fixes[0].command or ""), kind
        text = " ".join(f"{fix.id} {fix.command} {fix.effort}" for fix in fixes)
        assert "headrace run" not in text and "of the DataLoader" not in text and "headrace_run" not in text, text
    assert input_fixes(described(10), "CPU_PREP", 4, 1)[0].id == "headrace_run"


def test_a_tensorflow_job_is_told_of_tf_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"CPUUtilization": 170.0, "GPUUtilization": 20.0}
    documents(
        tmp_path / "job", *(result(f"algo-1 {name}", value) for name, value in values.items()), image=IMAGES["tensorflow"]
    )
    assert main(["diagnose", "--from-files", str(tmp_path / "job"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "CPU_PREP" in printed and "AUTOTUNE" in printed and "headrace run --" not in printed


# What it saved


@pytest.mark.parametrize("status", ["Stopped", "MaxRuntimeExceeded", "Failed"])
def test_a_stopped_job_that_saved_nothing_says_so(tmp_path: Path, status: str) -> None:
    def notes(**more: Any) -> str:
        return " ".join(
            note.text for note in diagnose_job(documents(tmp_path, status=status, **more), PriceTable.load()).diagnosis.notes
        )

    assert "saved nothing" in notes() and "CheckpointConfig" in notes()
    kept = notes(CheckpointConfig={"S3Uri": "s3://b/checkpoints"})
    assert "without a model" in kept and "s3://b/checkpoints" in kept and "saved nothing" not in kept
    assert "model" not in notes(ModelArtifacts={"S3ModelArtifacts": "s3://b/model.tar.gz"})
    assert "saved nothing" not in " ".join(
        note.text for note in diagnose_job(documents(tmp_path), PriceTable.load()).diagnosis.notes
    )


# Two jobs


@pytest.mark.parametrize(
    ("name", "regex", "value", "epoch_s"),
    [
        ("Seconds per Epoch", "Seconds per Epoch: ([0-9.]+)", 96.5, 96.5),
        ("train:epoch_time", "x", 96.5, 96.5),
        ("epochTimeMs", "x", 96_500.0, 96.5),
        ("minutes_per_epoch", "x", 2.0, 120.0),
        ("pace", "## secs_time_per_epoch ##: (.*)", 260.0, 260.0),
        ("epoch", "epoch ([0-9]+)", 5.0, None),
        ("epoch", r"Epoch\s+(\d+)", 90.0, None),
        ("train:loss", r"epoch\s*\d+\s*loss: (\S+)", 0.31, None),
        ("loss", "Epoch: [0-9]+, time: [0-9.]+, loss: ([0-9.]+)", 0.31, None),
        ("pace", r"Epoch\s+time:\s*([0-9.]+)", 96.5, 96.5),
        ("pace", r"(?<=minutes per epoch: )([0-9.]+)", 2.0, 120.0),
        ("epoch", r"epoch \d+, time: ([0-9.]+)", 96.5, 96.5),
        pytest.param("pace", "a " * 100_000 + "[" * 100_000, 96.5, None, id="endless"),
        ("epoch_step_time", "x", 0.3, None),
        ("epoch_eta_seconds", "x", 900.0, None),
        ("train:loss", "loss ([0-9.]+)", 0.3, None),
        ("epoch_time", "x", float("nan"), None),
        ("epoch_time", "x", -3.0, None),
    ],
)
def test_seconds_an_epoch_come_from_the_jobs_own_metric(name: str, regex: str, value: float, epoch_s: float | None) -> None:
    algorithm = {"MetricDefinitions": [{"Name": name, "Regex": regex}]}
    metrics = [{"MetricName": name, "Value": value, "Timestamp": 1.0}]
    found = epoch_seconds({"AlgorithmSpecification": algorithm, "FinalMetricDataList": metrics})
    assert found == ((None, None) if epoch_s is None else (pytest.approx(epoch_s), name))


def test_the_time_of_a_whole_epoch_is_preferred_to_that_of_its_validation() -> None:
    metrics = [
        {"MetricName": name, "Value": at} for at, name in enumerate(("val_epoch_time", "epoch_time", "step_time_epoch"), 1)
    ]
    assert epoch_seconds({"FinalMetricDataList": metrics}) == (2, "epoch_time")


def trial(name: str, epoch_s: float, training_s: float, gpu_busy_s: float, metric: str = "Seconds per Epoch") -> JobDiagnosis:
    """The article's trials: the same training with two ways to augment."""
    more = {
        "TrainingJobName": name,
        "HyperParameters": {"aug": '"pytorch-cpu"' if name == "a" else '"dali-gpu"', "epochs": "2", "sagemaker_region": '"x"'},
        "FinalMetricDataList": [{"MetricName": metric, "Value": epoch_s, "Timestamp": 1.0}],
    }
    busy = bursts(gpu_busy_s, 4)
    return diagnose_job(
        job_with_curves(training_s, busy, bursts(4 - gpu_busy_s, 4), interval_s=60, mean=True, **more), PriceTable.load()
    )


def test_two_jobs_are_compared_by_epochs_money_curves_and_hyperparameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = trial("a", 260.0, 2400, 1), trial("b", 96.0, 1200, 3)
    found = compare_sessions(slow.session, fast.session, slow.diagnosis, fast.diagnosis)
    figures = {one.name: (one.before, one.after) for one in found.jobs}
    assert figures["an epoch"] == (260.0, 96.0)
    assert figures["training"] == (2425, 1225) and figures["billed"] == (2425, 1225)
    assert figures["price"] == pytest.approx((slow.account.usd, fast.account.usd))
    before, after = figures["GPU, 95th percentile"]
    assert before == pytest.approx(26, abs=3) and after == pytest.approx(75, abs=3)
    assert {"CPU, 95th percentile", "memory, 95th percentile"} <= set(figures)
    changed = {one.name: (one.before, one.after) for one in found.differences}
    assert changed["aug"] == ("pytorch-cpu", "dali-gpu") and "epochs" not in changed and "sagemaker_region" not in changed
    assert changed["framework"] == ("pytorch", "dali")
    assert found.word == "faster" and "96.0 s in place of 260.0 s" in found.sentences[0]
    for name, one in (("a", slow), ("b", fast)):
        one.session.save(tmp_path / name)
        (tmp_path / name / "diagnosis.json").write_text(json.dumps(one.diagnosis.to_json()))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    printed = capsys.readouterr().out
    for words in ("an epoch", "260.0 s", "96.0 s", "price", "$", "GPU, 95th percentile", "aug", "dali-gpu"):
        assert words in printed, words
    sides = [compare_page.Side(label, label, one.session, one.diagnosis) for label, one in (("Before", slow), ("After", fast))]
    assert "Figures of the jobs" in compare_page.render(found, *sides)


def test_seconds_of_something_else_are_not_compared() -> None:
    one, other = trial("a", 260.0, 1200, 1, "epoch_time"), trial("b", 12.0, 1200, 1, "val_epoch_time")
    found = compare_sessions(one.session, other.session, one.diagnosis, other.diagnosis)
    assert found.change is None and "epoch" not in " ".join(found.sentences)
    assert {figure.name: (figure.before, figure.after) for figure in found.jobs if "epoch" in figure.name} == {
        "an epoch (epoch_time, val_epoch_time)": (260.0, 12.0)
    }


def test_a_hyperparameter_that_only_one_job_has_differs_and_secrets_stay_hidden() -> None:
    one, other = trial("a", 100.0, 1200, 1), trial("b", 100.0, 1200, 1)
    given = job_with_curves(
        1200,
        bursts(1, 4),
        bursts(1, 4),
        interval_s=60,
        mean=True,
        HyperParameters={"lr": "0.1", "api-key": "AKIAIOSFODNN7EXAMPLE"},
    )
    third = diagnose_job(given, PriceTable.load())
    changed = {
        x.name: (x.before, x.after)
        for x in compare_sessions(one.session, third.session, one.diagnosis, third.diagnosis).differences
    }
    assert changed["lr"] == ("not given", "0.1") and changed["api-key"] == ("not given", "***")
    found = compare_sessions(one.session, other.session, one.diagnosis, other.diagnosis)
    assert found.word == "about the same" and {x.name for x in found.differences} >= {"aug"}


def test_a_job_and_a_watched_run_are_compared_without_figures_of_jobs() -> None:
    job = trial("a", 100.0, 1200, 1)
    found = compare_sessions(job.session, make_session(), job.diagnosis, job.diagnosis)
    assert found.jobs == ()
    assert "aug" not in {one.name for one in found.differences}
