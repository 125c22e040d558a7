"""`headrace diagnose -- COMMAND`: run a training command, unmodified, and say why it is slow and what would help."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headrace.cli import output
from headrace.condition import Condition
from headrace.diagnose import diagnose
from headrace.diagnosis import Diagnosis
from headrace.image_benchmark import measure_images
from headrace.remeasure import verify
from headrace.session import Session
from headrace.watching import add_fact, watch

SUMMARY = "why a training command is slow: the cause, the evidence, and the predicted gain of each fix"
EXAMPLE = """
headrace diagnose -- python train.py --data /data/imagenet
headrace diagnose --verify --seconds 120 -- torchrun --nproc-per-node 4 train.py
headrace diagnose --json --fail-if "input_share>0.1" -- python train.py
"""
TAKES_COMMAND = True

PANELS = ("heat_map", "timeline")
"""Long series, left out of the JSON on stdout; `diagnosis.json` in the session folder has them."""


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
    output.say(f"headrace diagnose: session in {folder}")
    finished = watch(args.command, folder, time_limit_s=args.seconds)
    session = Session.load(folder)
    if session.steps:
        session = _with_benchmark(session, folder)
    diagnosis = replace(diagnose(session), session=str(folder))
    if args.verify:
        diagnosis = verify(diagnosis, session, folder, say=output.say)
    (folder / "diagnosis.json").write_text(json.dumps(diagnosis.to_json(), indent=1), encoding="utf-8")
    document = {name: value for name, value in diagnosis.to_json().items() if name not in PANELS}
    output.emit(args, document, lambda: _show(diagnosis))
    ended_by_us = args.seconds is not None and finished.ended_s - finished.started_s >= args.seconds
    failed = finished.returncode != 0 and not ended_by_us
    if failed:
        output.say(f"headrace diagnose: the command failed with exit code {finished.returncode}")
    if condition is not None and condition.holds(diagnosis):
        output.say(f"headrace diagnose: --fail-if {condition.text} holds")
        failed = True
    return 1 if failed else 0


def _with_benchmark(session: Session, folder: Path) -> Session:
    """Decode a few of the job's own images, where it reads image files, and note the times in the session."""
    paths = next((loader.sample_paths for loader in session.loaders if loader.sample_paths), ())
    found = measure_images(paths) if paths else None
    if found is None:
        return session
    add_fact(folder, "image_benchmark", asdict(found))
    return replace(session, facts={**session.facts, "image_benchmark": asdict(found)})


def _show(diagnosis: Diagnosis) -> None:
    for line in _lines(diagnosis):
        output.page.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(diagnosis: Diagnosis) -> Sequence[str]:
    lines = [f"{diagnosis.verdict}: {diagnosis.summary} (confidence {diagnosis.confidence_word})"]
    rate = f"{diagnosis.img_s:,.0f} img/s" if diagnosis.img_s is not None else "rate not measured"
    ceiling = f", {diagnosis.ceiling_img_s:,.0f} with perfect input" if diagnosis.ceiling_img_s is not None else ""
    lines.append(f"{rate}{ceiling}; {diagnosis.steps} steps, {diagnosis.ranks} rank(s)")
    shares = [f"{name} {share:.0%}" for name, share in diagnosis.share_of_step.items() if share >= 0.005]
    lines.append("step: " + " | ".join(shares))
    for finding in diagnosis.findings[:3]:
        lines.append(f"{finding.kind}" + (f", {finding.share:.0%} of the step" if finding.share is not None else ""))
        lines += [f"  {words}" for words in finding.evidence]
        lines += [f"  -> {_fix_words(fix)}" for fix in finding.fixes]
    lines += [f"not measured: {words}" for words in diagnosis.not_measured]
    return lines


def _fix_words(fix: Any) -> str:
    words = f"{fix.id}: {fix.change}"
    if fix.predicted_img_s is not None and fix.interval is not None:
        words += f"; predicted {fix.predicted_img_s:,.0f} img/s ({fix.interval[0]:,.0f} to {fix.interval[1]:,.0f})"
    if fix.verified_img_s is not None:
        words += f"; measured {fix.verified_img_s:,.0f}"
    return words


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
