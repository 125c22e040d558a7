"""Requests to stop: SIGTERM (spot machines, SageMaker), SIGUSR1 (Slurm) and Ctrl-C set a flag that the loop reads."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["StopRequest"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """A context manager: inside the block, a signal only sets `signal`. A second Ctrl-C raises KeyboardInterrupt.

    Outside the main thread Python allows no handlers, and `signal` stays None.

        with StopRequest() as stop:
            while stop.signal is None: ...
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    @property
    def number(self) -> int:
        """The number of the signal that asked to stop; 0 if none did."""
        return 0 if self.signal is None else int(self.signal)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is signal.Signals.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
