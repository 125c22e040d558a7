"""A job that already ran: `headrace diagnose --sagemaker-job NAME`, `--from-files FOLDER`, `headrace compare JOB-A JOB-B`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path

from headrace.cli.profile.session_command import print_diagnosis, session_folder
from headrace.cli.shared import output
from headrace.cli.shared.price_options import gpu_usd_per_hour, prices_of_job
from headrace.diagnosis.result.fail_if import Condition
from headrace.errors import SourceError, UsageError
from headrace.launch.finished_job.diagnose import JobDiagnosis, diagnose_job
from headrace.launch.finished_job.documents import read_documents
from headrace.launch.finished_job.fetch import fetch_documents
from headrace.launch.sagemaker.aws import aws_client
from headrace.profiling.command import default_session_folder
from headrace.profiling.finish import REPORT_FILE
from headrace.report.exports.json import document
from headrace.report.pages import html
from headrace.report.sessions.session_folder import write_diagnosis

__all__ = ["FINISHED_JOB_OPTIONS", "add_finished_job_options", "run_finished_job", "session_of_job"]

FINISHED_JOB_OPTIONS = ("--sagemaker-job", "--from-files")


def add_finished_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a job that already ran."""
    group = parser.add_argument_group("a job that already ran, in place of a command")
    group.add_argument("--sagemaker-job", metavar="NAME", help="a SageMaker training job of this name, asked from AWS")
    group.add_argument(
        "--from-files", type=Path, metavar="FOLDER", help="its documents: describe.json, metrics.json, profiler-output/"
    )
    group.add_argument("--region", default="us-east-1", metavar="NAME", help="of the job (default: us-east-1)")


def run_finished_job(args: argparse.Namespace) -> int:
    """Fetch or read the documents, diagnose and report. Return 1 if `--fail-if` is true, else 0."""
    condition = Condition(args.fail_if) if args.fail_if else None
    _check(args)
    folder = session_folder(args)
    documents = args.from_files
    if args.sagemaker_job is not None:
        documents = folder
        _fetch(args.sagemaker_job, args.region, folder)
    found = diagnose_job(read_documents(documents), prices_of_job(args.region), gpu_usd_per_hour=gpu_usd_per_hour(args))
    found = _written(found, folder, report=not args.no_report)
    emitted = document(found.diagnosis) | {"job": asdict(found.account)}
    output.emit(args, emitted, lambda: _show(found))
    if condition is not None and condition.holds(found.diagnosis):
        output.log(f"headrace diagnose: --fail-if {condition.text} is true")
        return 1
    return 0


def session_of_job(name: str, region: str) -> Path:
    """Return a new session folder with a SageMaker job that already ran, fetched and diagnosed. Raises `HeadraceError`."""
    new = default_session_folder()
    folder = new.with_name(f"{new.name}-{name}")
    _fetch(name, region, folder)
    _written(diagnose_job(read_documents(folder), prices_of_job(region)), folder, report=False)
    return folder


def _fetch(name: str, region: str, folder: Path) -> None:
    clients = {service: aws_client(service, region) for service in ("sagemaker", "cloudwatch", "s3")}
    fetch_documents(
        clients["sagemaker"],
        name,
        folder,
        metrics=clients["cloudwatch"],
        s3=clients["s3"],
        sleep=time.sleep,
        log=output.log,
        region=region,
    )


def _check(args: argparse.Namespace) -> None:
    if args.sagemaker_job is not None and args.from_files is not None:
        raise UsageError("--sagemaker-job and --from-files cannot be given together", hint="give one of them")
    if args.instance is not None:
        raise UsageError(
            "--instance is for a command to run: the description of a finished job names its instance type",
            hint="--usd-per-hour USD",
        )
    for option, value in (("--verify", args.verify), ("--seconds", args.seconds)):
        if value:
            raise UsageError(f"{option} needs a command to run: the job has ended")
    if args.from_files is not None and not args.from_files.is_dir():
        raise SourceError(f"there is no folder {args.from_files}", hint="a folder with describe.json and metrics.json")


def _written(found: JobDiagnosis, folder: Path, *, report: bool) -> JobDiagnosis:
    """Write session, diagnosis and report to a folder; `headrace report FOLDER` reads them."""
    path = folder / REPORT_FILE
    diagnosis = replace(found.diagnosis, session=str(folder), report=str(path) if report else None)
    found.session.save(folder)
    write_diagnosis(diagnosis, folder)
    if report:
        html.write(diagnosis, path, session=found.session, usd_per_hour=found.account.gpu_usd_per_hour)
    return replace(found, diagnosis=diagnosis)


def _show(found: JobDiagnosis) -> None:
    print_diagnosis(found.diagnosis, found.session, usd_per_hour=found.account.gpu_usd_per_hour)
    for line in found.account.lines():
        output.say(line)
