"""Jobs are sent, followed and stopped: against moto, and against responses that botocore's own models validate."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.cloud import followed
from headrace.cli.cloud import launch as cli
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable
from headrace.errors import HeadraceError
from headrace.launch.job_request.request import Channel, TrainingJob, build_request
from headrace.launch.sagemaker.follow import MOST_PAGES, Prediction, finished_job, follow, recorded_prediction, stop, submit
from headrace.launch.sagemaker.plan import Work, expected_cost

boto3 = pytest.importorskip("boto3")
stub = pytest.importorskip("botocore.stub")
moto = pytest.importorskip("moto")
exceptions = pytest.importorskip("botocore.exceptions")

SECRET = "AKIAIOSFODNN7EXAMPLE"
ROLE = "arn:aws:iam::123456789012:role/headrace-training"
ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/job-1"
BEGIN = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-value")
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))


@pytest.fixture
def request_() -> dict[str, Any]:
    channels = [Channel("train", "s3://my-bucket/flowers")]
    return build_request(
        TrainingJob("job-1", "ml.g5.2xlarge", ROLE, "my-bucket", channels, spot=True, hyperparameters={"model": "resnet50"})
    )


def client(service: str = "sagemaker") -> Any:
    return boto3.client(service, region_name="us-east-1")


@pytest.fixture
def stubbed() -> Iterator[tuple[Any, Any]]:
    found = client()
    with stub.Stubber(found) as answers:
        yield found, answers


def described(status: str, secondary: str, steps: list[tuple[str, float]], **more: Any) -> dict[str, Any]:
    """DescribeTrainingJob after these statuses and the seconds that each lasted; the last goes on."""
    transitions, at = [], BEGIN
    for place, (name, seconds) in enumerate(steps):
        one: dict[str, Any] = {"Status": name, "StartTime": at, "StatusMessage": f"{name} now"}
        at += timedelta(seconds=seconds)
        if place < len(steps) - 1 or status != "InProgress":
            one["EndTime"] = at
        transitions.append(one)
    return {
        "TrainingJobName": "job-1", "TrainingJobArn": ARN, "TrainingJobStatus": status, "SecondaryStatus": secondary,
        "ModelArtifacts": {"S3ModelArtifacts": "s3://my-bucket/model"}, "CreationTime": BEGIN,
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "ResourceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "SecondaryStatusTransitions": transitions, **more,
    }  # fmt: skip


STEPS = [("Starting", 100.0), ("Downloading", 50.0), ("Training", 1000.0), ("Interrupted", 30.0), ("Starting", 60.0),
         ("Downloading", 50.0), ("Training", 2000.0), ("Uploading", 20.0), ("Completed", 0.0)]  # fmt: skip


def test_a_spot_job_is_followed_through_an_interruption_and_priced(stubbed: tuple[Any, Any], request_: dict[str, Any]) -> None:
    found, answers = stubbed
    for upto, (name, _) in enumerate(STEPS[:-1]):
        answers.add_response("describe_training_job", described("InProgress", name, STEPS[: upto + 1]))
        if name == "Training":
            answers.add_client_error("describe_training_job", "ThrottlingException", "Rate exceeded")
    end = described("Completed", "Completed", STEPS, TrainingTimeInSeconds=3120, BillableTimeInSeconds=1000,
                    EnableManagedSpotTraining=True)  # fmt: skip
    answers.add_response("describe_training_job", end)
    lines: list[str] = []
    waits: list[float] = []
    table = PriceTable.load()
    expected = expected_cost(request_, Work("resnet50", 1_281_167, 16), table)
    done = follow(found, None, "job-1", table=table, expected=expected, sleep=waits.append, log=lines.append)
    shown = [line.split(":")[0] for line in lines if "again in" not in line]
    assert shown == [name for name, _ in STEPS]
    assert sum("ThrottlingException" in line for line in lines) == 2
    assert (done.status, done.interruptions, done.training_s, done.billable_s) == ("Completed", 1, 3120, 1000)
    assert done.savings == pytest.approx(1 - 1000 / 3120)
    price = table.price(table.instance("g5.2xlarge"), "sagemaker").usd_per_hour
    assert done.usd == pytest.approx(2 * price * 1000 / 3600)  # billed seconds are already less the spot discount
    assert done.seconds["Training"] == 3000 and done.seconds["Starting"] == 160
    assert done.predicted_usd == expected.usd is not None
    assert any("predicted: $" in line for line in done.lines())
    answers.assert_no_pending_responses()


def test_the_screen_of_a_spot_job_is_the_one_in_the_guide(stubbed: tuple[Any, Any]) -> None:
    found, answers = stubbed
    for upto, (name, _) in enumerate(STEPS[:-1]):
        answers.add_response("describe_training_job", described("InProgress", name, STEPS[: upto + 1]))
    end = described("Completed", "Completed", STEPS, TrainingTimeInSeconds=3120, BillableTimeInSeconds=1000,
                    EnableManagedSpotTraining=True)  # fmt: skip
    answers.add_response("describe_training_job", end)
    lines: list[str] = []
    done = follow(
        found, None, "job-1", table=PriceTable.load(), expected=Prediction(0.8, 0.9), sleep=lambda s: None, log=lines.append
    )
    page = (Path(__file__).parents[2] / "docs" / "guides" / "spot-job.md").read_text(encoding="utf-8")
    assert "\n".join([*lines, *done.lines()]).replace("job-1", "flowers-1") in page


@pytest.mark.parametrize(
    ("code", "hint"),
    [("ResourceLimitExceeded", "Service Quotas"), ("AccessDeniedException", "lack the right"), ("ResourceInUse", None)],
)
def test_a_refusal_is_explained_without_keys(
    stubbed: tuple[Any, Any], request_: dict[str, Any], code: str, hint: str | None
) -> None:
    found, answers = stubbed
    answers.add_client_error("create_training_job", code, f"User {SECRET} may not\ndo this")
    with pytest.raises(HeadraceError) as error:
        submit(found, request_, sleep=lambda s: None, log=lambda line: None)
    text = f"{error.value} {error.value.hint}"
    assert code in text and SECRET not in text and "\n" not in str(error.value)
    assert hint is None or hint in text
    assert error.value.__cause__ is None


def test_throttling_is_waited_out_with_growing_waits(stubbed: tuple[Any, Any], request_: dict[str, Any]) -> None:
    found, answers = stubbed
    for _ in range(4):
        answers.add_client_error("create_training_job", "ThrottlingException", "Rate exceeded")
    answers.add_response("create_training_job", {"TrainingJobArn": ARN}, request_)
    waits: list[float] = []
    assert submit(found, request_, sleep=waits.append, log=lambda line: None) == ARN
    assert waits == [1, 2, 4, 8]


class Flaky:
    """A client whose connection breaks: the request arrived, the answer did not."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.created = self.asked = 0

    def create_training_job(self, **request: Any) -> dict[str, str]:
        self.created += 1
        if self.errors:
            raise self.errors.pop(0)
        raise exceptions.ClientError({"Error": {"Code": "ResourceInUse", "Message": "exists"}}, "CreateTrainingJob")

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return described("Completed", "Completed", STEPS)


def test_a_job_that_a_lost_connection_had_made_is_found(request_: dict[str, Any]) -> None:
    flaky = Flaky(exceptions.ReadTimeoutError(endpoint_url="https://sagemaker"))
    assert submit(flaky, request_, sleep=lambda s: None, log=lambda line: None) == ARN
    assert flaky.created == 2


def test_following_outlives_lost_connections() -> None:
    flaky = Flaky(*(exceptions.EndpointConnectionError(endpoint_url="https://sagemaker") for _ in range(20)))
    lines: list[str] = []
    done = follow(flaky, None, "job-1", table=PriceTable.load(), sleep=lambda s: None, log=lines.append)
    assert done.status == "Completed" and sum("again in" in line for line in lines) == 20


def test_a_job_without_machines_is_explained(stubbed: tuple[Any, Any]) -> None:
    found, answers = stubbed
    reason = (
        "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
    )
    steps = [("Starting", 900.0), ("Failed", 0.0)]
    answers.add_response("describe_training_job", described("Failed", "Failed", steps, FailureReason=reason))
    done = follow(found, None, "job-1", table=PriceTable.load(), sleep=lambda s: None, log=lambda line: None)
    assert done.reason == reason and done.advice is not None and "another instance type" in done.advice


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ModelArtifacts": {"S3ModelArtifacts": ""}}, "nothing was saved: no model, and no CheckpointConfig"),
        ({"ModelArtifacts": {"S3ModelArtifacts": ""}, "CheckpointConfig": {"S3Uri": "s3://b/c"}}, "no model; checkpoints, if"),
        ({}, "model: s3://my-bucket/model"),
    ],
)
def test_a_job_that_was_stopped_says_what_it_saved(more: dict[str, Any], said: str) -> None:
    end = described("Stopped", "MaxRuntimeExceeded", STEPS[:3], **more)
    assert [line for line in finished_job(end, PriceTable.load()).lines() if line.startswith(said)]


def test_options_of_headrace_train_have_one_spelling_in_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--dry-run", "--json", "--batch-size", "8", "--hyperparameter", "batch_size=16"]) == 0
    asked = json.loads(capsys.readouterr().out)["request"]["HyperParameters"]
    assert asked == {"model": "resnet50", "batch-size": "16"}
    (tmp_path / "train.py").write_text("")
    assert (
        main([*WORDS, "--dry-run", "--json", "--script", str(tmp_path / "train.py"), "--hyperparameter", "batch_size=16"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["request"]["HyperParameters"]["batch_size"] == "16"


def test_the_log_of_all_hosts_is_shown_once() -> None:
    logs = client("logs")
    with stub.Stubber(logs) as answers:
        streams = [{"logStreamName": f"job-1/algo-{number}-1"} for number in (1, 2)]
        answers.add_response("describe_log_streams", {"logStreams": streams})
        for number in (1, 2):
            event = {"timestamp": 1, "message": f"host {number} epoch 1\n", "ingestionTime": 1}
            answers.add_response("get_log_events", {"events": [event], "nextForwardToken": "f/1", "nextBackwardToken": "b"})
            answers.add_response("get_log_events", {"events": [], "nextForwardToken": "f/1", "nextBackwardToken": "b"})
        lines: list[str] = []
        follow(Flaky(), logs, "job-1", table=PriceTable.load(), sleep=lambda s: None, log=lines.append)
        answers.assert_no_pending_responses()
    assert [line for line in lines if line.startswith("  host")] == ["  host 1 epoch 1", "  host 2 epoch 1"]


def test_the_end_says_what_ran_plain_by_the_log() -> None:
    logs = client("logs")
    with stub.Stubber(logs) as answers:
        answers.add_response("describe_log_streams", {"logStreams": [{"logStreamName": "job-1/algo-1-1"}]})
        why = "Python 3.10, and headrace needs 3.11"
        messages = [f"headrace: train.py runs plain: {why}\n", "headrace: taken over: decode\n"] * 2
        messages.append("headrace: headrace.accelerate.hook is off in process 7: ValueError: x\n")
        events = [{"timestamp": 1, "message": message, "ingestionTime": 1} for message in messages]
        answers.add_response("get_log_events", {"events": events, "nextForwardToken": "f/1", "nextBackwardToken": "b"})
        answers.add_response("get_log_events", {"events": [], "nextForwardToken": "f/1", "nextBackwardToken": "b"})
        done = follow(Flaky(), logs, "job-1", table=PriceTable.load(), sleep=lambda s: None, log=lambda line: None)
    assert done.ran_plain == (f"train.py: {why}", "headrace.accelerate.hook: ValueError: x")
    assert f"ran plain: train.py: {why}" in done.lines()


class Endless:
    """A log whose pages never end."""

    pages = 0

    def describe_log_streams(self, **_: Any) -> dict[str, Any]:
        return {"logStreams": [{"logStreamName": "job-1/algo-1"}]}

    def get_log_events(self, **_: Any) -> dict[str, Any]:
        self.pages += 1
        return {"events": [{"message": "x"}], "nextForwardToken": f"f/{self.pages}"}


def test_a_log_without_end_is_shown_as_it_comes() -> None:
    """All pages were kept in memory before the first line was shown, and the job's status was not asked for."""
    asked, lines = Flaky(), list[str]()

    def log(line: str) -> None:
        lines.append(line)
        if len(lines) > 10 * MOST_PAGES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(asked, Endless(), "job-1", table=PriceTable.load(), sleep=lambda s: None, log=log)
    assert asked.asked > 1


def test_a_log_that_may_not_be_read_is_one_line() -> None:
    logs = client("logs")
    with stub.Stubber(logs) as answers:
        answers.add_client_error("describe_log_streams", "AccessDeniedException", "no")
        lines: list[str] = []
        follow(Flaky(), logs, "job-1", table=PriceTable.load(), sleep=lambda s: None, log=lines.append)
    assert sum("log cannot be read" in line for line in lines) == 1


def test_stop_asks_aws(stubbed: tuple[Any, Any]) -> None:
    found, answers = stubbed
    answers.add_response("stop_training_job", {}, {"TrainingJobName": "job-1"})
    stop(found, "job-1", sleep=lambda s: None, log=lambda line: None)
    answers.add_client_error("stop_training_job", "ResourceNotFound", "Requested resource not found.")
    with pytest.raises(HeadraceError) as error:
        stop(found, "job-1", sleep=lambda s: None, log=lambda line: None)
    assert error.value.hint is not None and "--region" in error.value.hint


def test_a_job_that_ran_at_home_is_read_like_one_of_aws(tmp_path: Path) -> None:
    end = described("Completed", "Completed", STEPS, TrainingTimeInSeconds=10, BillableTimeInSeconds=10)
    done = finished_job(json.loads(json.dumps(end, default=str)), PriceTable.load())
    assert done.seconds["Training"] == 3000


WORDS = ["launch", "sagemaker", "--model", "resnet50", "--data", "s3://my-bucket/flowers", "--instance", "ml.g5.2xlarge",
         "--role", ROLE, "--bucket", "my-bucket", "--name", "job-1"]  # fmt: skip


def test_the_command_sends_a_job_and_follows_it_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    with moto.mock_aws():
        client("s3").create_bucket(Bucket="my-bucket")
        assert main([*WORDS, "--script", str(script), "--yes", "--json"]) == 0
        printed = capsys.readouterr()
        document = json.loads(printed.out)
        assert document["arn"].endswith("training-job/job-1")
        assert document["job"]["status"] == "Completed"
        code = client("s3").get_object(Bucket="my-bucket", Key="headrace/job-1/code/source.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(code)) as archive:
            assert archive.extractfile("train.py").read() == b"print(1)"  # type: ignore[union-attr]
        found = client().describe_training_job(TrainingJobName="job-1")
        assert found["HyperParameters"] == {"model": "resnet50"}
        assert main(["launch", "follow", "job-1"]) == 0
        assert "job-1: Completed" in capsys.readouterr().out
        assert main(["launch", "follow", "none"]) == 1
        assert "asking for none" in capsys.readouterr().err
    assert SECRET not in printed.out + printed.err and "planted" not in printed.out + printed.err


def test_another_shell_shows_the_prediction_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    with moto.mock_aws():
        client("s3").create_bucket(Bucket="my-bucket")
        assert main([*WORDS, "--images", "1281167", "--epochs", "16", "--spot", "--yes", "--no-follow", "--json"]) == 0
        expected = json.loads(capsys.readouterr().out)["expected_cost"]
        assert expected["usd"] > 0
        assert main(["launch", "follow", "job-1", "--json"]) == 0
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert found["predicted_usd"] == pytest.approx(expected["usd"], abs=1e-4)
        assert found["predicted_hours"] == pytest.approx(expected["hours"], abs=1e-4)
        assert f"predicted: ${expected['usd']:,.2f}" in shown.err


def test_a_job_without_a_prediction_is_followed_all_the_same(stubbed: tuple[Any, Any]) -> None:
    found, answers = stubbed
    done = described("Completed", "Completed", STEPS)
    answers.add_response("describe_training_job", done)
    answers.add_client_error("list_tags", "AccessDeniedException", "no")
    assert recorded_prediction(found, "job-1") is None
    answers.add_response("describe_training_job", done)
    answers.add_response("list_tags", {"Tags": [{"Key": "headrace", "Value": "1"}]}, {"ResourceArn": ARN})
    assert recorded_prediction(found, "job-1") is None
    answers.add_response("describe_training_job", done)
    tags = [{"Key": "headrace:expected-usd", "Value": "12.5"}, {"Key": "headrace:expected-hours", "Value": "3"}]
    answers.add_response("list_tags", {"Tags": tags}, {"ResourceArn": ARN})
    assert recorded_prediction(found, "job-1") == Prediction(12.5, 3.0)


def test_a_wheel_that_pip_would_refuse_is_refused_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "headrace.whl").write_text("")
    assert main([*WORDS, "--yes", "--wheel", str(tmp_path / "headrace.whl")]) == 2
    assert "pip refuses the name headrace.whl" in capsys.readouterr().err
    assert main([*WORDS, "--yes", "--wheel", str(tmp_path / "none-1-py3-none-any.whl")]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_nothing_is_sent_without_a_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "aws_client", lambda *_: pytest.fail("AWS was asked"))
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert main(WORDS) == 2
    assert "--yes sends it" in capsys.readouterr().err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert main(WORDS) == 2
    printed = capsys.readouterr().err
    assert "send this request? [y/N]" in printed and "the request was not sent" in printed and "at most $" in printed
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # in a notebook's !command nobody can answer: the cell would never end
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(WORDS) == 2
    printed = capsys.readouterr().err
    assert "[y/N]" not in printed and "--yes sends it" in printed


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Running:
        def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
            raise KeyboardInterrupt

    monkeypatch.setattr(followed, "aws_client", lambda *_: Running())
    assert main(["launch", "follow", "job-1", "--region", "eu-west-1"]) == 130
    printed = capsys.readouterr().err
    assert "headrace launch follow job-1 --region eu-west-1" in printed and "headrace launch stop job-1" in printed


def test_no_credentials_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert main([*WORDS, "--yes"]) == 1
    printed = capsys.readouterr().err
    assert "there are no AWS credentials" in printed and "Traceback" not in printed
