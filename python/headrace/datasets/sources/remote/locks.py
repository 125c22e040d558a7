"""Claims on runs of records, so that no two threads or processes of a machine fetch the same bytes.

A claim is a lock on a range of an empty file, one byte a record (open file description locks, fcntl(2)). The kernel releases
it when its holder closes the file or dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["claim"]

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_POLL_S = 0.005
_PATIENCE_S = 60.0  # after this time the bytes are fetched without the claim: its holder may be stopped (SIGSTOP)


@contextlib.contextmanager
def claim(path: Path, runs: Sequence[tuple[int, int]]) -> Iterator[bool]:
    """Claim runs of records, each (first, last); yield True if another holder had to be waited for.

    The runs are ascending and do not overlap. They are claimed in that order, so no two holders wait for each other.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline_s, waited = time.monotonic() + _PATIENCE_S, False
    try:
        for first, last in runs:
            waited |= _lock(descriptor, first, last, deadline_s)
        yield waited
    finally:
        os.close(descriptor)


def _lock(descriptor: int, first: int, last: int, deadline_s: float) -> bool:
    """Lock a range of the file, or go on without the lock at the deadline; return whether another holder had it."""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, first, last - first + 1, 0)
    waited = False
    while time.monotonic() < deadline_s:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
            break
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another holder
            waited = True
            time.sleep(_POLL_S)
        except OSError:  # a file system without such locks: two may fetch the same bytes, which is slower and still right
            break
    return waited
