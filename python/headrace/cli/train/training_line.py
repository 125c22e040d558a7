"""The progress of a training run: one line that fits the terminal, with rate and time left, or plain lines in a log.

Until the time left is known, and in a phase without steps ("preparing", "evaluating"), the line shows the seconds so far.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.cli.shared import output
from headrace.report.text import numbers
from headrace.system.text.printable import printable

__all__ = ["TrainingLine", "TrainingMeter", "training_progress"]

REFRESH_PER_SECOND = 4.0


class TrainingMeter(Protocol):
    """Receives the progress of a training run. Both methods are cheap and may be called at any rate."""

    def update(self, words: str, *, images: int, left: int, rate: float | None) -> None:
        """Count `images` more as trained; `left` images are to be trained, at `rate` images a second (None: not measured)."""

    def begin(self, phase: str) -> None:
        """Show the activity `phase` until the next `update`."""


class TrainingLine:
    """The progress of a training run as one line of text, "preparing" at first. clock: returns seconds."""

    def __init__(self, words: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._words, self._clock = words, clock
        self._phase: str | None = "preparing"
        self._phase_s = self._updated_s = clock()
        self._trains_s: float | None = None  # since when it trains: preparing does not count
        self._done, self._left = 0, 0
        self._rate: float | None = None

    def update(self, words: str, *, images: int, left: int, rate: float | None) -> None:
        """Count `images` more as trained, and set the rate and the images left."""
        self._updated_s = self._clock()
        if self._trains_s is None:
            self._trains_s = self._updated_s
        self._words, self._phase, self._left, self._rate = words, None, left, rate
        self._done += images

    def begin(self, phase: str) -> None:
        """Show the activity `phase` until the next `update`."""
        self._phase, self._phase_s = phase, self._clock()
        if self._trains_s is None:
            self._trains_s = self._phase_s

    def end(self) -> None:
        """Show the last step's line again, no activity: the run has ended."""
        self._phase = None

    def text(self, width: int) -> str:
        """Return the line, of less than `width` columns. Rate and time left always fit; the words before them are cut."""
        end = f"  {numbers.image_rate(self._rate)} img/s" if self._rate else ""
        left_s = self._left_s()
        if left_s is not None:
            minutes, seconds = divmod(round(left_s), 60)
            end += f"  left {minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        words, room = self._words, max(0, width - 1 - len(end))
        passed = f": {self._phase} … {self._clock() - self._phase_s:.0f} s" if self._phase else ""
        if len(words + passed) > room and " epoch " in words:
            words = words[words.index(" epoch ") + 1 :]  # without the model's name
        if len(words + passed) > room and passed:
            words = words[: max(0, room - len(passed) - 1)] + "…"
        line = words + passed
        return (line if len(line) <= room else line[: max(0, room - 1)] + "…") + end

    def _left_s(self) -> float | None:
        """Return the seconds left, counted down since the last update; None before the first step."""
        speed = self._rate
        if not speed and self._trains_s is not None and self._done and self._updated_s > self._trains_s:
            speed = self._done / (self._updated_s - self._trains_s)
        return max(0.0, self._left / speed - (self._clock() - self._updated_s)) if speed else None


class _Log:
    """The progress of a training run as plain lines in a log."""

    def __init__(self, bar: output.ProgressBar) -> None:
        self._bar, self._words = bar, ""

    def update(self, words: str, *, images: int, left: int, rate: float | None) -> None:
        self._words = words
        # The same rate as in the summary: without start-up, warm-up steps and evaluation.
        self._bar.advance(images, words, total=self._bar.done + images + left, rate=rate)

    def begin(self, phase: str) -> None:
        if self._words:
            self._bar.describe(self._words)


@contextlib.contextmanager
def training_progress(name: str) -> Iterator[TrainingMeter]:
    """Show the progress of the run called `name` on stderr while the block runs; it begins with "preparing"."""
    name = printable(name)
    if not output.is_terminal(sys.stderr):
        with output.progress(f"{name}: preparing", None, rate_of="steps alone") as bar:
            yield _Log(bar)
        return
    from rich.live import Live
    from rich.text import Text

    console = output.stderr_console
    line = TrainingLine(name)
    live = Live(
        console=console,
        refresh_per_second=REFRESH_PER_SECOND,
        get_renderable=lambda: Text(line.text(console.width), no_wrap=True),
    )
    with live:
        yield line
        line.end()
