"""The wall-clock limit of a series of measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headrace.errors import CommandError

__all__ = ["Deadline", "OutOfTime"]


class OutOfTime(CommandError):
    """A measurement was ended, or not begun, because the time limit of the series was reached."""


class Deadline:
    """A time limit of `seconds` from now; None: no limit. `not_measured` lists what was left out for lack of time."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._end_s = math.inf if seconds is None else clock() + seconds
        self.not_measured: list[str] = []

    @property
    def left_s(self) -> float:
        """Seconds left, 0 or more; infinite without a limit."""
        return max(0.0, self._end_s - self._clock())

    @property
    def passed(self) -> bool:
        """Whether the time limit is reached."""
        return self.left_s <= 0

    def left_out(self, what: str) -> str:
        """Record that there is no time to measure `what` (`not_measured`), and return a line of text that says so."""
        self.not_measured.append(what)
        return f"{what}: not measured, the {self.seconds or 0:.0f} s of --time-limit are over"
