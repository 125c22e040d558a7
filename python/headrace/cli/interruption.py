"""Ctrl-C around a verb: an answer at once, one word while modules are imported, and silence while Python ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import TracebackType

__all__ = ["ANSWER", "answer_at_once", "end_quietly", "ignore_from_now_on", "set_answer"]

ANSWER = "stopping; Ctrl-C once more stops now"
"""The answer to Ctrl-C for verbs that have no other."""

PATIENCE_S = 0.4
"""Answer after this time: most verbs have ended by then, and say so themselves."""

_others = sys.excepthook
_answer = [ANSWER]


def end_quietly() -> None:
    """End this process with one word, not a traceback, if Ctrl-C interrupts code that does not handle it."""
    sys.excepthook = _report


def ignore_from_now_on() -> None:
    """Ignore Ctrl-C from now on: the verb is finished, and the process is about to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def answer_at_once() -> None:
    """Print a line soon after the first Ctrl-C, also while the main thread is in native code, where Python handles no signal.

    C's own handler writes the number of the signal to a pipe, and a thread reads it. Forked children write nothing.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_wait, args=(reading,), name="headrace-interrupt", daemon=True).start()


def set_answer(words: str) -> None:
    """Set the answer to Ctrl-C. Empty: none, for a verb whose command answers."""
    _answer[0] = words


def _forget() -> None:
    signal.set_wakeup_fd(-1)


def _wait(reading: int) -> None:
    while signal.SIGINT not in os.read(reading, 64):
        pass
    time.sleep(PATIENCE_S)
    if _answer[0] and "RANK" not in os.environ:  # of several ranks their launcher answers
        os.write(2, f"headrace: {_answer[0]}\n".encode())


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr, flush=True)
    else:
        _others(kind, error, trace)
