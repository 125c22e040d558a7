"""Errors of the script's code that headrace runs in the training process: reported as torch reports those of a worker.

A worker sends the type and the text of its error. torch's iterator raises an error of that type whose text names the worker and
holds the traceback; of types that take other arguments than a text, a `RuntimeError`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from torch._utils import ExceptionWrapper

from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["Interrupted", "exited", "is_of_handler", "worker_error"]


def worker_error(error: Exception, worker: int) -> ExceptionWrapper:
    """Return the wrapper that a worker would send for this error. Its `reraise` raises the error that the script would get.

    Call `reraise` outside of `except`: otherwise Python prints the worker's error before it.
    """
    drop_own_frames(error)
    return ExceptionWrapper((type(error), error, error.__traceback__), where=f"in DataLoader worker process {worker}")


class _Exited(ExceptionWrapper):
    """What torch reports, in its words, for a worker that ended itself."""

    def __init__(self) -> None:
        super().__init__((RuntimeError, RuntimeError(), None))

    def reraise(self) -> None:
        raise RuntimeError(f"DataLoader worker (pid(s) {os.getpid()}) exited unexpectedly")


def exited() -> ExceptionWrapper:
    """Return the error wrapper for code that ends its worker (`sys.exit`). The process id is that of this process."""
    return _Exited()


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the script has raised an error.

    Python calls it wherever the main thread is: the error is none of the code there, and the script waits for it outside.
    """
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> Any:
    """Return the code of a function, a method, a `partial` of one, or an object that can be called. None for all else."""
    while hasattr(handler, "func"):
        handler = handler.func
    if not callable(handler):
        return None
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = type(handler).__call__
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


class Interrupted(BaseException):
    """Raised when a signal handler raised `error` during a wait for a batch. No `except Exception` catches it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
