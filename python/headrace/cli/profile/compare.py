"""`headrace compare A B`: compare the rates, the parts of the step and the settings of two saved sessions."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from headrace.cli.profile.finished_job import session_of_job
from headrace.cli.shared import output
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import HeadraceError, SessionError, UsageError
from headrace.report.pages import compare_page
from headrace.report.sessions.compare_sessions import SessionComparison, compare_sessions
from headrace.report.sessions.session_folder import foreign_values, read_session_folder
from headrace.report.sessions.share import without_places
from headrace.report.text.terminal import to_ascii
from headrace.session.model import Session

SUMMARY = "compare two saved sessions: change of the rate beyond noise, changed parts of the step, changed settings"
EXAMPLE = """
headrace compare headrace-sessions/before headrace-sessions/after
headrace compare headrace-sessions/before headrace-sessions/after --html --out before-after.html
headrace compare job-a job-b --region us-east-1      # two jobs on SageMaker, asked from AWS
"""

_JOB = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
"""The name of a training job (CreateTrainingJob, TrainingJobName)."""

PAGE = "comparison.html"
"""Name of the page in the folder of the later session, if --out names no other."""


MOST_DIFFERENCES = 200
"""Print at most this many settings that differ. A line of a table takes two milliseconds, and a session may hold any number."""

MOST_CHARACTERS = 2_000
"""Print at most this many characters of a setting: a command may be a script of megabytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headrace compare`."""
    parser.add_argument(
        "before", type=Path, metavar="A", help="session folder of the earlier run, or the name of a SageMaker job"
    )
    parser.add_argument("after", type=Path, metavar="B", help="the same of the later run")
    parser.add_argument(
        "--html", action="store_true", help="draw both runs side by side, as one HTML file that needs no network"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"file of --html (default: {PAGE} in B)")
    parser.add_argument("--region", default="us-east-1", metavar="NAME", help="of SageMaker jobs (default: us-east-1)")
    parser.add_argument(
        "--share", action="store_true", help="leave out host names, folders and addresses, so that strangers may read it"
    )


def run(args: argparse.Namespace) -> int:
    """Read both sessions, compare them, and print the result."""
    args.before, args.after = _folder(args.before, args.region), _folder(args.after, args.region)
    before, was = read_session_folder(args.before)
    after, now = read_session_folder(args.after)
    if args.out is not None and not args.html:
        raise UsageError("--out names the file that --html writes, and --html is missing", hint="add --html")
    with foreign_values(f"{args.before} and {args.after}", "compared"):
        return _compare(before, was, after, now, args)


def _folder(named: Path, region: str) -> Path:
    """Return the folder of a session: the path itself, or one with the job of that name where there is no such path."""
    if named.exists() or _JOB.fullmatch(str(named)) is None:
        return named
    try:
        return session_of_job(str(named), region)
    except HeadraceError as error:
        raise SessionError(f"there is no session {named}, and no SageMaker job: {error}", hint=error.hint) from None


def _compare(before: Session, was: Diagnosis, after: Session, now: Diagnosis, args: argparse.Namespace) -> int:
    if args.share:
        (before, was), (after, now) = without_places(before, was), without_places(after, now)
    found = compare_sessions(before, after, was, now)
    page = _write_page(args, found, before, after, was, now) if args.html else None
    document = dataclasses.asdict(found) | ({} if page is None else {"page": str(page)})
    output.emit(args, document, lambda: _show(found, page))
    return 0


def _write_page(
    args: argparse.Namespace, found: SessionComparison, before: Session, after: Session, was: Diagnosis, now: Diagnosis
) -> Path:
    path = args.out or (args.after / PAGE if args.after.is_dir() else args.after.with_name(f"{args.after.name}.{PAGE}"))
    first = compare_page.Side("Before", args.before.name, before, was)
    second = compare_page.Side("After", args.after.name, after, now)
    return compare_page.write(found, first, second, path, private=not args.share)


def _show(found: SessionComparison, page: Path | None) -> None:
    for sentence in found.sentences:
        output.stdout_console.print(_printed(sentence), markup=False, highlight=False)
    if found.jobs:
        output.stdout_console.print()
        jobs = [(one.name, one.text(one.before), one.text(one.after), one.change_words) for one in found.jobs]
        output.stdout_console.print(_table(("the job", "before", "after", "change"), jobs, whole_values=True))
    if found.moved:
        output.stdout_console.print()
        headers = (f"per {found.per}", "before", "after", "change")
        output.stdout_console.print(_table(headers, found.part_rows(), whole_values=True))
    if found.differences:
        output.stdout_console.print()
        shown = found.differences[:MOST_DIFFERENCES]
        changed = [(difference.name, difference.before, difference.after) for difference in shown]
        output.stdout_console.print(_table(("set differently", "before", "after"), changed))
        if more := len(found.differences) - len(shown):
            output.say(f"and {more:,} more: --json lists all")
    if page is not None:
        output.stdout_console.print()
        output.say(f"both runs side by side: {page}")


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, whole_values: bool = False) -> Table:
    """Return a table of names and values. `whole_values`: the values are numbers, which stay on one line."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(headers):
        table.add_column(name, overflow="fold", no_wrap=whole_values and place > 0)
    for row in rows:
        table.add_row(*(escape(_printed(_shortened(cell))) for cell in row))
    return table


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _printed(text: str) -> str:
    """Return the text, in ASCII where the terminal's encoding has no ×, − or ±."""
    return to_ascii(text) if output.stdout_console.options.ascii_only else text
