"""`headrace watch -- COMMAND`: show the diagnosis of a training command while it runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.live import Live
from rich.text import Text

from headrace.cli.profile.session_command import (
    add_session_options,
    job_environment,
    print_diagnosis,
    session_folder,
    session_kept,
)
from headrace.cli.shared import output
from headrace.cli.shared.number_types import positive_number
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.result.model import Diagnosis, command_ended
from headrace.diagnosis.rules.standstill import open_standstill
from headrace.errors import HeadraceError
from headrace.profiling.command import make_session_folder, watch
from headrace.profiling.finish import finish
from headrace.report.exports.json import document
from headrace.report.text import numbers, terminal
from headrace.session.model import Session
from headrace.system.files.private_files import private_opener
from headrace.system.text.printable import printable

SUMMARY = "show rate, waits and verdict of a training command while it runs; its own output goes to a file"
EXAMPLE = "headrace watch -- python train.py --data /data/imagenet"
TAKES_COMMAND = True

IDLE_FACTOR = 20
"""After an update of the view, wait at least this many times as long as it took, so that it uses under 5 % of a core."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headrace watch`."""
    add_session_options(parser)
    parser.add_argument(
        "--every", type=positive_number, default=2.0, metavar="SECONDS", help="seconds between two updates (default: 2)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command with the live view, then print the final screen.

    Return the command's exit code, or 128 + n if signal n ended it; 0 if `--seconds` stopped it.
    """
    folder = session_folder(args)
    make_session_folder(folder)
    log = folder / "output.txt"
    output.log(f"headrace watch: session in {folder}; output of the command in {log}")
    with open(log, "wb", opener=private_opener) as file, _view(folder, every_s=args.every):
        finished = watch(args.command, folder, env=job_environment(args), time_limit_s=args.seconds, log=file)
    with session_kept(folder):
        session, diagnosis = finish(folder, log=output.log)
    output.emit(args, document(diagnosis), lambda: print_diagnosis(diagnosis, session))
    code = 0 if finished.timed_out else finished.exit_code
    if code:
        output.log(f"headrace watch: {command_ended(finished.returncode)}; the end of its output:")
        for line in _last_lines(log):
            output.log(line)
    return code


@contextlib.contextmanager
def _view(folder: Path, *, every_s: float) -> Iterator[None]:
    """Update the view from a thread until the block ends: a live screen on a terminal, plain lines in a log."""
    stop = threading.Event()
    console = output.stderr_console
    live = Live(Text("waiting for the first steps"), console=console, auto_refresh=False, transient=True)
    screen = live if output.is_terminal(sys.stderr) else None
    thread = threading.Thread(target=_update, args=(folder, stop, screen, every_s), name="headrace-watch", daemon=True)
    with screen or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _update(folder: Path, stop: threading.Event, live: Live | None, every_s: float) -> None:
    pause_s, start_s = every_s, time.monotonic()
    while not stop.wait(pause_s):
        began_s = time.monotonic()
        try:
            session = Session.load(folder)
        except HeadraceError:
            continue  # nothing has been written yet
        diagnosis = diagnose(session)
        standstill = open_standstill(session)
        waiting = f"no steps yet after {numbers.seconds(began_s - start_s)}"
        if standstill is not None:
            waiting = standstill.words
        if live is None:
            stands = f"; {standstill.words}" if standstill is not None else ""
            output.log(f"{_line(diagnosis)}{stands}" if diagnosis.steps else waiting)
        else:
            screen = terminal.render(diagnosis, session=session, width=output.stderr_console.width)
            live.update(screen if diagnosis.steps else Text(printable(waiting)), refresh=True)
        pause_s = max(every_s, IDLE_FACTOR * (time.monotonic() - began_s))


def _line(diagnosis: Diagnosis) -> str:
    """Return steps, rate, wait share and verdict of the job as one line for a log."""
    steps, wait = numbers.count(diagnosis.steps), numbers.percent(diagnosis.wait_share)
    rate = numbers.image_rate(diagnosis.img_s)
    noun = "step" if diagnosis.steps == 1 else "steps"
    ended = f"{diagnosis.end.text}; " if diagnosis.end is not None and diagnosis.end.is_failure else ""
    return f"{ended}{steps} {noun}: {rate} img/s, waiting {wait}, {diagnosis.verdict} ({diagnosis.confidence_word})"


def _last_lines(log: Path, count: int = 10) -> list[str]:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]
