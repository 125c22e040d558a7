"""One job has one total: asked for one input mode, as a row of `auto`, and in the plan of a request to SageMaker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.answer import Answer, Question, answer
from headrace.cost.estimates.budget import Limits
from headrace.cost.estimates.floors import INPUT_MODES, Job
from headrace.cost.estimates.runs import Purchase
from headrace.cost.market.prices import SERVICES, Instance, PriceTable, Service
from headrace.errors import UsageError
from headrace.launch.job_request.request import Channel, TrainingJob, build_request
from headrace.launch.sagemaker.plan import Work, expected_cost
from headrace.packing import pack
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_images import jpeg
from session_factory import make_session

Ask = Callable[..., dict[str, Any]]

TABLE = PriceTable.load()
IMAGENET = "--model resnet50 --images 1281167 --epochs 90 --bytes 141e9 --instance ml.g5.2xlarge"
ROLE = "arn:aws:iam::123456789012:role/SageMakerTraining"

jobs = st.builds(
    Job,
    images=st.integers(100, 10_000_000),
    epochs=st.floats(0.5, 300),
    model=st.sampled_from(["resnet18", "resnet50"]),
    dataset_bytes=st.floats(1e6, 1e13),
    objects=st.one_of(st.none(), st.integers(1, 10_000_000)),
    loader=st.sampled_from(["pytorch", "headrace", "headrace-packed"]),
    augmentation=st.sampled_from([None, "light", "heavy"]),
    data_region=st.sampled_from([None, "us-east-1", "eu-west-1"]),
    sharded=st.booleans(),
)
purchases = st.builds(Purchase, spot_discount=st.one_of(st.none(), st.floats(0, 0.95)), hours_between=st.floats(0.1, 100))


@pytest.fixture(autouse=True)
def no_kept_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    monkeypatch.setenv("HEADRACE_CALIBRATION", str(tmp_path / "calibration.json"))


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> dict[str, Any]:
        assert main(["cost", *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        (tmp_path / "photos" / f"class_{number % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / f"class_{number % 2}" / f"{number}.jpg").write_bytes(jpeg(32, 24, seed=number))
    return tmp_path / "photos"


def priced(job: Job, machine: tuple[Instance, Service], purchase: Purchase, *, auto: bool, count: int = 1) -> Answer:
    question = Question(job, None, (), [machine], purchase, Limits(), max_instances=count, all_input_modes=auto)
    return answer(question, [TABLE])


@settings(max_examples=15, deadline=None)
@given(jobs, st.sampled_from(list(TABLE.instances.values())), st.sampled_from(SERVICES), purchases, st.integers(1, 3))
def test_a_mode_alone_costs_what_it_costs_as_a_row_of_auto(
    job: Job, instance: Instance, service: Service, purchase: Purchase, count: int
) -> None:
    together = priced(job, (instance, service), purchase, auto=True, count=count)
    rows = {(row.instances, row.input_mode): row for row in together.rows}
    for mode in INPUT_MODES:
        try:
            alone = priced(replace(job, input_mode=mode), (instance, service), purchase, auto=False, count=count).rows
        except UsageError as refused:
            assert "no machine can be priced" in str(refused)
            assert not [key for key in rows if key[1] == mode]
            continue
        for row in alone:
            assert rows.pop((row.instances, mode), row) == row
    assert not rows
    chosen = together.choice.row
    assert chosen is not None
    listed = {plan["mode"]: plan for plan in together.document()["input_modes"]}  # type: ignore[attr-defined]
    assert set(listed) == set(INPUT_MODES)
    assert listed[chosen.input_mode]["usd"] == chosen.total_usd and listed[chosen.input_mode]["best_usd"] == chosen.best_usd
    assert chosen.best_usd == min(row.best_usd for row in together.rows)


def test_imagenet_has_one_total_whichever_way_it_is_asked(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    words = IMAGENET.split()
    (alone,) = ask(*words, "--input-mode", "fastfile")["rows"]
    (told,) = ask(*words, "--input-mode", "fastfile", "--objects", "1281167")["rows"]
    assert {name for name in alone if alone[name] != told[name]} == {"objects_source", "objects_kind"}
    auto = ask(*words, "--input-mode", "auto")
    (listed,) = [plan for plan in auto["input_modes"] if plan["mode"] == "fastfile"]
    (row,) = [row for row in auto["rows"] if row["input_mode"] == "fastfile"]
    assert alone == row
    assert round(alone["total_usd"], 2) == 228.20 == round(listed["usd"], 2)
    assert round(alone["requests_usd"], 2) == 46.12
    launched = f"launch sagemaker --data s3://my-bucket/train --bucket my-bucket --role {ROLE} --dry-run --json {IMAGENET}"
    assert main(launched.split()) == 0
    expected = json.loads(capsys.readouterr().out)["expected_cost"]
    assert (expected["usd_on_demand"], expected["usd_spot"]) == (alone["total_usd"], alone["spot_total_usd"])
    for mode in ("fastfile", "auto"):
        assert main(["cost", *words, "--input-mode", mode]) == 0
        assert "$228.20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("channel", "mode", "count"),
    [
        (Channel("train", "s3://my-bucket/train", mode="File"), "file", 1),
        (Channel("train", "s3://my-bucket/train", mode="FastFile"), "fastfile", 2),
        (Channel("train", "s3://my-bucket/train", mode="Pipe"), "pipe", 3),
        (Channel("train", "s3://my-bucket/train", mode="Pipe", distribution="ShardedByS3Key"), "pipe", 3),
        (Channel("train", "fs-0123456789abcdef0:/train", mode="File", file_system="FSxLustre"), "fsx", 1),
        (Channel("train", "fs-0123456789abcdef0:/train", mode="File", file_system="EFS"), "efs", 1),
    ],
)
def test_the_plan_of_a_request_has_the_totals_of_headrace_cost(channel: Channel, mode: Any, count: int) -> None:
    request = build_request(TrainingJob("one", "ml.g5.2xlarge", ROLE, "my-bucket", [channel], count=count))
    plan = expected_cost(request, Work("resnet50", 1_281_167, 90, 141e9, 1_281_167), TABLE)
    job = Job(1_281_167, 90, "resnet50", 141e9, 1_281_167, input_mode=mode, sharded="Sharded" in channel.distribution)
    rows = priced(job, (TABLE.instance("g5.2xlarge"), "sagemaker"), Purchase(), auto=False, count=count).rows
    assert (plan.usd_on_demand, plan.usd_spot) == (rows[-1].total_usd, rows[-1].spot_total_usd)
    assert (plan.requests_usd, plan.storage_usd) == (rows[-1].requests_usd, rows[-1].storage_usd)


def test_hosts_that_get_all_objects_pay_for_all_of_them() -> None:
    job = Job(1000, 10, "resnet50", 1e8, 1000, input_mode="pipe")
    one, two = priced(job, (TABLE.instance("g5.2xlarge"), "sagemaker"), Purchase(), auto=False, count=2).rows
    sharded = priced(replace(job, sharded=True), (TABLE.instance("g5.2xlarge"), "sagemaker"), Purchase(), auto=False, count=2)
    assert two.requests_usd == 2 * one.requests_usd == 2 * sharded.rows[1].requests_usd


def test_objects_are_counted_in_the_data(photos: Path, tmp_path: Path, ask: Ask) -> None:
    pack(photos, tmp_path / "packed")
    words = ("--model", "resnet50", "--instance", "ml.g5.2xlarge", "--input-mode", "fastfile")
    (folder,) = ask(*words, "--data", str(photos))["rows"]
    (packed,) = ask(*words, "--data", str(tmp_path / "packed"))["rows"]
    (told,) = ask(*words, "--data", str(photos), "--objects", "500")["rows"]
    counts = [(row["objects"], row["objects_source"], row["objects_kind"]) for row in (folder, packed, told)]
    assert counts == [(12, "--data", "given"), (1, "--data", "given"), (500, "--objects", "given")]
    assert folder["requests_usd"] == pytest.approx(12 * packed["requests_usd"])
    (known,) = ask(*words[:-1], "file", "--data", str(photos))["rows"]
    assert known["missing"] == [], "the bytes of a folder's files are known"


def test_an_estimated_count_of_objects_is_called_so(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*IMAGENET.split(), "--input-mode", "fastfile"]
    found = ask(*words)
    (row,) = found["rows"]
    assert (row["objects"], row["objects_kind"]) == (1_281_167, "estimated")
    (shards,) = ask(*words, "--objects", "1051")["rows"]
    assert found["packed"]["total_usd"] == shards["total_usd"] < row["total_usd"]
    assert main(["cost", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1,281,167 objects, estimated as one an image" in printed
    assert f"1,051 shards of 128 MiB (--objects 1051): ml.g5.2xlarge, spot, ${shards['best_usd']:.2f}" in printed
    assert main(["cost", *words, "--objects", "1281167"]) == 0
    assert "estimated as" not in capsys.readouterr().out
    launched = f"launch sagemaker --data s3://my-bucket/train --bucket my-bucket --role {ROLE} --dry-run {IMAGENET}"
    assert main(launched.split()) == 0
    assert "1,281,167 objects, estimated as one an image" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("mode", "missing"),
    [
        ("fsx", "the file system beyond 1,200 GB (--bytes N)"),
        ("file", "the download and volume (--bytes N)"),
        ("efs", "the file system (--bytes N)"),
        ("local", "SageMaker starts each job on an empty instance"),
    ],
)
def test_a_total_without_a_part_says_so(mode: str, missing: str, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "resnet50", "--images", "1000", "--instance", "ml.g5.2xlarge", "--input-mode", mode]
    (row,) = ask(*words)["rows"]
    assert any(missing in part for part in row["missing"])
    assert main(["cost", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert missing in printed and "≥ $" in printed


def test_the_plan_of_a_request_says_what_its_total_lacks() -> None:
    request = build_request(TrainingJob("one", "ml.g5.2xlarge", ROLE, "b-1", [Channel("train", "s3://b-1/train", mode="File")]))
    (line, *_) = expected_cost(request, Work("resnet50", 1000, 1), TABLE).lines()
    assert "expected, without the download and volume (--bytes N)" in line


def test_the_same_is_said_of_equal_figures_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cost", *IMAGENET.replace(" ml.", " ").split(), "--input-mode"]
    assert main([*words, "local"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("the choice and its cost are the same: ") == 2, printed
    assert main([*words, "stream"]) == 0
    assert "With pytorch no machine can be priced: needs headrace's loader." in capsys.readouterr().out
    assert main([*words, "fastfile"]) == 2
    refused = capsys.readouterr().err
    assert "g5.2xlarge (a SageMaker input mode)" in refused and "--input-mode auto" in refused


def test_a_mode_that_some_machines_cannot_use_leaves_them_out(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    text = "--model resnet50 --images 1000 --bytes 1e9 --input-mode fastfile --instance g5.2xlarge ml.g5.2xlarge"
    words = text.split()
    found = ask(*words)
    assert [row["service"] for row in found["rows"]] == ["sagemaker"]
    assert found["left_out"] == {"a SageMaker input mode": ["g5.2xlarge"]}
    assert main(["cost", *words]) == 0
    assert "Left out: g5.2xlarge (a SageMaker input mode)." in capsys.readouterr().out


def test_the_augmentation_load_decides_the_rate_and_the_cpus_it_needs(ask: Ask, tmp_path: Path) -> None:
    words = ("--model", "resnet50", "--images", "1000", "--instance", "g5.2xlarge", "--loader", "pytorch", "--augmentation")
    light, heavy = (ask(*words, load)["rows"][0] for load in ("light", "heavy"))
    assert heavy["binds"] == "cpu" and heavy["input_vcpus"] > 8 > 2 < light["input_vcpus"] < heavy["input_vcpus"]
    by_name = {floor["resource"]: floor["img_s"] for floor in heavy["floors"]}
    assert by_name["cpu"]["source"].startswith("benchmarks/results/gpu-trials.md")
    assert heavy["input_vcpus"] == pytest.approx(8 * by_name["gpu"]["point"] / by_name["cpu"]["point"])
    (number,) = ask(*words, "20", "--cpu", "EPYC 7R32")["rows"]
    assert number["img_s"] == pytest.approx(8 * 1000 / 20)
    make_session(workers=2, cpu_s=0.64, batch_size=32, jitter=0.0).save(tmp_path / "session")
    (watched,) = ask(*words, str(tmp_path / "session"))["rows"]
    assert watched["img_s"] == pytest.approx(8 * 1000 / 20, rel=0.15), "20 CPU ms an image, and what collating takes"
    assert watched["floors"][0]["img_s"]["source"].startswith("the session")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--augmentation", "heav"], "no augmentation load 'heav'", "light, heavy"),
        (["--augmentation", "0"], "cannot take 0 CPU milliseconds", "0.001"),
        (["--augmentation", "nan"], "cannot take nan CPU milliseconds", "0.001"),
        (["--augmentation", "3", "--img-s", "400"], "another option", "leave out"),
        (["--augmentation", "3", "--img-s-per-core", "400"], "another option", "leave out"),
    ],
)
def test_a_wrong_augmentation_load_is_refused_with_the_remedy(
    words: list[str], message: str, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "--model", "resnet50", "--images", "9", "--instance", "g5.xlarge", *words]) == 2
    printed = capsys.readouterr().err
    assert message in printed and (hint or "") in printed


def test_a_session_without_cpu_times_is_no_augmentation_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = make_session(workers=1)
    replace(session, batches=tuple(replace(one, cpu_s=None) for one in session.batches)).save(tmp_path / "session")
    words = ["cost", "--model", "resnet50", "--images", "9", "--augmentation", str(tmp_path / "session")]
    assert main(words) == 2
    assert "holds no CPU time of batches" in capsys.readouterr().err


def test_the_loads_of_the_table_are_those_of_the_results() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "data" / "gpu-trials.json"
    rows = json.loads(results.read_text())["experiments"]["dali"]["rows"]
    table = TABLE.document["augmentation"]
    rates = {(row.get("loader"), row.get("load")): row.get("ingest_img_s") for row in rows}
    for name, load in table["loads"].items():
        for loader, rate in table["img_s_per_vcpu"][name].items():
            measured = rates.get((loader, load)) or rates["headrace", load]
            assert rate == pytest.approx(measured / 16), (name, loader)
