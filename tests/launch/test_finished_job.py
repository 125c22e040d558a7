"""Jobs that already ran are diagnosed from AWS's documents: fixtures from local jobs whose truth is known, and a stubbed AWS.

`finished_jobs/make.py` makes the fixtures.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cli.profile import finished_job as cli
from headrace.cost.market.prices import PriceTable
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import HeadraceError, SourceError
from headrace.launch.finished_job.diagnose import JobDiagnosis, diagnose_job
from headrace.launch.finished_job.documents import METRICS, read_documents
from headrace.launch.finished_job.fetch import fetch_documents
from headrace.report.sessions.session_folder import read_session_folder

HERE = Path(__file__).parent / "finished_jobs"
NAMES = sorted(path.parent.name for path in HERE.glob("*/truth.json"))
SECRET, PLANTED = "AKIAIOSFODNN7EXAMPLE", "planted-secret-value"


def found_in(name: str) -> JobDiagnosis:
    return diagnose_job(read_documents(HERE / name), PriceTable.load())


def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / name / "truth.json").read_text())
    return found


def test_at_least_nine_of_ten_known_jobs_get_their_verdict() -> None:
    wrong = {name: (found_in(name).diagnosis.verdict, truth(name)["verdict"]) for name in NAMES}
    wrong = {name: pair for name, pair in wrong.items() if pair[0] != pair[1]}
    assert len(NAMES) >= 16
    assert len({truth(name)["verdict"] for name in NAMES}) >= 7
    assert len(wrong) <= 0.1 * len(NAMES), wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_on_curves_is_less_sure_than_a_watched_one_and_says_how_to_raise_it(name: str) -> None:
    found = found_in(name)
    assert 0.1 <= found.diagnosis.confidence <= 0.7
    assert found.diagnosis.confidence_word in ("low", "medium")
    assert found.diagnosis.verdict in KINDS
    assert (found.account.command or "").startswith("headrace diagnose --seconds 300 -- python job.py --")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_invented(name: str) -> None:
    """A job of which only curves exist has no steps, rates or predictions, and the diagnosis lists what is missing."""
    found = found_in(name).diagnosis
    assert found.steps == 0 and found.step_s is None and found.img_s is None and found.share_of_step == {}
    assert all(fix.predicted_img_s is None and fix.gain is None for fix in found.fixes)
    assert any(line.startswith("steps:") for line in found.not_measured)
    document = json.loads(json.dumps(found.to_json()))
    assert "NaN" not in json.dumps(document)


def test_the_signs_of_the_articles_fire_where_they_should() -> None:
    signs = {name: {one.rule: one.fires for one in found_in(name).account.rules} for name in NAMES}
    assert signs["long-start"]["long_start"] and signs["long-download"]["long_start"]
    assert signs["cpu-saturated"]["gpu_low_cpu_high"] and signs["slow-store"]["all_low"]
    quiet = {"long_start": False, "gpu_low_cpu_high": False, "all_low": False}
    assert signs["healthy"] == signs["healthy-debugger"] == quiet
    assert signs["no-metrics"]["gpu_low_cpu_high"] is None  # cannot tell, which is not "no"
    assert signs["no-gpu"]["all_low"] is None
    for name in ("healthy", "cpu-saturated", "slow-store", "interrupted"):
        assert signs[name]["long_start"] is False, name


def test_the_account_adds_up_to_the_billed_time_and_prices_the_idle_part() -> None:
    for name in ("healthy", "slow-store", "long-start", "long-download"):
        account = found_in(name).account
        assert account.usd is not None and account.wasted_usd is not None and account.billable_s
        price = PriceTable.load().price(PriceTable.load().instance("g5.xlarge"), "sagemaker").usd_per_hour
        assert account.usd == pytest.approx(price * account.billable_s / 3600)
        idle = sum(account.idle_s.values())
        billed = sum(account.seconds.get(part, 0.0) for part in ("Downloading", "Training", "Uploading"))
        assert idle <= billed
        assert account.wasted_usd == pytest.approx(account.usd * idle / billed)
    assert found_in("healthy").account.wasted_usd < 0.2 * found_in("healthy").account.usd  # type: ignore[operator]
    start = found_in("long-start").account
    assert 25 * 30 * 0.8 < start.idle_s["start"] < 25 * 30 * 1.3  # the script slept 25 s, stretched by 30
    assert 0.8 < found_in("long-download").account.seconds["Downloading"] / (20 * 30) < 1.3


def test_proposed_commands_name_the_jobs_own_script_options_and_folders() -> None:
    fixes = {name: {fix.id: fix for fix in found_in(name).diagnosis.fixes} for name in NAMES}
    saturated, download = fixes["cpu-saturated"], fixes["long-download"]
    fetch, shrink, send = (saturated["pre_resize"].command or "").split(" && ")
    assert fetch == "aws s3 sync s3://my-bucket/photos photos" and send == "aws s3 sync photos-256 s3://my-bucket/photos-256"
    assert shrink == "headrace pack --short-side 256 --layout folder photos photos-256"  # which any script reads, unlike shards
    assert saturated["pre_resize"].effort == "one pass, no edit"
    assert (saturated["headrace_run"].command or "").startswith("headrace run -- python job.py --gpu-ms 5.0 ")
    assert "if headrace run takes its loader over" in saturated["headrace_run"].change  # nobody could ask its recogniser
    assert download["pack"].command == "headrace pack s3://my-bucket/photos s3://my-bucket/photos-packed"
    commands = [fix.command or "" for found in fixes.values() for fix in found.values()]
    assert not [command for command in commands if {"SRC", "DST", "train.py"} & set(command.split())]


def test_a_job_whose_folders_are_unknown_says_which_are_meant_and_headrace_train_is_not_run_under_headrace_run() -> None:
    documents = read_documents(HERE / "cpu-saturated")
    bare = {name: value for name, value in documents.description.items() if name not in ("InputDataConfig", "Environment")}
    found = {fix.id: fix for fix in diagnose_job(replace(documents, description=bare), PriceTable.load()).diagnosis.fixes}
    assert found["pre_resize"].command == "headrace pack --short-side 256 SRC DST"
    assert "SRC is the folder or bucket of the training images" in found["pre_resize"].change
    assert "headrace_run" not in found  # its entry point is headrace's own, whose input is headrace's already


def test_interruptions_are_told_and_not_blamed_on_the_input() -> None:
    found = found_in("interrupted")
    assert found.account.interruptions == truth("interrupted")["interruptions"] == 3
    assert "interrupted 3 times" in found.diagnosis.notes[0].text
    assert found.diagnosis.verdict == "COMPUTE_BOUND"


def test_a_failed_job_shows_its_reason_and_no_verdict() -> None:
    found = found_in("failed")
    assert found.diagnosis.verdict == "INSUFFICIENT_DATA"
    assert "the data has no class folders" in (found.account.reason or "")


def test_what_was_not_measured_is_never_zero() -> None:
    missing = found_in("no-gpu-metrics")
    assert not missing.session.host.gpus and "training" not in missing.account.idle_s
    assert missing.diagnosis.wasted_gpu_hours_per_100 is None
    assert "use of the GPU" in missing.diagnosis.not_measured
    nothing = found_in("no-metrics")
    assert nothing.session.samples == () and nothing.diagnosis.heat_map is None and nothing.diagnosis.percentiles == ()
    assert nothing.account.seconds["Training"] > 0  # the transitions are there


def test_the_debuggers_files_give_a_row_for_each_core_and_gpu() -> None:
    found = found_in("cpu-saturated-debugger").diagnosis
    assert found.heat_map is not None and len(found.heat_map.cores) == 4 and len(found.heat_map.gpus) == 1
    assert len(found.heat_map.time_s) > 40
    assert found.wait_share is not None and found.wait_share > 0.8  # framework metrics: waits for batches
    assert {row.name for row in found.percentiles} >= {"CPU", "GPU", "memory"}


# The command


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_files_give_the_fields_of_a_diagnosis_and_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, found = run_json(capsys, "diagnose", "--from-files", str(HERE / "slow-store"), "--out", str(out))
    assert code == 0
    assert {"verdict", "confidence", "share_of_step", "findings", "img_s", "ceiling_img_s", "not_measured", "report"} <= set(
        found
    )
    assert found["verdict"] == "STORAGE_LATENCY" and found["findings"][0]["cause_seen"] is False
    assert {"rules", "wasted_usd", "idle_s", "seconds", "command"} <= set(found["job"])
    page = Path(found["report"]).read_text()
    assert "CPU, mean of 4 cores" in page and "1 CPU cores" not in page
    assert "The job on SageMaker" in page and "all_low" in page and "CPUBottleneck" not in page
    assert main(["report", str(out)]) == 0  # the folder is a session like any other
    assert "STORAGE_LATENCY" in capsys.readouterr().out
    session, diagnosis = read_session_folder(out)
    assert isinstance(diagnosis, Diagnosis) and session.facts["sagemaker_job"]["name"] == "slow-store"


def test_the_screen_names_verdict_money_and_the_surer_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["diagnose", "--from-files", str(HERE / "cpu-saturated"), "--out", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr().out
    for words in (
        "CPU_SATURATED",
        "wasted",
        "gpu_low_cpu_high: yes",
        "a watched run is surer:  headrace diagnose",
        "not measured",
    ):
        assert words in shown, words
    assert "0 steps" not in shown


def test_a_given_price_of_a_gpu_hour_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("diagnose", "--from-files", str(HERE / "healthy"), "--out", str(tmp_path / "o"), "--usd-per-hour", "36")
    _, found = run_json(capsys, *words)
    assert found["job"]["usd"] == pytest.approx(found["job"]["billable_s"] / 100)


def test_fail_if_decides_the_exit_code(tmp_path: Path) -> None:
    folder = str(HERE / "cpu-saturated")
    assert main(["diagnose", "--from-files", folder, "--out", str(tmp_path / "a"), "--fail-if", "confidence>0.9"]) == 0
    assert main(["diagnose", "--from-files", folder, "--out", str(tmp_path / "b"), "--fail-if", "confidence>0.1"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-files", "FOLDER", "--sagemaker-job", "x"], "cannot be given together"),
        (["--from-files", "FOLDER", "--verify"], "needs a command"),
        (["--from-files", "FOLDER", "--instance", "g5.xlarge"], "names its instance type"),
        (["--from-files", "FOLDER", "--", "python", "train.py"], "takes no command"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *(str(HERE / "healthy") if word == "FOLDER" else word for word in words)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "it is no JSON that can be used"),
        ("[]", "not an answer of DescribeTrainingJob"),
        ("{}", "not an answer"),
    ],
)
def test_a_folder_without_a_usable_description_is_refused_in_words(
    tmp_path: Path, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "describe.json").write_text(content)
    assert main(["diagnose", "--from-files", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert message in shown and "aws sagemaker describe-training-job" in shown
    assert main(["diagnose", "--from-files", str(tmp_path / "nowhere")]) == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.json", "{"),
        ("metrics.json", '{"MetricDataResults": [{"Label": "algo-1 CPUUtilization", "Timestamps": [1], "Values": []}]}'),
        ("metrics.json", '{"MetricDataResults": [{"Label": "algo-1 CPUUtilization", "Timestamps": ["x"], "Values": [1]}]}'),
        ("metrics.json", '{"MetricDataResults": [{"Label": "something", "Timestamps": [1], "Values": [1]}]}'),
        ("profiler-output/system/incremental/1/1.algo-1.json", '{"Type":"cpu"}\nnot json\n'),
        ("profiler-output/framework/pevents/1/1_pythontimeline.json", '{"a": 1}'),
    ],
)
def test_damaged_files_are_listed_and_the_rest_is_used(tmp_path: Path, file: str, content: str) -> None:
    shutil.copytree(HERE / "long-download", tmp_path / "job")
    path = tmp_path / "job" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    found = diagnose_job(read_documents(tmp_path / "job"), PriceTable.load()).diagnosis
    assert any(Path(file).name in line for line in found.not_measured), found.not_measured


def test_an_open_list_of_a_killed_host_is_read(tmp_path: Path) -> None:
    shutil.copytree(HERE / "cpu-saturated-debugger", tmp_path / "job")
    (timeline,) = (tmp_path / "job").rglob("*pythontimeline.json")
    timeline.write_text(timeline.read_text().rstrip().removesuffix("]") + ",\n")
    wait = read_documents(tmp_path / "job").input_wait
    assert wait is not None and wait == read_documents(HERE / "cpu-saturated-debugger").input_wait


def test_values_that_the_instance_cannot_reach_are_left_out(tmp_path: Path) -> None:
    shutil.copytree(HERE / "cpu-saturated", tmp_path / "job")
    text = (tmp_path / "job" / "describe.json").read_text()
    (tmp_path / "job" / "describe.json").write_text(text.replace("ml.g5.xlarge", "ml.g5.12xlarge"))
    wide = diagnose_job(read_documents(tmp_path / "job"), PriceTable.load()).diagnosis
    assert wide.verdict != "CPU_SATURATED"  # 400 % of 48 cores is not much
    (tmp_path / "job" / "describe.json").write_text(text.replace("ml.g5.xlarge", "ml.unknown.huge"))
    unknown = diagnose_job(read_documents(tmp_path / "job"), PriceTable.load()).diagnosis
    assert unknown.verdict == "INSUFFICIENT_DATA"
    assert any("not in the table" in line for line in unknown.not_measured)


def test_a_type_with_fewer_cores_than_the_curve_shows_is_not_believed(tmp_path: Path) -> None:
    shutil.copytree(HERE / "no-gpu", tmp_path / "job")
    text = (tmp_path / "job" / "describe.json").read_text()
    (tmp_path / "job" / "describe.json").write_text(text.replace("ml.m5.xlarge", "ml.m5.large"))
    metrics = json.loads((tmp_path / "job" / "metrics.json").read_text())
    for one in metrics["MetricDataResults"]:
        if "CPU" in one["Label"]:
            one["Values"] = [350.0 for _ in one["Values"]]
    (tmp_path / "job" / "metrics.json").write_text(json.dumps(metrics))
    found = diagnose_job(read_documents(tmp_path / "job"), PriceTable.load()).diagnosis
    assert any("CPUUtilization reaches 350 %" in line for line in found.not_measured)


def test_times_may_be_numbers_as_the_old_command_line_writes_them(tmp_path: Path) -> None:
    shutil.copytree(HERE / "healthy", tmp_path / "job")
    description = json.loads((tmp_path / "job" / "describe.json").read_text())
    for one in description["SecondaryStatusTransitions"]:
        for key in ("StartTime", "EndTime"):
            if key in one:
                one[key] = datetime.fromisoformat(one[key]).timestamp()
    (tmp_path / "job" / "describe.json").write_text(json.dumps(description))
    found = diagnose_job(read_documents(tmp_path / "job"), PriceTable.load())
    assert found.diagnosis.verdict == "COMPUTE_BOUND"


# AWS, stubbed by botocore

boto3 = pytest.importorskip("boto3")
stub = pytest.importorskip("botocore.stub")
response = pytest.importorskip("botocore.response")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))


class Aws:
    """Stubbed clients of the three services."""

    def __init__(self) -> None:
        self.clients = {name: boto3.client(name, region_name="us-east-1") for name in ("sagemaker", "cloudwatch", "s3")}
        self.stubs = {name: stub.Stubber(client) for name, client in self.clients.items()}

    def fetch(self, folder: Path, log: list[str], waits: list[float] | None = None) -> list[str]:
        return fetch_documents(
            self.clients["sagemaker"], "slow-store", folder, metrics=self.clients["cloudwatch"], s3=self.clients["s3"],
            sleep=(waits if waits is not None else []).append, log=log.append, region="us-east-1",
        )  # fmt: skip


@pytest.fixture
def aws() -> Iterator[Aws]:
    found = Aws()
    for one in found.stubs.values():
        one.activate()
    yield found
    for one in found.stubs.values():
        one.assert_no_pending_responses()
        one.deactivate()


def description() -> dict[str, Any]:
    """The fixture's description as the service gives it, of a job that ended an hour ago."""
    found: dict[str, Any] = json.loads((HERE / "slow-store" / "describe.json").read_text())
    begin = datetime.fromisoformat(found["SecondaryStatusTransitions"][0]["StartTime"])
    late = datetime.now(UTC) - timedelta(hours=1) - begin
    for one in found["SecondaryStatusTransitions"]:
        one |= {key: datetime.fromisoformat(one[key]) + late for key in ("StartTime", "EndTime") if key in one}
    for key in ("TrainingStartTime", "TrainingEndTime"):
        found[key] = datetime.fromisoformat(found[key]) + late
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/slow-store"
    found |= {"TrainingJobArn": arn, "CreationTime": found["TrainingStartTime"]}
    found.setdefault("ModelArtifacts", {"S3ModelArtifacts": "s3://my-bucket/model"})
    found["Environment"] = {**found.get("Environment", {}), "WANDB_API_KEY": PLANTED}
    found["HyperParameters"] = {**found["HyperParameters"], "api-key": PLANTED}
    found["ProfilerConfig"] = {"S3OutputPath": "s3://my-bucket/profiler"}
    return found


def metric_pages(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The fixture's metrics in two pages, shifted to the description's times."""
    saved = json.loads((HERE / "slow-store" / "metrics.json").read_text())
    original = json.loads((HERE / "slow-store" / "describe.json").read_text())["SecondaryStatusTransitions"][0]["StartTime"]
    late = found["SecondaryStatusTransitions"][0]["StartTime"] - datetime.fromisoformat(original)
    results = [
        {**one, "Timestamps": [datetime.fromisoformat(time) + late for time in one["Timestamps"]]}
        for one in saved["MetricDataResults"]
    ]
    first = [{**one, "Timestamps": one["Timestamps"][:9], "Values": one["Values"][:9]} for one in results]
    second = [{**one, "Timestamps": one["Timestamps"][9:], "Values": one["Values"][9:]} for one in results]
    return [{"MetricDataResults": first, "NextToken": "more"}, {"MetricDataResults": second}]


def body(data: bytes) -> dict[str, Any]:
    return {"Body": response.StreamingBody(io.BytesIO(data), len(data))}


def test_a_job_is_fetched_page_by_page_through_throttling_and_without_secrets(aws: Aws, tmp_path: Path) -> None:
    found = description()
    aws.stubs["sagemaker"].add_client_error("describe_training_job", "ThrottlingException", "Rate exceeded")
    aws.stubs["sagemaker"].add_response("describe_training_job", found, {"TrainingJobName": "slow-store"})
    pages = metric_pages(found)
    aws.stubs["cloudwatch"].add_response("get_metric_data", pages[0])
    aws.stubs["cloudwatch"].add_client_error("get_metric_data", "Throttling", "Rate exceeded")
    aws.stubs["cloudwatch"].add_response("get_metric_data", pages[1])
    prefix = "profiler/slow-store/profiler-output/"
    event = b'{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":5.0,"NodeId":"algo-1","Timestamp":1.5}\n'
    keys = [f"{prefix}system/incremental/2026112302/1.algo-1.json", f"{prefix}framework/../../escape_pythontimeline.json"]
    listed = {"Contents": [{"Key": key} for key in keys], "IsTruncated": True, "NextContinuationToken": "more"}
    aws.stubs["s3"].add_response("list_objects_v2", listed, {"Bucket": "my-bucket", "Prefix": prefix})
    again = {"Bucket": "my-bucket", "Prefix": prefix, "ContinuationToken": "more"}
    aws.stubs["s3"].add_response("list_objects_v2", {"Contents": [{"Key": f"{prefix}system/training_job_end.ts"}]}, again)
    aws.stubs["s3"].add_client_error("get_object", "SlowDown", "Please reduce your request rate")
    aws.stubs["s3"].add_response("get_object", body(event), {"Bucket": "my-bucket", "Key": keys[0]})
    log: list[str] = []
    waits: list[float] = []
    assert aws.fetch(tmp_path / "out", log, waits) == []
    assert waits == [1.0, 1.0, 1.0] and sum("again in" in line for line in log) == 3
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"describe.json", "metrics.json", "1.algo-1.json"}
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert PLANTED not in written + "".join(log) and SECRET not in written + "".join(log)
    (tmp_path / "out" / "profiler-output" / "system" / "incremental" / "2026112302" / "1.algo-1.json").unlink()
    again_found = diagnose_job(read_documents(tmp_path / "out"), PriceTable.load())
    assert again_found.diagnosis.verdict == "STORAGE_LATENCY"
    assert PLANTED not in json.dumps(again_found.diagnosis.to_json()) + (again_found.account.command or "")


class Endless:
    """Services whose pages never end."""

    def describe_training_job(self, **_: Any) -> dict[str, Any]:
        return description()

    def get_metric_data(self, **_: Any) -> dict[str, Any]:
        return {"MetricDataResults": [], "NextToken": "more"}

    def list_objects_v2(self, **_: Any) -> dict[str, Any]:
        return {"Contents": [], "NextContinuationToken": "more"}


def test_pages_without_end_are_left_out(tmp_path: Path) -> None:
    out, server = tmp_path / "out", Endless()
    missing = fetch_documents(
        server, "slow-store", out, metrics=server, s3=server, sleep=lambda s: None, log=lambda line: None, region="us-east-1"
    )
    assert len(missing) == 2 and all("more than 1000 pages" in line for line in missing)
    assert read_documents(out).description["TrainingJobName"] == "slow-store"


class Many(Endless):
    """Services of a job that began twenty minutes ago, with too many files of the Debugger. asked: metrics, then files."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def describe_training_job(self, **_: Any) -> dict[str, Any]:
        found = description() | {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
        begin = datetime.now(UTC) - timedelta(minutes=20)
        found["SecondaryStatusTransitions"] = [{"Status": "Training", "StartTime": begin}]
        return found | {"LastModifiedTime": begin}

    def get_metric_data(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"MetricDataResults": []}

    def list_objects_v2(self, **_: Any) -> dict[str, Any]:
        hosts = [f"system/incremental/1/{100 + n}.algo-{host}.json" for n in range(300) for host in range(1, 11)]
        keys = [*hosts, *(f"framework/pevents/1/{100 + n}-7-algo-1_pythontimeline.json" for n in range(300))]
        return {"Contents": [{"Key": f"profiler/slow-store/profiler-output/{key}"} for key in keys]}

    def get_object(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"Body": io.BytesIO(b"[]")}


class Planted(Many):
    """A store with these objects below the job's files of the Debugger, all of `size` bytes; `told`: what the listing says."""

    def __init__(self, names: list[str], size: int, told: int) -> None:
        super().__init__()
        self.names, self.size, self.told = names, size, told

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:
        return {"Contents": [{"Key": f"{asked['Prefix']}{name}", "Size": self.told} for name in self.names]}

    def get_object(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"Body": io.BytesIO(b" " * self.size)}


def planted(folder: Path, names: list[str], size: int = 1, told: int = 1) -> tuple[Planted, list[str]]:
    store = Planted(names, size, told)
    client: Any = store
    return store, fetch_documents(
        client, "job", folder, metrics=None, s3=client, sleep=lambda _: None, log=lambda _: None, region="us-east-1"
    )


def test_the_files_of_the_debugger_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 files of a gigabyte each were fetched."""
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    names = [f"system/{number}.algo-1.json" for number in range(64)]
    store, missing = planted(tmp_path / "told", names, size=100_000, told=100_000)
    assert len(store.asked) == 8 and "every 8th is read" in missing[0]
    store, missing = planted(tmp_path / "not told", names, size=100_000)
    assert len(store.asked) == 11 and "have more than the limit together" in missing[0]


LONG_NAME, DEEP_NAME = f"system/{'x' * 300}.json", f"system/{'d/' * 2000}a.json"


@pytest.mark.parametrize("name", ["system/a.json/b.json", "system/a\0.json", "system/\ud800.json", LONG_NAME, DEEP_NAME])
def test_an_object_whose_name_cannot_be_kept_is_left_out_with_a_line(name: str, tmp_path: Path) -> None:
    """The first has a file in its path. Each ended the diagnosis with a traceback."""
    store, missing = planted(tmp_path / "out", ["system/a.json", name, "system/z.json"])
    assert len(store.asked) == 3 and len(missing) == 1 and "cannot be kept here" in missing[0]
    assert len(list((tmp_path / "out" / "profiler-output").rglob("*.json"))) == 2


def test_a_job_that_runs_is_asked_for_until_now_and_of_many_files_each_host_and_time_is_read(tmp_path: Path) -> None:
    server = Many()
    fetch_documents(
        server, "slow-store", tmp_path, metrics=server, s3=server, sleep=lambda s: None, log=lambda line: None, region="x"
    )
    metrics, *files = server.asked
    assert (datetime.now(UTC) - metrics["EndTime"]).total_seconds() < 60
    names = [str(one["Key"]).rpartition("/")[2] for one in files]
    assert len(names) <= 600
    for host in range(1, 11):
        minutes = sorted(int(name[:3]) for name in names if name.endswith(f".algo-{host}.json"))
        assert len(minutes) == 50 and minutes[0] < 106 and minutes[-1] >= 394
    assert len([name for name in names if "timeline" in name]) == 50


def test_every_host_and_metric_is_asked_for(aws: Aws, tmp_path: Path) -> None:
    found = description()
    found["ResourceConfig"]["InstanceCount"] = 2
    del found["ProfilerConfig"]
    asked: list[dict[str, Any]] = []
    client = aws.clients["cloudwatch"]
    client.meta.events.register("before-parameter-build.cloudwatch.GetMetricData", lambda params, **_: asked.append(params))
    aws.stubs["sagemaker"].add_response("describe_training_job", found)
    aws.stubs["cloudwatch"].add_response("get_metric_data", metric_pages(found)[1])
    aws.fetch(tmp_path / "out", [])
    dimensions = [query["MetricStat"]["Metric"] for query in asked[0]["MetricDataQueries"]]
    hosts = [one["Dimensions"][0]["Value"] for one in dimensions]
    assert sorted(set(hosts)) == ["slow-store/algo-1", "slow-store/algo-2"] and len(hosts) == 2 * len(METRICS)
    assert {one["Namespace"] for one in dimensions} == {"/aws/sagemaker/TrainingJobs"}
    assert asked[0]["StartTime"] < found["TrainingStartTime"] < found["TrainingEndTime"] < asked[0]["EndTime"]
    assert {query["MetricStat"]["Period"] for query in asked[0]["MetricDataQueries"]} == {60}


@pytest.mark.parametrize(("days", "period_s"), [(1, 60), (30, 300), (200, 3600), (500, None)])
def test_an_old_job_is_asked_for_in_the_points_that_cloudwatch_still_has(
    aws: Aws, tmp_path: Path, days: int, period_s: int | None
) -> None:
    found = description()
    del found["ProfilerConfig"]
    for one in found["SecondaryStatusTransitions"]:
        one |= {key: one[key] - timedelta(days=days) for key in ("StartTime", "EndTime") if key in one}
    asked: list[dict[str, Any]] = []
    client = aws.clients["cloudwatch"]
    client.meta.events.register("before-parameter-build.cloudwatch.GetMetricData", lambda params, **_: asked.append(params))
    aws.stubs["sagemaker"].add_response("describe_training_job", found)
    if period_s is not None:
        aws.stubs["cloudwatch"].add_response("get_metric_data", {"MetricDataResults": []})
    missing = aws.fetch(tmp_path / "out", [])
    periods = {query["MetricStat"]["Period"] for one in asked for query in one["MetricDataQueries"]}
    assert periods == ({period_s} if period_s else set())
    assert ("455 days" in missing[0]) if period_s is None else ("no points" in missing[0])


def test_a_job_that_is_not_there_is_named_with_near_names(aws: Aws, tmp_path: Path) -> None:
    aws.stubs["sagemaker"].add_client_error("describe_training_job", "ValidationException", "Requested resource not found.")
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"
    known = [
        {"TrainingJobName": name, "TrainingJobArn": arn, "CreationTime": datetime.now(UTC), "TrainingJobStatus": "Completed"}
        for name in ("slow-stores", "other")
    ]
    aws.stubs["sagemaker"].add_response("list_training_jobs", {"TrainingJobSummaries": known})
    with pytest.raises(SourceError) as error:
        aws.fetch(tmp_path / "out", [])
    assert str(error.value) == "there is no training job slow-store in us-east-1"
    assert error.value.hint == "near names: slow-stores"
    assert not (tmp_path / "out").exists()


def test_a_missing_job_is_told_where_jobs_may_not_be_listed(aws: Aws, tmp_path: Path) -> None:
    aws.stubs["sagemaker"].add_client_error("describe_training_job", "ValidationException", "Requested resource not found.")
    aws.stubs["sagemaker"].add_client_error("list_training_jobs", "AccessDeniedException", "no")
    with pytest.raises(SourceError, match="there is no training job") as error:
        aws.fetch(tmp_path / "out", [])
    assert error.value.hint is not None and "--region" in error.value.hint


def test_rights_that_are_missing_are_told_apart(aws: Aws, tmp_path: Path) -> None:
    """Without the description there is no diagnosis; without metrics and files there is what the description holds."""
    words = f"User {SECRET} is not authorized"
    aws.stubs["sagemaker"].add_client_error("describe_training_job", "AccessDeniedException", words)
    with pytest.raises(HeadraceError, match="AccessDenied") as error:
        aws.fetch(tmp_path / "out", [])
    assert SECRET not in str(error.value) and "right" in (error.value.hint or "")
    aws.stubs["sagemaker"].add_response("describe_training_job", description())
    aws.stubs["cloudwatch"].add_client_error("get_metric_data", "AccessDenied", words)
    aws.stubs["s3"].add_client_error("list_objects_v2", "AccessDenied", words)
    log: list[str] = []
    missing = aws.fetch(tmp_path / "out", log)
    assert len(missing) == 2 and missing == log
    assert "the metrics of CloudWatch cannot be read" in missing[0] and "the files of the Debugger" in missing[1]
    assert SECRET not in "".join(missing)
    found = diagnose_job(read_documents(tmp_path / "out"), PriceTable.load())
    assert found.diagnosis.verdict == "INSUFFICIENT_DATA" and found.account.seconds["Training"] > 0


def test_the_command_asks_aws_and_keeps_the_documents(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "aws_client", lambda service, region: aws.clients[service])
    found = description()
    del found["ProfilerConfig"]
    aws.stubs["sagemaker"].add_response("describe_training_job", found)
    for page in metric_pages(found):
        aws.stubs["cloudwatch"].add_response("get_metric_data", page)
    out = tmp_path / "out"
    assert main(["diagnose", "--sagemaker-job", "slow-store", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "STORAGE_LATENCY" in shown.out and PLANTED not in shown.out + shown.err and SECRET not in shown.out + shown.err
    for path in out.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path
            assert PLANTED.encode() not in path.read_bytes(), path
    assert main(["diagnose", "--from-files", str(out), "--out", str(tmp_path / "again")]) == 0
    assert "STORAGE_LATENCY" in capsys.readouterr().out


def test_two_jobs_are_compared_by_their_names(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "aws_client", lambda service, region: aws.clients[service])
    for name in ("job-a", "job-b"):
        found = {**description(), "TrainingJobName": name}
        del found["ProfilerConfig"]
        aws.stubs["sagemaker"].add_response("describe_training_job", found, {"TrainingJobName": name})
        for page in metric_pages(found):
            aws.stubs["cloudwatch"].add_response("get_metric_data", page)
    assert main(["compare", "job-a", "job-b"]) == 0
    assert "the job" in capsys.readouterr().out
    folders = sorted((tmp_path / "headrace-sessions").iterdir())
    assert [folder.name[-6:] for folder in folders] == ["-job-a", "-job-b"]
    assert main(["compare", *map(str, folders)]) == 0, "what was fetched stays"
    aws.stubs["sagemaker"].add_client_error("describe_training_job", "ValidationException", "Requested resource not found.")
    capsys.readouterr()
    assert main(["compare", "no-such-job", str(folders[1])]) == 1
    assert "there is no session no-such-job, and no SageMaker job: " in capsys.readouterr().err


# docs/guides/finished-job.md

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "finished-job.md"
BLOCKS = re.findall(r"^```(?:sh|text)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
COMMANDS = [line.partition("#")[0] for block in BLOCKS for line in block.splitlines() if line.startswith("headrace ")]


def test_the_commands_of_the_page_work(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "aws_client", lambda service, region: aws.clients[service])
    assert len(COMMANDS) == 6
    for name, fixture in (("job-a", "slow-store"), ("job-b", "healthy")):
        shutil.copytree(HERE / fixture, tmp_path / name)
    for line in COMMANDS:
        if "--sagemaker-job" in line:
            found = description()
            del found["ProfilerConfig"]
            aws.stubs["sagemaker"].add_response("describe_training_job", found)
            for page in metric_pages(found):
                aws.stubs["cloudwatch"].add_response("get_metric_data", page)
        assert main(shlex.split(line)[1:]) == 0, line


def test_the_output_on_the_page_is_that_of_the_fixture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["diagnose", "--from-files", str(HERE / "cpu-saturated"), "--out", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr().out
    (sample,) = [block for block in BLOCKS if block.startswith("CPU_SATURATED")]
    lines = [line.removesuffix(" …") for line in sample.splitlines() if line != "…"]
    assert len(lines) > 6
    for line in lines:
        assert line in shown, line
