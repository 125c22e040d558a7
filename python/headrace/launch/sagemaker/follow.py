"""Submit a training job, follow it to its end, stop it: status changes, log lines, and its cost beside the predicted one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.cost.market.prices import PREFIX, PriceTable
from headrace.errors import HeadraceError, UsageError
from headrace.launch.sagemaker.aws import error_code, is_passing, patiently
from headrace.launch.sagemaker.plan import ExpectedCost

__all__ = [
    "ENDED",
    "FinishedJob",
    "Prediction",
    "finished_job",
    "follow",
    "prediction_tags",
    "recorded_prediction",
    "stop",
    "submit",
    "upload_code",
    "usd_per_hour_of",
]

ENDED = frozenset({"Completed", "Failed", "Stopped"})
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
EVERY_S = 10.0

MOST_PAGES = 20
"""Pages of a host's log that are read before the status is asked for again: a page has 1 MB or 10,000 lines at most."""

CAPACITY = "CapacityError"
"""The FailureReason begins with this text if AWS had no machines for the job."""

USD_TAG, HOURS_TAG = "headrace:expected-usd", "headrace:expected-hours"
"""Tags of a job that store its expected cost and hours."""

MOST_REASONS = 8
"""Show so many reasons why a script ran plain: several processes may have one each."""

_RUNS_PLAIN = re.compile(r"headrace: (.+?) (?:runs plain|is off in process \d+): (.+)")
"""The lines of the entry file and of the hooks in the log."""

Log = Callable[[str], None]
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected cost of a job in USD and its expected hours of training."""

    usd: float
    hours: float


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that has ended. seconds: by status. savings: share that spot saved, 0 to 1. usd: billed time × price.

    ran_plain: why its script, or a process of it, ran without headrace, by its log. checkpoints: where they are kept. None: not
    known.
    """

    name: str
    status: str
    secondary: str
    seconds: Mapping[str, float]
    interruptions: int
    training_s: float | None
    billable_s: float | None
    savings: float | None
    usd: float | None
    predicted_usd: float | None
    predicted_hours: float | None
    model: str | None
    reason: str | None
    advice: str | None
    ran_plain: tuple[str, ...] = ()
    checkpoints: str | None = None

    def lines(self) -> list[str]:
        """Return how the job ended, its times and its cost, in plain sentences."""
        parts = ", ".join(f"{status} {seconds:,.0f} s" for status, seconds in self.seconds.items())
        found = [f"{self.name}: {self.secondary}" + (f" ({parts})" if parts else "")]
        if self.reason:
            found.append(self.reason)
        if self.advice:
            found.append(self.advice)
        found += [f"ran plain: {line}" for line in self.ran_plain]
        if self.billable_s is not None:
            saved = f", spot saved {100 * self.savings:.0f} %" if self.savings else ""
            money = f" = ${self.usd:,.2f}" if self.usd is not None else ""
            found.append(f"billed: {self.billable_s:,.0f} s{money}{saved}; interruptions: {self.interruptions}")
        if self.predicted_usd is not None and self.usd:
            found.append(f"predicted: ${self.predicted_usd:,.2f} ({100 * (self.predicted_usd / self.usd - 1):+.0f} %)")
        if self.model:
            found.append(f"model: {self.model}")
        elif self.status == "Stopped":
            kept = "nothing was saved: no model, and no CheckpointConfig that keeps what the script writes"
            found.append(f"no model; checkpoints, if the script wrote any: {self.checkpoints}" if self.checkpoints else kept)
        return found


def upload_code(s3: Any, request: Mapping[str, Any], files: list[Path], *, sleep: Sleep, log: Log) -> None:
    """Upload the wheel and the script to the S3 prefix of the request's channel `code`.

    Raises `UsageError` for files without such a channel, `HeadraceError` if S3 refuses them.
    """
    sources = {one["ChannelName"]: one["DataSource"].get("S3DataSource", {}) for one in request.get("InputDataConfig") or []}
    uri = sources.get("code", {}).get("S3Uri")
    if uri is None:
        if files:
            raise UsageError("the request has no channel `code` for the wheel or the script")
        return
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    note = b"files of this job: headrace's wheel and the script, if there are any\n"
    for name, data in (("README", note), *((file.name, file.read_bytes()) for file in files)):
        put = functools.partial(s3.put_object, Bucket=bucket, Key=f"{prefix}{name}", Body=data)
        patiently(put, f"writing {uri}{name}", sleep=sleep, log=log)


def submit(client: Any, request: Mapping[str, Any], *, sleep: Sleep, log: Log) -> str:
    """Send a request and return the ARN of the job. Raises `HeadraceError` if SageMaker refuses it.

    A connection that is lost while the request is under way may have made the job: the name tells.
    """
    lost = False

    def create() -> str:
        nonlocal lost
        try:
            return str(client.create_training_job(**request)["TrainingJobArn"])
        except Exception as error:
            code = error_code(error)
            if lost and code == "ResourceInUse":
                return str(client.describe_training_job(TrainingJobName=request["TrainingJobName"])["TrainingJobArn"])
            lost = lost or (is_passing(error) and not code)
            raise

    return patiently(create, f"creating {request['TrainingJobName']}", sleep=sleep, log=log)


def prediction_tags(expected: ExpectedCost | None) -> list[dict[str, str]]:
    """Return tags that store the expected cost with a job, so that `follow` can show it in another shell; [] if None."""
    if expected is None or expected.usd is None or expected.hours is None:
        return []
    return [{"Key": USD_TAG, "Value": f"{expected.usd:.4f}"}, {"Key": HOURS_TAG, "Value": f"{expected.hours:.4f}"}]


def recorded_prediction(client: Any, name: str) -> Prediction | None:
    """Return the expected cost stored in a job's tags; None if there is none or the credentials may not read tags."""
    try:
        arn = client.describe_training_job(TrainingJobName=name)["TrainingJobArn"]
        tags = {one["Key"]: one["Value"] for one in client.list_tags(ResourceArn=arn)["Tags"]}
        return Prediction(float(tags[USD_TAG]), float(tags[HOURS_TAG]))
    except Exception:  # the job counts, not its tags: following it says what is wrong
        return None


def stop(client: Any, name: str, *, sleep: Sleep, log: Log) -> None:
    """Ask AWS to stop a job: it gets SIGTERM and 120 seconds. Raises `HeadraceError` if AWS refuses."""
    patiently(lambda: client.stop_training_job(TrainingJobName=name), f"stopping {name}", sleep=sleep, log=log)


def follow(
    client: Any,
    logs: Any | None,
    name: str,
    *,
    table: PriceTable,
    expected: ExpectedCost | Prediction | None = None,
    sleep: Sleep,
    log: Log,
    every_s: float = EVERY_S,
) -> FinishedJob:
    """Print status changes and log lines of a job until it ends, and return how it ended.

    Raises `HeadraceError` if SageMaker does not know the job or refuses to answer.

    client, logs: of SageMaker and of CloudWatch Logs (None: without log). Throttling and lost connections are waited out.
    """
    shown = 0
    tail = _LogTail(logs, name)
    plain: dict[str, None] = {}
    while True:
        found = patiently(
            lambda: client.describe_training_job(TrainingJobName=name), f"asking for {name}", sleep=sleep, log=log, patience=40
        )
        transitions = found.get("SecondaryStatusTransitions") or []
        for one in transitions[shown:]:
            message = one.get("StatusMessage") or ""
            log(f"{one['Status']}: {message}" if message and message != one["Status"] else one["Status"])
        shown = len(transitions)
        for line in tail.new_lines():
            log(f"  {line}")
            if (found_plain := _RUNS_PLAIN.match(line)) and len(plain) < MOST_REASONS:
                plain[f"{found_plain[1]}: {found_plain[2]}"] = None
        if tail.is_behind:
            continue
        if found["TrainingJobStatus"] in ENDED:
            return replace(finished_job(found, table, expected), ran_plain=tuple(plain))
        sleep(every_s)


class _LogTail:
    """The lines of the job's log that have not been shown."""

    def __init__(self, client: Any | None, name: str) -> None:
        self._client, self._name = client, name
        self._tokens: dict[str, str] = {}
        self.is_behind = False  # whether there were more pages than are read at once

    def new_lines(self) -> Iterator[str]:
        """Yield the new lines of all hosts; none while the log is not there or cannot be read: it is not the job."""
        self.is_behind = False
        if self._client is None:
            return
        try:
            streams = self._client.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self._name}/")
            for stream in streams.get("logStreams", []):
                yield from self._lines(stream["logStreamName"])
        except Exception as error:  # botocore has a class for each error
            if not is_passing(error) and error_code(error) != "ResourceNotFoundException":
                self._client = None
                yield "the log cannot be read: the credentials may lack logs:GetLogEvents"

    def _lines(self, stream: str) -> Iterator[str]:
        """Yield the lines of the next pages. A job may log faster than pages come, and its status has to be asked for, too."""
        for _ in range(MOST_PAGES):
            token = self._tokens.get(stream)
            more = {"nextToken": token} if token else {}
            assert self._client is not None
            answer = self._client.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **more)
            self._tokens[stream] = answer["nextForwardToken"]
            yield from (event["message"].rstrip("\n") for event in answer["events"])
            if not answer["events"] or answer["nextForwardToken"] == token:
                return
        self.is_behind = True


def finished_job(found: Mapping[str, Any], table: PriceTable, expected: ExpectedCost | Prediction | None = None) -> FinishedJob:
    """Return status, times and cost of a job that has ended, from its DescribeTrainingJob and the price table."""
    training, billable = found.get("TrainingTimeInSeconds"), found.get("BillableTimeInSeconds")
    transitions = found.get("SecondaryStatusTransitions") or []
    seconds: dict[str, float] = {}
    for one in transitions:
        if one.get("StartTime") and one.get("EndTime"):
            lasted = (_moment(one["EndTime"]) - _moment(one["StartTime"])).total_seconds()
            seconds[one["Status"]] = seconds.get(one["Status"], 0.0) + lasted
    hourly = usd_per_hour_of(found, table)
    reason = found.get("FailureReason")
    saved = 1 - billable / training if found.get("EnableManagedSpotTraining") and training and billable is not None else None
    advice = None
    if reason and CAPACITY in reason:
        advice = "AWS had no machines: try another instance type, another region, spot with a longer --max-wait-hours, or later"
    return FinishedJob(
        name=found["TrainingJobName"],
        status=found["TrainingJobStatus"],
        secondary=found["SecondaryStatus"],
        seconds=seconds,
        interruptions=sum(one["Status"] == "Interrupted" for one in transitions),
        training_s=training,
        billable_s=billable,
        savings=saved,
        usd=None if hourly is None or billable is None else hourly * billable / 3600,
        predicted_usd=expected.usd if expected else None,
        predicted_hours=expected.hours if expected else None,
        model=(found.get("ModelArtifacts") or {}).get("S3ModelArtifacts"),
        reason=reason,
        advice=advice,
        checkpoints=(found.get("CheckpointConfig") or {}).get("S3Uri"),
    )


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def usd_per_hour_of(found: Mapping[str, Any], table: PriceTable) -> float | None:
    """Return the on-demand price of all instances of a job in USD per hour; None if the table lacks one of the types."""
    resources = found.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    try:
        instances = [(table.instance(group["InstanceType"].removeprefix(PREFIX)), group["InstanceCount"]) for group in groups]
        return float(sum(table.price(instance, "sagemaker").usd_per_hour * count for instance, count in instances))
    except (HeadraceError, KeyError):
        return None
