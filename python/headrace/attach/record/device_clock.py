"""Measure time on the device's own clock, without waiting for the device.

Two events on the current stream enclose `next()`. The device reaches the first event when all work queued before is done. The
time between them is the time in which the device waited for `next()` without work. The events are read a few steps later, when
the device has passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CudaClock", "DeviceClock", "StepClock"]

MAX_PENDING_STEPS = 64
MAX_COPIES = 8


class DeviceClock(Protocol):
    """Interface to a device with a queue of work. A class for a device other than CUDA has the same five methods."""

    def usable(self) -> bool:
        """Return whether events can be recorded now: the device is in use, and no CUDA graph is being captured."""

    def record(self) -> Any:
        """Queue an event after all work queued so far, and return the event."""

    def passed(self, event: Any) -> bool:
        """Return whether the device has reached the event. Does not wait."""

    def elapsed_s(self, first: Any, second: Any) -> float:
        """Return the seconds from event `first` to event `second` by the device's clock. The device must have reached both."""

    def release(self, events: list[Any]) -> None:
        """Return events to the clock for reuse."""


class CudaClock:
    """The `DeviceClock` for CUDA and ROCm. It records events on the current stream of the current device, and reuses them."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._free: list[Any] = []

    def usable(self) -> bool:
        return self._cuda.is_initialized() and not self._cuda.is_current_stream_capturing()

    def record(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, event: Any) -> bool:
        return bool(event.query())

    def elapsed_s(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) * 1e-3

    def release(self, events: list[Any]) -> None:
        self._free.extend(events)


@dataclass(slots=True)
class _Pending:
    """A finished step whose device times are not known yet."""

    row: list[Any]
    before: Any
    after: Any
    copies: list[tuple[Any, Any]]
    end: Any = None


class StepClock:
    """Adds device times to the rows of finished steps, once the device has reached their events.

    A row waits until the device has passed the step's events; then `emit(loader, row)` gets the row. Where the device is not in
    use, `emit` gets the row at once. `columns`: the positions of device wait, device time and copy time (seconds) in a row.
    """

    def __init__(self, clock: DeviceClock, columns: tuple[int, int, int], emit: Callable[[int, list[Any]], None]) -> None:
        self._clock = clock
        self._columns = columns
        self._emit = emit
        self._before: Any = None
        self._after: Any = None
        self._copies: list[tuple[Any, Any]] = []
        self._last: tuple[int, _Pending] | None = None
        self._pending: deque[tuple[int, _Pending]] = deque()

    def before_next(self) -> None:
        """Record the end of the previous step: `next()` is about to be called."""
        self._before = self._clock.record() if self._clock.usable() else None
        self._after = None
        last, self._last = self._last, None
        if last is not None:
            last[1].end = self._before
            if self._before is None or len(self._pending) >= MAX_PENDING_STEPS:
                self._emit(last[0], last[1].row)
            else:
                self._pending.append(last)
        self._resolve()

    def after_next(self) -> int | None:
        """Record that `next()` has returned. Return 1 if the device had no work left, 0 if it had, None if it is not in use."""
        drained = int(self._clock.passed(self._before)) if self._before is not None else None
        self._after = self._clock.record() if self._before is not None and self._clock.usable() else None
        self._copies = []
        return drained

    def begin_copy(self) -> Any:
        """Start timing a copy to the device. Pass the returned event to `end_copy`."""
        wanted = self._after is not None and len(self._copies) < MAX_COPIES and self._clock.usable()
        return self._clock.record() if wanted else None

    def end_copy(self, begin: Any) -> None:
        """Record that the copy begun at event `begin` has been queued."""
        if begin is not None:
            self._copies.append((begin, self._clock.record()))

    def close_step(self, loader: int, row: list[Any]) -> None:
        """Keep the row of a finished step until its device times are known. They belong to the last step before `next()`."""
        last, self._last = self._last, None
        if last is not None:
            self._emit(last[0], last[1].row)
        if self._before is None or self._after is None:
            self._emit(loader, row)
        else:
            self._last = (loader, _Pending(row, self._before, self._after, self._copies))

    def drain(self) -> None:
        """Write all rows that are waiting, with or without device times, because the process ends."""
        self._resolve()
        left = [*self._pending, *([self._last] if self._last else [])]
        self._pending.clear()
        for loader, pending in left:
            self._emit(loader, pending.row)

    def _resolve(self) -> None:
        while self._pending and self._clock.passed(self._pending[0][1].end):
            loader, step = self._pending.popleft()
            wait, compute, copy = self._columns
            step.row[wait] = round(self._clock.elapsed_s(step.before, step.after), 7)
            step.row[compute] = round(self._clock.elapsed_s(step.after, step.end), 7)
            step.row[copy] = round(sum(self._clock.elapsed_s(first, second) for first, second in step.copies), 7)
            # The end event is the next step's first one, so it is released with that step.
            self._clock.release([step.before, step.after, *(event for pair in step.copies for event in pair)])
            self._emit(loader, step.row)
