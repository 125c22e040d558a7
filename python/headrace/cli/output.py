"""How the verbs speak: one JSON document or text on stdout, progress and remarks on stderr.

On a terminal progress is a bar with rate and time left; in a log it is a plain line every few seconds.
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
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # rich costs as much as all else that `headrace pack` loads, and it shows nothing away from a terminal
    from rich.console import Console
    from rich.progress import Progress

    console: Console
    page: Console

__all__ = ["Meter", "console", "counted", "emit", "only_documents_on_stdout", "page", "progress", "say", "write_document"]

LOG_INTERVAL_S = 5.0
LOG_WIDTH = 120


@cache
def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # Away from a terminal rich assumes 80 columns and cuts tables; a log has room.
    width = None if terminal or "COLUMNS" in os.environ else LOG_WIDTH
    return Console(stderr=stderr, highlight=False, width=width)


def __getattr__(name: str) -> Console:
    """`console` is for remarks and progress, `page` for what the verb was asked for (inside `emit`'s render only)."""
    if name not in ("console", "page"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _console(stderr=name == "console")


_document_stream: TextIO | None = None


def say(line: str) -> None:
    """Prints one plain line on stderr (no markup, no wrapping: it may hold a path or a command to copy)."""
    print(line, file=sys.stderr, flush=True)


def counted(number: int, what: str) -> str:
    """`1 shard`, `2,000 shards`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def emit(args: argparse.Namespace, document: Mapping[str, object], render: Callable[[], None]) -> None:
    """Ends a verb: prints `document` as JSON under `--json`, otherwise calls `render`, which writes to stdout."""
    if args.json:
        write_document(document)
    else:
        render()


def write_document(document: Mapping[str, object]) -> None:
    """Writes one JSON document to the real stdout. Paths become text, dataclasses objects, NaN and infinity null."""
    stream = _document_stream or sys.stdout
    stream.write(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    stream.flush()


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "item"):  # a NumPy or torch scalar, without importing either
        return _plain(value.item())
    raise TypeError(f"{type(value).__name__} has no JSON form")


@contextlib.contextmanager
def only_documents_on_stdout(as_json: bool) -> Iterator[None]:
    """Under `--json`, sends to stderr what anyone else writes to stdout: libraries, and child processes too."""
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
    # A lone surrogate (a name that is not UTF-8) is `\udcXX` in JSON too.
    with os.fdopen(saved, "w", encoding="utf-8", errors="backslashreplace") as stream:
        _document_stream = stream
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            stream.flush()
            os.dup2(saved, 1)
            _document_stream = None


class Meter:
    """What a running progress bar shows; `advance` and `describe` may be called as often as one likes."""

    def __init__(self, show: Callable[[str | None, float, float | None, float | None], None]) -> None:
        self._show = show
        self.done = 0.0

    def advance(
        self, amount: float = 1, description: str | None = None, *, total: float | None = None, rate: float | None = None
    ) -> None:
        """Counts `amount` more units as done; changes the words in front of the bar, the total and the rate, if there are
        new ones (`rate`, units a second, is shown where `progress` was told what it is of)."""
        self.done += amount
        self._show(description, amount, total, rate)

    def describe(self, description: str) -> None:
        """Changes the words in front of the bar."""
        self._show(description, 0, None, None)


@contextlib.contextmanager
def progress(description: str, total: float | None = None, *, unit: str = "img", rate_of: str | None = None) -> Iterator[Meter]:
    """Shows progress on stderr while the block runs; `total` in `unit`s, None when unknown.

    `rate_of`: the rate is the one that `advance` is told, of this ("steps alone"), and none is shown before; else it is that of
    the block's own time.
    """
    if sys.stderr.isatty():
        with _bar(unit, rate_of) as bar:
            task = bar.add_task(description, total=total)

            def show(words: str | None, amount: float, total: float | None, rate: float | None) -> None:
                told = {} if rate is None else {"rate": rate}
                bar.update(task, advance=amount, description=words, total=total, **told)  # type: ignore[arg-type]  # None: as it was

            yield Meter(show)
        return
    log = _Log(description, total, unit, rate_of)
    yield Meter(log.show)
    log.end()


def _bar(unit: str, rate_of: str | None) -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            of = f"/{task.total:,.0f}" if task.total else ""
            speed = task.fields.get("rate") if rate_of else task.finished_speed or task.speed
            return Text(f"{task.completed:,.0f}{of} {unit}" + (f"  {speed:,.0f} {_rate_unit(unit, rate_of)}" if speed else ""))

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=_console(stderr=True))


def _rate_unit(unit: str, rate_of: str | None) -> str:
    return f"{unit}/s ({rate_of})" if rate_of else f"{unit}/s"


class _Log:
    """Progress as plain lines, at most one every `LOG_INTERVAL_S` seconds, and one at the end."""

    def __init__(self, description: str, total: float | None, unit: str, rate_of: str | None = None) -> None:
        self.description, self.total, self.unit, self.rate_of = description, total, unit, rate_of
        self.rate: float | None = None
        self.done = 0.0
        self.started_s = self.last_line_s = time.monotonic()
        self.said: tuple[str, float] | None = None

    def show(self, description: str | None, amount: float, total: float | None, rate: float | None) -> None:
        self.description = description or self.description
        self.rate = rate if rate is not None else self.rate
        self.total = total if total is not None else self.total
        self.done += amount
        if time.monotonic() - self.last_line_s >= LOG_INTERVAL_S:
            self.line()

    def end(self) -> None:
        if self.said != (self.description, self.done):
            self.line()

    def line(self) -> None:
        self.said = (self.description, self.done)
        self.last_line_s = time.monotonic()
        elapsed_s = max(self.last_line_s - self.started_s, 1e-9)
        rate = self.rate if self.rate_of else self.done / elapsed_s
        words = f"{self.description}: {self.done:,.0f}"
        if self.total:
            words += f"/{self.total:,.0f}"
        words += f" {self.unit}, "
        if rate is not None:
            words += f"{rate:,.1f} {_rate_unit(self.unit, self.rate_of)}, "
        words += f"{elapsed_s:.0f} s"
        if self.total and rate and self.done < self.total:
            words += f", {(self.total - self.done) / rate:.0f} s left"
        say(words)
