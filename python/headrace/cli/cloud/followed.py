"""`headrace launch follow` and `stop`: a job that was sent, to its end, with its report, its price and the next command."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.profile.session_command import print_diagnosis
from headrace.cli.shared import output
from headrace.cli.shared.unnamed_folder import unnamed_folder
from headrace.cost.market.live_prices import read_table
from headrace.cost.market.prices import PriceTable
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import HeadraceError, UsageError
from headrace.launch.own_code.plain_reasons import plain_reasons
from headrace.launch.own_code.source import ENTRY
from headrace.launch.sagemaker.aws import aws_client, patiently
from headrace.launch.sagemaker.baseline import against_plain
from headrace.launch.sagemaker.follow import (
    ENDED,
    FinishedJob,
    Prediction,
    finished_job,
    follow,
    recorded_prediction,
    stop,
)
from headrace.launch.sagemaker.plan import ExpectedCost
from headrace.launch.sagemaker.results import fetch_results
from headrace.profiling.command import sessions_folder
from headrace.profiling.finish import REPORT_FILE
from headrace.report.sessions.session_folder import read_session_folder
from headrace.session.model import Session

__all__ = ["FollowedJob", "add_follow_options", "follow_to_the_end", "job_of_name", "prices", "show_end"]


@dataclass(frozen=True, slots=True)
class FollowedJob:
    """A job at its end. sessions: folders of the fetched sessions, one for each host. first: the first, read.

    plain: what the job costs beside the same script as it is, in words. next: the next command.
    """

    job: FinishedJob
    next: str
    plain: str | None = None
    sessions: list[Path] = field(default_factory=list)
    first: tuple[Session, Diagnosis] | None = None

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        more = {"plain": self.plain, "sessions": list(map(str, self.sessions)), "next": self.next}
        return {**dataclasses.asdict(self.job), **more}


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job that is followed."""
    group = parser.add_argument_group("following a job")
    group.add_argument(
        "--baseline", metavar="JOB", help="a finished job of the same script as it is, to compare time and price with"
    )


def prices(region: str) -> PriceTable:
    """Return the prices of the region, or those of the offline table with one line that says so."""
    try:
        return read_table(region, output.log)[0]
    except UsageError as reason:
        output.log(f"headrace launch: {reason}: its prices are shown; headrace cost refresh --region {region} asks AWS")
        return PriceTable.load()


def job_of_name(args: argparse.Namespace) -> int:
    """Follow or stop the job that the command line names."""
    if args.job is None:
        raise UsageError(f"launch {args.target} needs the name of a job", hint=f"headrace launch {args.target} NAME")
    client = aws_client("sagemaker", args.region)
    if args.target == "stop":
        stop(client, args.job, sleep=time.sleep, log=output.log)
        words = f"{args.job} is being stopped: it has 120 s to save"
        output.emit(args, {"stopped": args.job}, lambda: output.say(words))
        return 0
    end = follow_to_the_end(args, client, args.job, None)
    output.emit(args, end.document(), lambda: show_end(end))
    return 0 if end.job.status == "Completed" else 1


def follow_to_the_end(args: argparse.Namespace, client: Any, name: str, cost: ExpectedCost | None) -> FollowedJob:
    """Follow a job, fetch its report, and compare its price; Ctrl-C leaves it running and says how to go on."""
    table = prices(args.region)
    baseline = None if args.baseline is None else _baseline(client, args.baseline)
    try:
        logs = aws_client("logs", args.region)
        expected = recorded_prediction(client, name) if cost is None else cost
        if isinstance(expected, Prediction):
            output.log(f"predicted: ${expected.usd:,.2f}, {expected.hours:.1f} h of training")
        done = follow(client, logs, name, table=table, expected=expected, sleep=time.sleep, log=output.log)
    except KeyboardInterrupt:
        output.log(f"{name} goes on without you")
        output.log(f"come back:  headrace launch follow {name} --region {args.region}")
        output.log(f"end it:     headrace launch stop {name} --region {args.region}")
        raise
    description = _described(client, name)
    folder = _place(args.out if args.target == "follow" else None, name)
    is_own = _is_own_script(description)
    sessions: list[Path] = []
    if folder is not None and (is_own or _is_of_sdk_3(description)):
        sessions = _fetched(args.region, description, folder)
    if folder is not None and not done.ran_plain:
        done = dataclasses.replace(done, ran_plain=tuple(plain_reasons(folder)))
    plain = None
    if is_own or sessions or baseline is not None:
        plain = against_plain(description, done, baseline, None if baseline is None else finished_job(baseline, table))
    first = _read(sessions[0]) if sessions else None
    return FollowedJob(done, _next(args, name, done, first), plain, sessions, first)


def show_end(end: FollowedJob) -> None:
    """Print the first screen of the job's diagnosis, its times and price, and the next command."""
    if end.first is not None:
        session, diagnosis = end.first
        print_diagnosis(diagnosis, session)
    for line in end.job.lines():
        output.say(line)
    if end.plain is not None:
        output.say(end.plain)
    for folder in end.sessions[1:]:
        output.say(f"report: {folder / REPORT_FILE}")
    output.say(f"next:  {end.next}")


def _described(client: Any, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = patiently(
        lambda: client.describe_training_job(TrainingJobName=name), f"asking for {name}", sleep=time.sleep, log=output.log
    )
    return found


def _baseline(client: Any, name: str) -> Mapping[str, Any]:
    found = _described(client, name)
    if found["TrainingJobStatus"] not in ENDED:
        raise UsageError(f"--baseline {name}: that job still runs", hint=f"headrace launch follow {name}")
    return found


def _is_own_script(description: Mapping[str, Any]) -> bool:
    """Return whether the job starts a script of the user's by headrace's entry file."""
    values = [*(description.get("Environment") or {}).values(), *(description.get("HyperParameters") or {}).values()]
    return any(str(value).strip('"') == ENTRY for value in values)


def _is_of_sdk_3(description: Mapping[str, Any]) -> bool:
    """Return whether a `ModelTrainer` of SDK 3 made the job: its request does not name the script."""
    return any(channel["ChannelName"] == "sm_drivers" for channel in description.get("InputDataConfig") or [])


def _place(named: Path | None, job: str) -> Path | None:
    """Return the folder for the report of a job, or None, with a line, where what is there may lead elsewhere."""
    try:
        return named or unnamed_folder(str(sessions_folder() / job))
    except HeadraceError as reason:
        output.log(f"the report of the job is not fetched: {reason}; --out FOLDER names a place for it")
        return None


def _fetched(region: str, description: Mapping[str, Any], folder: Path) -> list[Path]:
    try:
        return fetch_results(aws_client("s3", region), description, folder, sleep=time.sleep, log=output.log)
    except (HeadraceError, OSError) as reason:
        output.log(f"the report of the job cannot be fetched: {reason}")
        return []


def _read(folder: Path) -> tuple[Session, Diagnosis] | None:
    try:
        session, diagnosis = read_session_folder(folder)
    except HeadraceError as reason:
        output.log(f"the session of the job cannot be read: {reason}")
        return None
    report = folder / REPORT_FILE
    return session, dataclasses.replace(diagnosis, session=str(folder), report=str(report) if report.is_file() else None)


def _next(args: argparse.Namespace, name: str, done: FinishedJob, first: tuple[Session, Diagnosis] | None) -> str:
    """Return the next command, or the next change."""
    if done.ran_plain and done.status == "Completed":
        return "mend what made it run plain, and start the job again"
    if first is not None and any(fix.id == "headrace_run" for fix in first[1].fixes):
        return 'the same job with --under run, in a notebook under(estimator, "run")'
    if first is not None:
        return f"headrace report {shlex.quote(first[1].session or '')}"
    return f"headrace diagnose --sagemaker-job {name} --region {args.region}"
