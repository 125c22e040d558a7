"""Ctrl-C outside of a verb: while modules are imported, which takes seconds on a busy machine, and while Python ends."""

from __future__ import annotations

import signal
import sys
from types import TracebackType

__all__ = ["end_quietly", "ignore_from_now_on"]

_others = sys.excepthook


def end_quietly() -> None:
    """End this process with one word, not a traceback, if Ctrl-C interrupts code that does not handle it."""
    sys.excepthook = _report


def ignore_from_now_on() -> None:
    """Ignore Ctrl-C from now on: the verb is finished, and the process is about to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr, flush=True)
    else:
        _others(kind, error, trace)
