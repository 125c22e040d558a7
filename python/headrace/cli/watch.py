"""`headrace watch -- COMMAND`: a live view of where each step's time goes, while the command runs."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.live import Live
from rich.text import Text

from headrace.cli import output
from headrace.diagnosis.diagnose import diagnose
from headrace.diagnosis.model import Diagnosis, command_ended
from headrace.errors import HeadraceError
from headrace.profiling.command import watch
from headrace.profiling.finish import finish
from headrace.report import numbers, terminal
from headrace.report.exports.json import document
from headrace.session.model import Session

SUMMARY = "live view of a running training command: rate, waits, cause; the command's own output goes to a file"
EXAMPLE = "headrace watch -- python train.py --data /data/imagenet"
TAKES_COMMAND = True

LEAST_IDLE = 20
"""Reading a long session takes time; between two looks the view rests at least so many times as long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headrace watch`."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the session (default: headrace-sessions/TIME)")
    parser.add_argument("--every", type=_positive, default=2.0, metavar="SECONDS", help="time between two looks (default: 2)")
    parser.add_argument("--seconds", type=_positive, metavar="N", help="end the command after N seconds")


def run(args: argparse.Namespace) -> int:
    """Runs the command with the view beside it, then shows the final screen. 1 when the command failed."""
    folder = (args.out or Path("headrace-sessions") / time.strftime("%Y-%m-%d-%H%M%S")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.txt"
    output.log(f"headrace watch: session in {folder}; what the command prints is in {log}")
    with log.open("wb") as file, _view(folder, every_s=args.every):
        finished = watch(args.command, folder, time_limit_s=args.seconds, log=file)
    session, diagnosis = finish(folder, log=output.log)
    output.emit(args, document(diagnosis), lambda: _show(diagnosis, session))
    if finished.returncode and not finished.timed_out:
        output.log(f"headrace watch: {command_ended(finished.returncode)}; its last words:")
        output.log(_last_lines(log))
        return 1
    return 0


def _show(diagnosis: Diagnosis, session: Session) -> None:
    terminal.print_screen(output.stdout_console, diagnosis, session=session)
    print(f"report: {diagnosis.report}")


@contextlib.contextmanager
def _view(folder: Path, *, every_s: float) -> Iterator[None]:
    """Looks at the session from a thread until the block ends: a live screen on a terminal, lines in a log."""
    stop = threading.Event()
    console = output.stderr_console
    live = Live(Text("waiting for the first steps"), console=console, auto_refresh=False, transient=True)
    shown = live if console.is_terminal else None
    thread = threading.Thread(target=_look, args=(folder, stop, shown, every_s), name="headrace-watch", daemon=True)
    with shown or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _look(folder: Path, stop: threading.Event, live: Live | None, every_s: float) -> None:
    pause_s, start_s = every_s, time.monotonic()
    while not stop.wait(pause_s):
        began_s = time.monotonic()
        try:
            session = Session.load(folder)
        except HeadraceError:
            continue  # nothing has been written yet
        diagnosis = diagnose(session)
        waiting = f"no steps yet after {numbers.seconds(began_s - start_s)}"
        if live is None:
            output.log(_line(diagnosis) if diagnosis.steps else waiting)
        else:
            screen = terminal.render(diagnosis, session=session, width=output.stderr_console.width)
            live.update(screen if diagnosis.steps else Text(waiting), refresh=True)
        pause_s = max(every_s, LEAST_IDLE * (time.monotonic() - began_s))


def _line(diagnosis: Diagnosis) -> str:
    """One look in one line, for a log."""
    steps, wait = numbers.count(diagnosis.steps), numbers.percent(diagnosis.wait_share)
    rate = numbers.image_rate(diagnosis.img_s)
    return f"{steps} steps: {rate} img/s, waiting {wait}, {diagnosis.verdict} ({diagnosis.confidence_word})"


def _last_lines(log: Path, count: int = 10) -> str:
    return "\n".join(log.read_bytes()[-8192:].decode("utf-8", "replace").splitlines()[-count:])


def _positive(given: str) -> float:
    value = float(given)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{given} is not above 0")
    return value
