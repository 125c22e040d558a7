"""`headrace report SESSION`: a saved session as terminal screen, HTML page, JSON, Perfetto trace or OpenMetrics text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace.cli import output
from headrace.diagnosis import Diagnosis
from headrace.errors import SessionError
from headrace.report import html, text
from headrace.report.saved import load
from headrace.session import Session

SUMMARY = "show a saved session: terminal screen, HTML page, JSON"
EXAMPLE = """
headrace report headrace-sessions/2026-11-20-141205
headrace report headrace-sessions/2026-11-20-141205 --html --out report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace report`."""
    parser.add_argument("session", type=Path, metavar="SESSION", help="folder that `headrace diagnose` named")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_const", const="text", dest="kind", help="the first screen (the default)")
    kind.add_argument("--html", action="store_const", const="html", dest="kind", help="one self-contained page")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there (default of --html: SESSION/report.html)")
    parser.add_argument("--usd-per-hour", type=float, metavar="USD", help="price of one GPU-hour, to say the waste in money")


def run(args: argparse.Namespace) -> int:
    """Reads the folder and writes the wanted form."""
    session, diagnosis = load(args.session)
    kind = args.kind or "text"
    if kind == "html":
        path = html.write(diagnosis, args.out or args.session / "report.html", session=session, usd_per_hour=args.usd_per_hour)
        output.emit(args, {**diagnosis.to_json(), "report": str(path)}, lambda: print(path))
        return 0
    if args.out is not None:
        _write(
            args.out, json.dumps(diagnosis.to_json(), indent=1) if args.json else _plain(diagnosis, session, args.usd_per_hour)
        )
    output.emit(args, diagnosis.to_json(), lambda: _show(diagnosis, session, args))
    return 0


def _show(diagnosis: Diagnosis, session: Session, args: argparse.Namespace) -> None:
    if args.out is not None:
        print(args.out)
        return
    text.show(output.page, diagnosis, session=session, usd_per_hour=args.usd_per_hour)


def _plain(diagnosis: Diagnosis, session: Session, usd_per_hour: float | None) -> str:
    return text.render(diagnosis, session=session, usd_per_hour=usd_per_hour).plain + "\n"


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place: --out FILE"
        ) from error
