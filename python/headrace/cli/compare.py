"""`headrace compare A B`: compare the rates, the parts of the step and the settings of two saved sessions."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from headrace.cli import output
from headrace.report import numbers
from headrace.report.compare_sessions import SessionComparison, compare_sessions
from headrace.report.session_folder import read_session_folder

SUMMARY = "compare two saved sessions: change of the rate beyond noise, changed parts of the step, changed settings"
EXAMPLE = "headrace compare headrace-sessions/before headrace-sessions/after"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headrace compare`."""
    parser.add_argument("before", type=Path, metavar="A", help="session folder of the earlier run")
    parser.add_argument("after", type=Path, metavar="B", help="session folder of the later run")


def run(args: argparse.Namespace) -> int:
    """Read both sessions, compare them, and print the result."""
    before, was = read_session_folder(args.before)
    after, now = read_session_folder(args.after)
    found = compare_sessions(before, after, was, now)
    output.emit(args, dataclasses.asdict(found), lambda: _show(found))
    return 0


def _show(found: SessionComparison) -> None:
    for sentence in found.sentences:
        output.stdout_console.print(sentence, markup=False, highlight=False)
    if found.moved:
        output.stdout_console.print()
        output.stdout_console.print(_table((f"per {found.per}", "before", "after"), [
            (part.label, numbers.milliseconds(part.before_s), numbers.milliseconds(part.after_s)) for part in found.moved
        ]))  # fmt: skip
    if found.differences:
        output.stdout_console.print()
        rows = [(difference.name, difference.before, difference.after) for difference in found.differences]
        output.stdout_console.print(_table(("setting", "before", "after"), rows))


def _table(headers: tuple[str, ...], rows: list[tuple[str, str, str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in headers:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
