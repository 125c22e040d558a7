"""Time training steps without waiting for the device: from the hand-over of a batch to the request for the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["EventClock", "HostClock", "StepClock"]


class StepClock(Protocol):
    """Measures training steps without waiting for the device: from the hand-over of a batch to the call for the next."""

    def out(self) -> None:
        """Record that the loader has handed over a batch."""

    def back(self) -> None:
        """Record that the training loop has asked for the next batch."""

    def step_s(self) -> float | None:
        """Return the seconds of the latest step whose time is known, or None if no step was timed since the last call."""


class HostClock:
    """Times steps by the host's clock. Correct if the step's work is done when the next batch is asked for (CPU training)."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began: float | None = None
        self._step_s: float | None = None

    def out(self) -> None:
        """Record that the loader has handed over a batch."""
        self._began = self._now()

    def back(self) -> None:
        """Record that the training loop has asked for the next batch."""
        if self._began is not None:
            self._step_s, self._began = self._now() - self._began, None

    def step_s(self) -> float | None:
        """Return the seconds of the latest step, or None if no step was timed since the last call."""
        found, self._step_s = self._step_s, None
        return found


class EventClock:
    """Times steps by CUDA events on the consumer's stream: the GPU's own time of a step, even if the host is far ahead."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._open: Any = None
        self._steps: deque[tuple[Any, Any]] = deque(maxlen=16)

    def _mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def out(self) -> None:
        """Record that the loader has handed over a batch."""
        self._open = self._mark()

    def back(self) -> None:
        """Record that the training loop has asked for the next batch."""
        if self._open is not None:
            self._steps.append((self._open, self._mark()))
            self._open = None

    def step_s(self) -> float | None:
        """Return the seconds of the latest step that the GPU has finished, or None if none was finished since the last call."""
        found = None
        while self._steps and self._steps[0][1].query():
            began, ended = self._steps.popleft()
            found = float(began.elapsed_time(ended)) / 1e3
        return found
