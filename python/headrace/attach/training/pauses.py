"""Time the pauses of the training process: garbage collection and `torch.save`."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from headrace.attach.record.recorder import Recorder
from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["install"]

LEAST_PAUSE_S = 0.001
"""Do not record shorter garbage collections. Young generations take microseconds, hundreds of times a second."""


ARGUMENTS = 6
"""Look for the name of a called function in this many instructions before the call: few, so that no other call is meant."""


def install(recorder: Recorder) -> None:
    """Record each garbage collection (a callback of `gc`) and each `torch.save` (patched) with its time."""
    import torch

    gc.callbacks.append(_gc_timer(recorder))
    torch.save = _timed_save(torch.save, recorder)


def _gc_timer(recorder: Recorder) -> Callable[[str, dict[str, int]], None]:
    started = threading.local()
    calls: dict[tuple[CodeType, int], bool] = {}

    def time_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.at_s = time.monotonic()
            return
        begin_s = getattr(started, "at_s", None)
        if begin_s is not None and time.monotonic() - begin_s >= LEAST_PAUSE_S:
            duration_s = time.monotonic() - begin_s
            recorder.event("gc", begin_s, duration_s, f"generation {info['generation']}{called_at(sys._getframe().f_back)}")

    def called_at(frame: FrameType | None) -> str:
        """Return where the script itself asked for this collection; "" where the interpreter began it."""
        if frame is None:  # the interpreter ends: no function runs
            return ""
        key = frame.f_code, frame.f_lasti
        if "collect" not in frame.f_code.co_names:  # of most functions nothing is kept
            return ""
        if key not in calls:
            calls[key] = _calls_collect(*key)
        return f", called at {frame.f_code.co_filename}:{frame.f_lineno}" if calls[key] else ""

    return time_collection


def _calls_collect(code: CodeType, at: int) -> bool:
    """Return whether the instruction at this place of a function calls `gc.collect`."""
    before = [one for one in dis.get_instructions(code) if one.offset <= at]
    if not before:  # the function has not begun
        return False
    return before[-1].opname.startswith(("CALL", "PRECALL")) and any(one.argval == "collect" for one in before[-ARGUMENTS:])


def _timed_save(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def save(obj: Any, f: Any, *args: Any, **options: Any) -> Any:
        begin_s = time.monotonic()
        try:
            return original(obj, f, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            target = str(f) if isinstance(f, str) or hasattr(f, "__fspath__") else type(f).__name__
            recorder.event("save", begin_s, time.monotonic() - begin_s, target)

    save.__name__, save.__doc__, save.__module__ = "save", original.__doc__, original.__module__
    return save
