"""Errors of the script's code that headrace runs in the training process: reported as torch reports those of a worker.

A worker sends the type and the text of its error. torch's iterator raises an error of that type whose text names the worker and
holds the traceback; of types that take other arguments than a text, a `RuntimeError`.
"""

from __future__ import annotations

import os

from torch._utils import ExceptionWrapper

from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["Interrupted", "exited", "worker_error"]


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


class Interrupted(BaseException):
    """Raised when a signal handler raised `error` during a wait for a batch. No `except Exception` catches it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
