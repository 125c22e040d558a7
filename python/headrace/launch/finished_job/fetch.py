"""Fetch the documents of a job that already ran from AWS into a folder.

The description is needed; what the credentials may not read of the rest, or what AWS no longer has, is left out with a line.
Secrets in the description (variables, hyperparameters) are not written.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SourceError
from headrace.launch.finished_job.documents import METRICS, host_and_name, host_names
from headrace.launch.finished_job.times import job_times
from headrace.launch.sagemaker.aws import MOST_PAGES, error_code, list_sizes, patiently, read_object
from headrace.launch.sagemaker.follow import ENDED
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import check_below, make_private_folder
from headrace.system.text.redaction import redact_text
from headrace.system.text.size_limits import RECORD_LIMIT, record_limit

__all__ = ["fetch_documents"]

NAMESPACE = "/aws/sagemaker/TrainingJobs"

DAY_S = 86400
KEPT = ((15 * DAY_S, 60), (63 * DAY_S, 300), (455 * DAY_S, 3600))
"""Age up to which CloudWatch keeps points of so many seconds ("Amazon CloudWatch User Guide", metrics retention)."""

MOST_QUERIES = 500
"""Queries that one GetMetricData takes."""

MOST_FILES = 600
"""Read at most this many files of the Debugger, spread over the job: it writes one a minute for each host."""

MOST_POINTS = 4_000_000
"""Ask for points of longer periods where there would be more, and read no more: they are held in memory."""

WANTED = re.compile(r"(system/.+\.json|framework/.+pythontimeline\.json)")

Log = Callable[[str], None]
Sleep = Callable[[float], None]


def fetch_documents(
    client: Any, name: str, folder: Path, *, metrics: Any | None, s3: Any | None, sleep: Sleep, log: Log, region: str
) -> list[str]:
    """Write the documents of a job to a folder and return sentences about what could not be had.

    client, metrics, s3: of SageMaker, CloudWatch and S3; None leaves that part out. Raises `SourceError` for a job that is not
    there, with near names, `HeadraceError` without the right to describe it.
    """
    found = _describe(client, name, sleep, log, region)
    make_private_folder(folder)
    atomic_write(folder / "describe.json", json.dumps(_without_secrets(found), indent=1, default=_text), private=True)
    missing: list[str] = []
    parts = (("the metrics of CloudWatch", metrics, _metrics), ("the files of the Debugger", s3, _profiler_files))
    for what, service, fetch in parts:
        if service is not None:
            try:
                missing += fetch(service, found, folder, sleep, log)
            except HeadraceError as reason:
                missing.append(f"{what} cannot be read: {reason}{f' ({reason.hint})' if reason.hint else ''}")
    for line in missing:
        log(line)
    return missing


def _describe(client: Any, name: str, sleep: Sleep, log: Log, region: str) -> dict[str, Any]:
    def describe() -> dict[str, Any]:
        try:
            found: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
        except Exception as error:  # botocore has a class for each error
            # SageMaker answers ValidationException "Requested resource not found." for a name that it does not know.
            if error_code(error) in ("ResourceNotFound", "ValidationException"):
                raise _no_job(client, name, region) from None
            raise
        return found

    return patiently(describe, f"asking for {name}", sleep=sleep, log=log)


def _no_job(client: Any, name: str, region: str) -> SourceError:
    try:
        jobs = client.list_training_jobs(MaxResults=100, SortBy="CreationTime", SortOrder="Descending")["TrainingJobSummaries"]
        near = difflib.get_close_matches(name, [str(one["TrainingJobName"]) for one in jobs], n=3, cutoff=0.5)
    except Exception:  # the credentials may not list jobs: the message is good enough without near names
        near = []
    hint = f"near names: {', '.join(near)}" if near else "check the name and --region"
    return SourceError(f"there is no training job {name} in {region}", hint=hint)


def _without_secrets(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in found.items() if key != "ResponseMetadata"}
    for part in ("Environment", "HyperParameters"):
        values = kept.get(part)
        if isinstance(values, dict):
            kept[part] = {name: redact_text(f"{name}={value}").partition("=")[2] for name, value in values.items()}
    if "FailureReason" in kept:
        kept["FailureReason"] = redact_text(str(kept["FailureReason"]))
    return kept


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _metrics(client: Any, description: Mapping[str, Any], folder: Path, sleep: Sleep, log: Log) -> list[str]:
    is_over = description["TrainingJobStatus"] in ENDED
    times = job_times(description, now_s=0.0 if is_over else time.time())
    if times.begin_s is None or times.end_s is None:
        return ["the metrics of CloudWatch: the description has no times"]
    age_s = time.time() - times.begin_s
    period_s = next((period for age, period in KEPT if age_s < age), None)
    if period_s is None:
        return ["CloudWatch no longer has the metrics of this job: it keeps them for 455 days"]
    name = description["TrainingJobName"]
    queries: list[dict[str, Any]] = [
        {
            "Id": f"m{place}_{number}",
            "Label": f"{host} {metric}",
            "MetricStat": {
                "Metric": {
                    "Namespace": NAMESPACE,
                    "MetricName": metric,
                    "Dimensions": [{"Name": "Host", "Value": f"{name}/{host}"}],
                },
                "Stat": "Average",
            },
        }
        for place, host in enumerate(host_names(description))
        for number, metric in enumerate(METRICS)
    ]
    while len(queries) * (times.end_s - times.begin_s) / period_s > MOST_POINTS:
        period_s *= 2
    for query in queries:
        query["MetricStat"]["Period"] = period_s
    span = {
        "StartTime": datetime.fromtimestamp(times.begin_s // period_s * period_s, UTC),
        "EndTime": datetime.fromtimestamp(times.end_s + period_s, UTC),
        "ScanBy": "TimestampAscending",
    }
    pages, points = list[dict[str, Any]](), 0
    for start in range(0, len(queries), MOST_QUERIES):
        token: str | None = None
        while True:
            more = {"NextToken": token} if token else {}
            asked = {"MetricDataQueries": queries[start : start + MOST_QUERIES], **span, **more}
            answer = patiently(functools.partial(client.get_metric_data, **asked), "asking for metrics", sleep=sleep, log=log)
            pages.append({"MetricDataResults": answer["MetricDataResults"]})
            points += sum(len(result["Values"]) for result in answer["MetricDataResults"])
            token = answer.get("NextToken")
            if not token:
                break
            if len(pages) >= MOST_PAGES or points > 2 * MOST_POINTS:
                raise SourceError(f"they have more than {MOST_PAGES} pages or {2 * MOST_POINTS:,} points")
    atomic_write(folder / "metrics.json", json.dumps(pages, default=_text), private=True)
    return [] if points else ["CloudWatch has no points for this job"]


def _profiler_files(s3: Any, description: Mapping[str, Any], folder: Path, sleep: Sleep, log: Log) -> list[str]:
    config = description.get("ProfilerConfig") or {}
    uri = str(config.get("S3OutputPath") or "")
    if not uri.startswith("s3://") or config.get("DisableProfiler"):
        return []
    bucket, _, prefix = uri.removeprefix("s3://").strip("/").partition("/")
    below = "/".join(filter(None, (prefix, str(description["TrainingJobName"]), "profiler-output"))) + "/"
    listed = list_sizes(s3, bucket, below, sleep=sleep, log=log)
    sizes = {key: size for key, size in listed if WANTED.fullmatch(key.removeprefix(below))}
    keys = [key for key in sizes if ".." not in key.split("/")]
    # By kind and host, then time, so that every n-th of all is every n-th of each host.
    keys.sort(key=lambda key: (key.removeprefix(below).partition("/")[0], host_and_name(key)))
    every, left = max(1, -(-len(keys) // MOST_FILES)), record_limit()
    while every < len(keys) and sum(sizes[key] for key in keys[::every]) > left:
        every *= 2
    missing = [f"of {len(keys):,} files of the Debugger every {every}th is read"] if every > 1 else []
    for key in keys[::every]:
        read = read_object(s3, bucket, key, sleep=sleep, log=log)
        if (left := left - len(read)) < 0:
            words = f"have more than the limit together ({RECORD_LIMIT}=SIZE raises it)"
            raise SourceError(f"the files of the Debugger up to s3://{bucket}/{key} {words}")
        path = folder / "profiler-output" / key.removeprefix(below)
        try:
            check_below(folder, path.parent)
            make_private_folder(path.parent)
            atomic_write(path, read, private=True)
        except (OSError, RecursionError, ValueError) as reason:  # a key may be no name of a file here
            missing.append(f"s3://{bucket}/{key} cannot be kept here: {getattr(reason, 'strerror', None) or reason}")
    return missing
