"""`headrace report SESSION`: show a saved session as terminal screen, HTML, JSON, Perfetto trace, metrics or scalars."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from headrace.cli.shared import output
from headrace.cli.shared.price_options import add_price_options, gpu_usd_per_hour
from headrace.diagnosis.result.model import Diagnosis
from headrace.errors import SessionError
from headrace.report.exports import openmetrics, perfetto, tensorboard
from headrace.report.exports.json import document
from headrace.report.pages import html
from headrace.report.sessions.session_folder import foreign_values, read_session_folder
from headrace.report.sessions.share import without_places
from headrace.report.text import terminal
from headrace.session.model import Session
from headrace.system.files.atomic_write import write_output

SUMMARY = "show a saved session as terminal screen, HTML page, JSON, trace or metrics"
EXAMPLE = """
headrace report headrace-sessions/2026-11-20-141205
headrace report headrace-sessions/2026-11-20-141205 --html --out report.html
headrace report headrace-sessions/2026-11-20-141205 --html --share --out for-the-forum.html
headrace report headrace-sessions/2026-11-20-141205 --perfetto      # open it at ui.perfetto.dev
headrace report trace.json.gz                                       # from torch.profiler's export_chrome_trace
"""

FILES = {"html": "report.html", "perfetto": "trace.json.gz", "tensorboard": "tensorboard"}
"""Formats that are written to a file or folder, and its name in the session folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace report`."""
    parser.add_argument(
        "session",
        type=Path,
        metavar="SESSION",
        help="session folder of diagnose, watch or train, or a trace file of torch.profiler",
    )
    kind = parser.add_mutually_exclusive_group()
    for name, text in (
        ("text", "print the first screen (default)"),
        ("html", "write one HTML file that needs no network"),
        ("perfetto", "write a trace of steps, batches and pauses for ui.perfetto.dev"),
        ("openmetrics", "print metrics as text for Prometheus"),
        ("tensorboard", "write scalars for TensorBoard; --out is a folder"),
    ):
        kind.add_argument(f"--{name}", action="store_const", const=name, dest="kind", help=text)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default for --html, --perfetto, --tensorboard: in SESSION)"
    )
    parser.add_argument(
        "--share", action="store_true", help="leave out host name, folders and addresses, so that strangers may read it"
    )
    add_price_options(parser, of="one GPU")


def run(args: argparse.Namespace) -> int:
    """Read the session and print or write the chosen format."""
    session, diagnosis = read_session_folder(args.session)
    with foreign_values(args.session, "shown"):
        return _report(session, diagnosis, args)


def _report(session: Session, diagnosis: Diagnosis, args: argparse.Namespace) -> int:
    if args.share:
        session, diagnosis = without_places(session, diagnosis)
    path = args.out or (_beside(args.session, FILES[args.kind]) if args.kind in FILES else None)
    if args.kind == "tensorboard" and args.out is None and path is not None and path.is_symlink():
        raise SessionError(f"{path} is a link, which is not followed", hint="--out FOLDER names the folder to write")
    if path is None:
        output.emit(args, document(diagnosis), lambda: _show(diagnosis, session, args))
        return 0
    _write(path, diagnosis, session, args)
    output.emit(args, document(diagnosis, report=path.name if args.share else str(path)), lambda: output.say(str(path)))
    return 0


def _beside(session: Path, name: str) -> Path:
    """Return the path of a file in the session folder; for a session that is a trace file, beside that file."""
    return session / name if session.is_dir() else session.with_name(f"{session.name}.{name}")


def _show(diagnosis: Diagnosis, session: Session, args: argparse.Namespace) -> None:
    if args.kind == "openmetrics":
        print(openmetrics.render(diagnosis, session), end="")
    else:
        terminal.print_screen(output.stdout_console, diagnosis, session=session, usd_per_hour=gpu_usd_per_hour(args))


def _write(path: Path, diagnosis: Diagnosis, session: Session, args: argparse.Namespace) -> None:
    if args.kind == "html":
        html.write(diagnosis, path, session=session, usd_per_hour=gpu_usd_per_hour(args), private=not args.share)
    elif args.kind == "perfetto":
        perfetto.write(session, path)
    elif args.kind == "tensorboard":
        tensorboard.write(session, path)
    elif args.kind == "openmetrics":
        _save(path, lambda: openmetrics.render(diagnosis, session))
    elif args.json and args.kind is None:
        _save(path, lambda: json.dumps(document(diagnosis, panels=True), indent=1, ensure_ascii=False) + "\n")
    else:
        _save(path, lambda: terminal.render(diagnosis, session=session, usd_per_hour=gpu_usd_per_hour(args)).plain + "\n")


def _save(path: Path, content: Callable[[], str]) -> None:
    try:
        write_output(path, content())
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place: --out FILE"
        ) from error
