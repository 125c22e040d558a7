"""Output of the command line: results on stdout (text, or one JSON document), progress and messages on stderr.

On a terminal, progress is a bar with rate and time left. In a log it is a plain line every few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

from headrace.system.text.printable import ACTIVE, printable, printable_lines
from headrace.system.text.redaction import redact_text, without_url_secrets
from headrace.system.text.utf8 import utf8_text

if TYPE_CHECKING:  # importing rich takes as long as all other imports of `headrace pack`, and a log does not need it
    from rich.console import Console
    from rich.progress import Progress

    stderr_console: Console
    stdout_console: Console

__all__ = [
    "Heartbeat",
    "ProgressBar",
    "emit",
    "is_terminal",
    "listing_progress",
    "log",
    "log_list",
    "only_documents_on_stdout",
    "progress",
    "say",
    "stderr_console",
    "stdout_console",
    "write_document",
]

LOG_INTERVAL_S = 5.0  # seconds between two lines of progress in a log
LEAST_RATE = 1.0  # show no rate below this many units per second: "0.0 cells/s" says less than the time left
HEARTBEAT_S = 2.5  # seconds of silence before a heartbeat names the activity; a reader of a log waits for 3 s at most
LISTING_SHOWN_S = 1.0  # show the count of a listing after this many seconds: a shorter one needs no line
LOG_WIDTH = 120  # width of tables in a log, in columns
LEAST_WIDTH = 20  # make no table narrower than this many columns: it could not be read
BAR_FROM, ELAPSED_FROM = 80, 100  # terminal widths in columns from which progress shows a bar, and the elapsed time
RATE_WIDTH, LEFT_WIDTH = 32, 14  # columns reserved beside the description for counts with rate, and for the time left


def is_terminal(stream: TextIO) -> bool:
    """Return whether the stream is a terminal at which somebody sits.

    The `!command` of a notebook has a terminal of its own, in which nothing is drawn twice and no question is answered: there
    a command writes as into a log. Jupyter's kernels name their parent to all that they start.
    """
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ


@cache
def _console(*, stderr: bool) -> Console:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class PrintableConsole(Console):
        """A console that shows active characters of names as escapes, in tables, bars and messages alike."""

        def render_str(self, text: str, **options: Any) -> Text:  # before its width is measured
            return super().render_str(printable_lines(without_url_secrets(text)), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not ACTIVE.search(segment.text):
                    yield segment
                else:
                    yield Segment(printable_lines(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return PrintableConsole(stderr=stderr, highlight=False, width=_width(stream))


def _width(stream: TextIO) -> int | None:
    """Return the columns to print in, or None for those that rich finds: the terminal's.

    Away from a terminal rich assumes 80 columns and cuts tables; a log has room. Where COLUMNS is 0, as some job schedulers and
    editors set it, rich prints nothing.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(LEAST_WIDTH, int(columns))
    if not is_terminal(stream):
        return LOG_WIDTH
    if not columns.isdecimal():
        return None
    try:
        return max(LEAST_WIDTH, os.get_terminal_size(stream.fileno()).columns)
    except OSError:
        return LOG_WIDTH


def __getattr__(name: str) -> Console:
    """Create `stdout_console` (results; inside the `render` of `emit` only) and `stderr_console` (messages) when first used."""
    if name not in ("stderr_console", "stdout_console"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _console(stderr=name == "stderr_console")


_document_stream: TextIO | None = None


def log(line: str) -> None:
    """Print one plain line on stderr, without markup or wrapping: it may hold a path or a command to copy.

    Control characters, line feeds too, appear as escapes (`printable`), and secrets as `***`. A stderr that takes no more (a
    full disk, a reader that has gone) loses the line, and not the work that the line is about.
    """
    global _last_log_s
    _last_log_s = time.monotonic()
    with contextlib.suppress(OSError):
        print(printable(redact_text(line)), file=sys.stderr, flush=True)


def log_list(name: str, items: Sequence[str]) -> None:
    """Print `name: item, item` on stderr. A log gets one line; on a terminal, lines break between items only."""
    if not is_terminal(sys.stderr):
        log(f"{name}: {', '.join(items)}")
        return
    line = f"{name}:"
    for place, item in enumerate(items, 1):
        text = item + ("," if place < len(items) else "")
        if len(line) + 1 + len(text) >= _console(stderr=True).width and line.strip():
            log(line)
            line = " "
        line += f" {text}"
    log(line)


def say(line: str) -> None:
    """Print one plain line of a verb's result on stdout, as `log` does on stderr. For the `render` of `emit`."""
    print(printable(without_url_secrets(line)))


_last_log_s = 0.0


class Heartbeat:
    """Logs the current activity whenever nothing was logged for HEARTBEAT_S seconds.

    with Heartbeat("headrace tune") as beat:
        beat.begin("input alone")  # after 2.5 s: "headrace tune: input alone … 3 s"
    """

    def __init__(self, name: str, what: str = "starting") -> None:
        self._name, self._what = name, what
        self._began_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True)

    def begin(self, what: str) -> None:
        """Set the current activity to `what`; its seconds count from now."""
        self._what, self._began_s = what, time.monotonic()

    def __enter__(self) -> Heartbeat:
        self.begin(self._what)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        spoke_s = time.monotonic()
        while not self._stop.wait(max(0.05, max(spoke_s, _last_log_s) + HEARTBEAT_S - time.monotonic())):
            now_s = time.monotonic()
            if now_s - max(spoke_s, _last_log_s) >= HEARTBEAT_S:
                log(f"{self._name}: {self._what} … {now_s - self._began_s:.0f} s")
                spoke_s = now_s


def emit(args: argparse.Namespace, document: Mapping[str, object], render: Callable[[], None]) -> None:
    """Print a verb's result: `document` as JSON under `--json`, else what `render` writes to stdout."""
    if args.json:
        write_document(document)
    else:
        render()


def write_document(document: Mapping[str, object]) -> None:
    """Write one JSON document to the process's stdout, also inside `only_documents_on_stdout`.

    Paths become text, dataclasses objects, NaN and infinity null, bytes of names that are not UTF-8 `%XX`, and secrets in URLs
    `***`. Characters that act on a terminal are JSON's escapes.
    """
    stream = _document_stream or sys.stdout
    text = json.dumps(_to_json(document), indent=2, ensure_ascii=False, allow_nan=False)
    stream.write(ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    stream.flush()


def _to_json(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return without_url_secrets(utf8_text(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {utf8_text(str(key)): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item) for item in value]
    if isinstance(value, PurePath):
        return utf8_text(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "item"):  # a NumPy or torch scalar, without importing either
        return _to_json(value.item())
    raise TypeError(f"{type(value).__name__} has no JSON form")


@contextlib.contextmanager
def only_documents_on_stdout(as_json: bool) -> Iterator[None]:
    """Under `--json`, send to stderr what libraries and child processes write to stdout."""
    global _document_stream
    if not as_json:
        yield
        return
    sys.stdout.flush()
    try:
        real = sys.stdout.fileno() == 1
    except (io.UnsupportedOperation, ValueError):
        real = False
    if not real:  # stdout is a Python object (a test, a notebook): redirect that object
        _document_stream = sys.stdout
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _document_stream = None
        return
    saved = os.dup(1)
    with os.fdopen(saved, "w", encoding="utf-8") as stream:
        _document_stream = stream
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            stream.flush()
            os.dup2(saved, 1)
            _document_stream = None


class ProgressBar:
    """A progress display on stderr that `progress` has opened. Both methods are cheap and may be called at any rate."""

    def __init__(self, update: Callable[[str | None, float, float | None, float | None], None]) -> None:
        self._update = update
        self.done = 0.0

    def advance(
        self, amount: float = 1, description: str | None = None, *, total: float | None = None, rate: float | None = None
    ) -> None:
        """Count `amount` more units as done, and replace the description, the total and the rate where they are given.

        `rate`, in units a second, is shown only if `progress` was given `rate_of`.
        """
        self.done += amount
        self._update(description, amount, total, rate)

    def describe(self, description: str) -> None:
        """Replace the description in front of the bar."""
        self._update(description, 0, None, None)


@contextlib.contextmanager
def progress(
    description: str, total: float | None = None, *, unit: str = "img", rate_of: str | None = None
) -> Iterator[ProgressBar]:
    """Show progress on stderr while the block runs; `total` in `unit`s, None when unknown.

    The rate is units done per second since the start; one below `LEAST_RATE` is not shown. With `rate_of` ("steps alone") it is
    the last rate given to `advance`, labelled with these words (none if it is empty), and no rate is shown before.
    """
    description = printable(without_url_secrets(description))
    if is_terminal(sys.stderr):
        with _bar(unit, rate_of) as bar:
            task = bar.add_task(description, total=total)

            def update(words: str | None, amount: float, total: float | None, rate: float | None) -> None:
                fields = {} if rate is None else {"rate": rate}
                words = None if words is None else printable(words)
                bar.update(task, advance=amount, description=words, total=total, **fields)  # type: ignore[arg-type]  # None: unchanged

            yield ProgressBar(update)
        return
    log_lines = _LogLines(description, total, unit, rate_of)
    yield ProgressBar(log_lines.update)
    log_lines.end()


@contextlib.contextmanager
def listing_progress() -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of images just listed; show their sum if listing takes over a second."""
    count, began_s = 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        bar: ProgressBar | None = None

        def listed(images: int) -> None:
            nonlocal count, bar
            count += images
            if bar is None and time.monotonic() - began_s >= LISTING_SHOWN_S:
                bar = stack.enter_context(progress("listing"))
                images = count
            if bar is not None:
                bar.advance(images)

        yield listed


def _bar(unit: str, rate_of: str | None) -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f"/{task.total:,.0f}" if task.total else ""
            speed = task.fields.get("rate") if rate_of is not None else task.finished_speed or task.speed
            is_shown = speed and (rate_of is not None or speed >= LEAST_RATE)
            rate = f"  {speed:,.0f} {_rate_unit(unit, rate_of)}" if is_shown else ""
            return Text(f"{task.completed:,.0f}{of} {unit}{rate}")

    console = _console(stderr=True)
    room = max(8, console.width - RATE_WIDTH - LEFT_WIDTH) if console.width < BAR_FROM else None
    words = Column(width=room, no_wrap=True, overflow="ellipsis")
    columns: list[ProgressColumn] = [TextColumn("{task.description}", table_column=words)]
    if console.width >= BAR_FROM:
        columns.append(BarColumn(bar_width=None, table_column=Column(ratio=1)))
    columns.append(Rate(table_column=Column(no_wrap=True)))
    if console.width >= ELAPSED_FROM:
        columns.append(TimeElapsedColumn())
    columns += [TextColumn("left"), TimeRemainingColumn()]
    return Progress(*columns, console=console, expand=BAR_FROM <= console.width < ELAPSED_FROM)


def _rate_unit(unit: str, rate_of: str | None) -> str:
    return f"{unit}/s ({rate_of})" if rate_of else f"{unit}/s"


class _LogLines:
    """Progress as plain lines: at most one every LOG_INTERVAL_S seconds, and one at the end."""

    def __init__(self, description: str, total: float | None, unit: str, rate_of: str | None = None) -> None:
        self.description, self.total, self.unit, self.rate_of = description, total, unit, rate_of
        self.rate: float | None = None
        self.done = 0.0
        self.started_s = self.last_line_s = time.monotonic()
        self.last_line: tuple[str, float] | None = None

    def update(self, description: str | None, amount: float, total: float | None, rate: float | None) -> None:
        self.description = description or self.description
        self.rate = rate if rate is not None else self.rate
        self.total = total if total is not None else self.total
        self.done += amount
        if time.monotonic() - self.last_line_s >= LOG_INTERVAL_S:
            self.print_line()

    def end(self) -> None:
        if self.last_line != (self.description, self.done):
            self.print_line()

    def print_line(self) -> None:
        self.last_line = (self.description, self.done)
        self.last_line_s = time.monotonic()
        elapsed_s = max(self.last_line_s - self.started_s, 1e-9)
        rate = self.rate if self.rate_of is not None else self.done / elapsed_s
        words = f"{self.description}: {self.done:,.0f}"
        if self.total:
            words += f"/{self.total:,.0f}"
        words += f" {self.unit}, "
        if rate is not None and (self.rate_of is not None or rate >= LEAST_RATE):
            words += f"{rate:,.1f} {_rate_unit(self.unit, self.rate_of)}, "
        words += f"{elapsed_s:.0f} s"
        if self.total and rate and self.done < self.total:
            words += f", {(self.total - self.done) / rate:.0f} s left"
        log(words)
