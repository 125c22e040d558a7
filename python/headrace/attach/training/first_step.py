"""Time the start of a job: imports, downloads, compilation.

Downloads are reads from Python's sockets by the training process before its first batch. Time in which several threads read
counts once. Compilation times are `torch.compile`'s own, in the first step and whenever it compiles again.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.attach.record import load_hooks
from headrace.attach.record.recorder import Recorder

__all__ = ["CompileTimer", "install", "record_startup"]

LEAST_DOWNLOAD_BYTES = 1_000_000
LONGEST_LIST = 5
LONGEST_REASON = 200

COMPILE_TIMERS = ("_compile.compile_inner", "backward._backward_impl")
"""The keys of `torch._dynamo.utils.compilation_time_metrics` that do not overlap: forward graphs, and late backward graphs."""


class _Download:
    """The bytes received so far, and the seconds in which at least one thread waited for bytes."""

    __slots__ = ("bytes", "end_s", "installed", "on", "seconds", "start_s")

    def __init__(self) -> None:
        self.on = self.installed = False
        self.bytes = 0
        self.seconds = 0.0
        self.start_s = self.end_s = 0.0


_download = _Download()


def install() -> None:
    """Patch Python's sockets, once in a process, to time downloads until `record_startup` is called."""
    if _download.installed:
        return
    _download.on = _download.installed = True
    for kind in (socket.socket, ssl.SSLSocket):
        for name in ("recv", "recv_into"):
            setattr(kind, name, _timed_receive(getattr(kind, name)))


def _timed_receive(original: Callable[..., Any]) -> Callable[..., Any]:
    def receive(self: Any, *args: Any, **options: Any) -> Any:
        if not _download.on:
            return original(self, *args, **options)
        begin_s = time.monotonic()
        result = original(self, *args, **options)
        now_s = time.monotonic()
        if not _download.bytes:
            _download.start_s = begin_s
        _download.bytes += len(result) if isinstance(result, bytes) else int(result)
        _download.seconds += max(0.0, now_s - max(begin_s, _download.end_s))
        _download.end_s = max(_download.end_s, now_s)
        return result

    return receive


def record_startup(recorder: Recorder) -> None:
    """Record the imports and downloads before the first batch, once."""
    imports = load_hooks.stop_timing_imports()
    if imports:
        recorder.event("imports", imports[0][1], sum(seconds for _, _, seconds in imports), _longest(imports))
    if _download.on and _download.bytes >= LEAST_DOWNLOAD_BYTES:
        recorder.event("download", _download.start_s, _download.seconds, f"{_download.bytes / 1e6:.0f} MB")
    _download.on = False


def _longest(imports: Sequence[tuple[str, float, float]]) -> str:
    """Name the modules whose imports took longest, with their seconds."""
    longest = sorted(imports, key=lambda item: -item[2])[:LONGEST_LIST]
    return ", ".join(f"{name} {seconds:.1f} s" for name, _, seconds in longest if seconds >= 0.1)


class CompileTimer:
    """Records the steps in which `torch.compile` has compiled."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen_s = 0.0
        self._reasons: dict[int, int] = {}

    def after_step(self, begin_s: float) -> None:
        """Record the compilation, if any, in the step whose batch was delivered at `begin_s` (monotonic seconds)."""
        module = sys.modules.get("torch._dynamo.utils")
        timers = getattr(module, "compilation_time_metrics", None)
        if not timers:
            return
        total_s = sum(sum(timers[name]) for name in COMPILE_TIMERS if name in timers)
        if total_s > self._seen_s + 0.001:
            self._recorder.event("compile", begin_s, total_s - self._seen_s, self._new_reason(module))
            self._seen_s = total_s

    def _new_reason(self, module: Any) -> str | None:
        """Return why `torch.compile` compiled again since the last call, in its own words; None at first."""
        before, self._reasons, found = self._reasons, {}, None
        with suppress(Exception):  # a private table of PyTorch: the step is timed all the same
            for function, reasons in list(module.guard_failures.items()):
                self._reasons[id(function)] = len(reasons)
                if len(reasons) > before.get(id(function), 0):
                    found = str(reasons[-1]).partition("\n")[0][:LONGEST_REASON]
        return found
