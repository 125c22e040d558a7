"""Call a function in a forked child process, so that its side effects are lost, and return its result."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from headrace.accelerate.workers.one_at_a_time import one_at_a_time
from headrace.accelerate.workers.unheard_warnings import unheard_warnings

__all__ = ["ForkedChildFailed", "forked_child", "in_forked_child"]

TIME_LIMIT_S = 60.0
"""Kill a child after this time, in seconds: it may wait for a lock that a thread of the parent held at the fork."""

Result = TypeVar("Result")


class ForkedChildFailed(Exception):
    """Raised when the child process gives no result."""


def in_forked_child(make: Callable[[], Result], time_limit_s: float = TIME_LIMIT_S) -> Result:
    """Call `make` in a forked child, and return its pickled result. Output of the child is discarded.

    Raise `ForkedChildFailed` if the child ends without a result, or takes longer than `time_limit_s` seconds.
    """
    with forked_child(make, time_limit_s) as result:
        return result()


@contextlib.contextmanager
def forked_child(make: Callable[[], Result], time_limit_s: float = TIME_LIMIT_S) -> Iterator[Callable[[], Result]]:
    """Context manager: a forked child calls `make` meanwhile. The value is a function that waits for the result and returns it.

    The function raises `ForkedChildFailed` as `in_forked_child` does. The child is ended with the block.
    """
    end_s = time.monotonic() + time_limit_s
    with one_at_a_time():  # a second child would inherit the writing end of the first one's pipe, and keep it open
        child, reading = _forked(make)
        try:
            yield lambda: _result(reading, end_s)
        finally:
            os.close(reading)
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # the script lets nobody wait for children
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _forked(make: Callable[[], Any]) -> tuple[int, int]:
    """Fork a child that calls `make`. Return its process id, and the descriptor from which its pickled result can be read."""
    reading, writing = os.pipe()
    with unheard_warnings():  # Python's about threads: the child runs no code of theirs
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            quiet = os.open(os.devnull, os.O_RDWR)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            torch.set_num_threads(1)
            data = pickle.dumps(make())
            with os.fdopen(writing, "wb") as file:
                file.write(data)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return child, reading


def _result(reading: int, end_s: float) -> Any:
    data = _read_all(reading, end_s)
    try:
        return pickle.loads(data)  # of our own child
    except Exception as error:
        raise ForkedChildFailed("the forked child ended without a result") from error


def _read_all(reading: int, end_s: float) -> bytes:
    parts: list[bytes] = []
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([reading], [], [], left_s)[0]:
            break
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise ForkedChildFailed("the forked child took too long")
