"""`headrace diagnose -- COMMAND`: run a training command unmodified, find what makes it slow, and predict the gain of fixes.

`headrace/profiling/command.py` runs the command, `headrace/profiling/finish.py` diagnoses the session, and
`headrace/profiling/verify_fixes.py` does the re-runs of `--verify`.
"""

from __future__ import annotations

import argparse

from headrace.cli.profile.finished_job import FINISHED_JOB_OPTIONS, add_finished_job_options, run_finished_job
from headrace.cli.profile.session_command import (
    add_session_options,
    job_environment,
    print_diagnosis,
    session_folder,
    session_kept,
)
from headrace.cli.shared import output
from headrace.cli.shared.price_options import add_price_options, gpu_usd_per_hour
from headrace.diagnosis.result.fail_if import Condition
from headrace.diagnosis.result.model import Diagnosis, command_ended
from headrace.profiling.command import watch
from headrace.profiling.finish import finish
from headrace.profiling.first_verdict import FirstVerdict
from headrace.profiling.standstill_notice import StandstillNotice
from headrace.report.exports.json import document
from headrace.system.text.sizes import count_text

SUMMARY = "find why a training command is slow: the cause, the evidence, and the predicted gain of each fix"
EXAMPLE = """
headrace diagnose -- python train.py --data /data/imagenet
headrace diagnose --verify --seconds 120 -- torchrun --nproc-per-node 4 train.py
headrace diagnose --json --fail-if "input_share>0.1" -- python train.py
headrace diagnose --sagemaker-job NAME          # a job that already ran
"""
TAKES_COMMAND = True
INSTEAD_OF_COMMAND = FINISHED_JOB_OPTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace diagnose`."""
    add_session_options(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="measure each fix that needs no edit: run the command again, briefly, with it and without it; "
        "for as long again as --seconds, if that is given",
    )
    parser.add_argument(
        "--find-learning-rate",
        action="store_true",
        help="suggest a learning rate: run the command again with a rate that grows over 100 updates; the run ends before "
        "it saves weights or changes a file that was there",
    )
    parser.add_argument(
        "--fail-if", type=str, metavar="EXPR", help='exit with 1 if this expression is true, e.g. "input_share>0.1"'
    )
    parser.add_argument("--no-report", action="store_true", help="do not write report.html")
    add_price_options(parser, of="one GPU")
    add_finished_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command, diagnose and report. Return the command's exit code, or 128 + n if signal n ended it.

    A command that fails is still diagnosed. Return 1 if it succeeds, or is stopped by `--seconds`, and `--fail-if` is true.
    """
    if args.sagemaker_job is not None or args.from_files is not None:
        return run_finished_job(args)
    condition = Condition(args.fail_if) if args.fail_if else None
    usd_per_hour = gpu_usd_per_hour(args)
    folder = session_folder(args)
    output.log(f"headrace diagnose: session in {folder}")
    with output.Heartbeat("headrace diagnose", "the command runs") as beat:
        with FirstVerdict(folder, _log_first_verdict) as first, StandstillNotice(folder, _log_standstill):
            finished = watch(args.command, folder, env=job_environment(args), time_limit_s=args.seconds)
        runs_again = finished.stopped_by is None
        verifies, finds = args.verify and runs_again, args.find_learning_rate and runs_again
        for name in ("--verify" * args.verify, "--find-learning-rate" * args.find_learning_rate):
            if name and not runs_again:
                output.log(f"{name}: nothing is measured, because the run was interrupted")
        beat.begin(f"measuring the job's images and files{', and the fixes' if verifies else ''}")
        with session_kept(folder):
            session, diagnosis = finish(
                folder,
                log=output.log,
                report=not args.no_report,
                remeasure_command=args.command if verifies else None,
                find_learning_rate=args.command if finds else None,
                remeasure_limit_s=args.seconds,
                time_to_verdict_s=first.after_s,
                usd_per_hour=usd_per_hour,
            )
    output.emit(args, document(diagnosis), lambda: print_diagnosis(diagnosis, session, usd_per_hour=usd_per_hour))
    code = 0 if finished.timed_out else finished.exit_code
    if code:
        output.log(f"headrace diagnose: {command_ended(finished.returncode)}")
    if condition is not None and condition.holds(diagnosis):
        output.log(f"headrace diagnose: --fail-if {condition.text} is true")
        code = code or 1
    return code


def _log_standstill(words: str) -> None:
    output.log(f"headrace diagnose: {words}")


def _log_first_verdict(diagnosis: Diagnosis) -> None:
    rate = f", {diagnosis.img_s:,.0f} img/s" if diagnosis.img_s is not None else ""
    if rate and diagnosis.noise:
        rate += f" (noise {diagnosis.noise})"
    output.log(
        f"headrace diagnose: first verdict after {count_text(diagnosis.steps, 'step')}: {diagnosis.verdict}, "
        f"{diagnosis.summary}{rate} (confidence {diagnosis.confidence_word}; the report follows when the command ends)"
    )
