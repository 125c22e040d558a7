"""`headrace diagnose -- COMMAND`: run a training command, unmodified, and say why it is slow and what would help."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from headrace.cli import output
from headrace.diagnosis.fail_if import Condition
from headrace.diagnosis.model import Diagnosis, command_ended
from headrace.profiling.command import watch
from headrace.profiling.finish import finish
from headrace.profiling.first_verdict import FirstVerdict
from headrace.report import terminal
from headrace.report.exports.json import document
from headrace.session.model import Session

SUMMARY = "why a training command is slow: the cause, the evidence, and the predicted gain of each fix"
EXAMPLE = """
headrace diagnose -- python train.py --data /data/imagenet
headrace diagnose --verify --seconds 120 -- torchrun --nproc-per-node 4 train.py
headrace diagnose --json --fail-if "input_share>0.1" -- python train.py
"""
TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace diagnose`."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the session (default: headrace-sessions/TIME)")
    parser.add_argument("--seconds", type=_positive, metavar="N", help="end the command after N seconds")
    parser.add_argument(
        "--verify", action="store_true", help="run the command again, for short, with each fix that can be applied from outside"
    )
    parser.add_argument("--fail-if", type=str, metavar="EXPR", help='exit with 1 if this holds, e.g. "input_share>0.1"')
    parser.add_argument("--no-report", action="store_true", help="write no HTML report")


def run(args: argparse.Namespace) -> int:
    """Run, diagnose, report. 1 when the command failed (a report is given all the same) or `--fail-if` holds."""
    condition = Condition(args.fail_if) if args.fail_if else None
    folder = (args.out or Path("headrace-sessions") / time.strftime("%Y-%m-%d-%H%M%S")).absolute()
    output.log(f"headrace diagnose: session in {folder}")
    with FirstVerdict(folder, _tell_first) as first:
        finished = watch(args.command, folder, time_limit_s=args.seconds)
    session, diagnosis = finish(
        folder, log=output.log, report=not args.no_report, remeasure=args.verify, time_to_verdict_s=first.after_s
    )
    output.emit(args, document(diagnosis), lambda: _show(diagnosis, session))
    failed = finished.returncode != 0 and not finished.timed_out
    if failed:
        output.log(f"headrace diagnose: {command_ended(finished.returncode)}")
    if condition is not None and condition.holds(diagnosis):
        output.log(f"headrace diagnose: --fail-if {condition.text} holds")
        failed = True
    return 1 if failed else 0


def _tell_first(diagnosis: Diagnosis) -> None:
    rate = f", {diagnosis.img_s:,.0f} img/s" if diagnosis.img_s is not None else ""
    output.log(
        f"headrace diagnose: after {diagnosis.steps} steps: {diagnosis.verdict}, {diagnosis.summary}{rate} "
        f"(confidence {diagnosis.confidence_word}; the report follows when the command ends)"
    )


def _show(diagnosis: Diagnosis, session: Session) -> None:
    terminal.print_screen(output.stdout_console, diagnosis, session=session)
    if diagnosis.report is not None:
        print(f"report: {diagnosis.report}")


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
