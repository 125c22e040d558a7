"""Options and output that `headrace diagnose` and `headrace watch` share."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from headrace.attach.batches.batch_values import NOTES_VARIABLE
from headrace.cli.shared import output
from headrace.cli.shared.number_types import positive_number
from headrace.diagnosis.result.model import Diagnosis
from headrace.profiling.command import default_session_folder
from headrace.report.text import terminal
from headrace.session.model import Session

__all__ = ["add_session_options", "job_environment", "print_diagnosis", "session_folder", "session_kept"]


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add `--out`, `--seconds` and `--no-notes`."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the session (default: headrace-sessions/TIME)")
    parser.add_argument(
        "--seconds", type=positive_number, metavar="N", help="stop the command after N seconds (default: never)"
    )
    parser.add_argument(
        "--no-notes", action="store_true", help="do not look into batches: no notes on records, labels and values"
    )


def job_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that the options of `add_session_options` set for the command."""
    return {NOTES_VARIABLE: "0"} if args.no_notes else {}


def session_folder(args: argparse.Namespace) -> Path:
    """Return the absolute path of the folder that `--out` names, or of a new one named after the time."""
    folder: Path = args.out or default_session_folder()
    return folder.absolute()


@contextlib.contextmanager
def session_kept(folder: Path) -> Iterator[None]:
    """Context manager after the run: if Ctrl-C ends the measuring or diagnosing in it, log where the session lies."""
    try:
        yield
    except KeyboardInterrupt:
        output.log(f"the session is complete:  headrace report {shlex.quote(str(folder))}")
        raise


def print_diagnosis(diagnosis: Diagnosis, session: Session, *, usd_per_hour: float | None = None) -> None:
    """Print the first screen, and the path of the report if there is one. `usd_per_hour`: price of a GPU-hour."""
    terminal.print_screen(output.stdout_console, diagnosis, session=session, usd_per_hour=usd_per_hour)
    if diagnosis.report is not None:
        output.say(f"report: {diagnosis.report}")
