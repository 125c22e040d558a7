"""Errors of the script's own code that runs here instead of in a worker: as torch reports an error of a worker.

A worker sends the type and the text of its error. torch's iterator raises an error of that type whose text names the worker and
holds the traceback; of types that take other arguments than a text, a `RuntimeError`.
"""

from __future__ import annotations

import os

from torch._utils import ExceptionWrapper

from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["Interrupted", "exited", "worker_error"]


def worker_error(error: Exception, worker: int) -> ExceptionWrapper:
    """Return what a worker sends for an error. Its `reraise` raises what the script would get.

    Call that outside of `except`: Python would print the worker's error before it.
    """
    drop_own_frames(error)
    return ExceptionWrapper((type(error), error, error.__traceback__), where=f"in DataLoader worker process {worker}")


class _Exited(ExceptionWrapper):
    """Stands for a worker that has ended itself. The words are torch's."""

    def __init__(self) -> None:
        super().__init__((RuntimeError, RuntimeError(), None))

    def reraise(self) -> None:
        raise RuntimeError(f"DataLoader worker (pid(s) {os.getpid()}) exited unexpectedly")


def exited() -> ExceptionWrapper:
    """Return what the loop gets where code of a worker has ended its process. The number is that of this process."""
    return _Exited()


class Interrupted(BaseException):
    """A handler of a signal has raised `error` while a batch was waited for. No code that handles errors may see it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
