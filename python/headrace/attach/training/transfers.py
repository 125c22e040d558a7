"""Count calls that wait for the device (`.item()`, `.cpu()`, …), and time copies to it.

A call on a CPU tensor returns at once and is not counted. A wait is not a fault in itself: the diagnosis checks whether the
device idles after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.device_clock import StepClock
from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["install", "note_wait"]


def install(step_clock: StepClock) -> None:
    """Patch `torch.cuda.synchronize` and the methods of `torch.Tensor` that copy from or to the device, to time the calls."""
    import torch

    for name in ("item", "cpu", "tolist"):
        setattr(torch.Tensor, name, _timed_read(getattr(torch.Tensor, name)))
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _timed_copy(getattr(torch.Tensor, name), step_clock))
    torch.cuda.synchronize = _timed_wait(torch.cuda.synchronize)


def note_wait(duration_s: float) -> None:
    """Count a wait for the device of `duration_s` seconds. For modules that support devices other than CUDA."""
    COUNTERS.sync_s += duration_s
    COUNTERS.sync_count += 1


def _timed_read(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, *args: Any, **options: Any) -> Any:
        begin_s = None if self.is_cpu else time.monotonic()
        try:
            return original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            if begin_s is not None:
                note_wait(time.monotonic() - begin_s)

    return _named_like(read, original)


def _timed_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def synchronize(*args: Any, **options: Any) -> Any:
        begin_s = time.monotonic()
        try:
            return original(*args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            note_wait(time.monotonic() - begin_s)

    return _named_like(synchronize, original)


def _timed_copy(original: Callable[..., Any], step_clock: StepClock) -> Callable[..., Any]:
    def copy(self: Any, *args: Any, **options: Any) -> Any:
        begin, begin_s = step_clock.begin_copy() if self.is_cpu else None, time.monotonic()
        try:
            result = original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if self.is_cpu and not result.is_cpu:
            COUNTERS.copy_s += time.monotonic() - begin_s
            step_clock.end_copy(begin)
        return result

    return _named_like(copy, original)


def _named_like(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = original.__name__
    function.__qualname__ = getattr(original, "__qualname__", original.__name__)
    function.__doc__ = original.__doc__
    vars(function)["__wrapped__"] = original  # by which deferred tensors know the method
    return function
