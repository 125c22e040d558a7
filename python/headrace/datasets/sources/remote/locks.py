"""Claims on runs of records, so that no two threads or processes of a machine fetch the same bytes.

A claim is a lock on a range of an empty file, one byte a record (open file description locks, fcntl(2)). The kernel releases
it when its holder closes the file or dies, and so do processes that were forked meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["PATIENCE_S", "claim", "claim_free"]

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_POLL_S = 0.005
PATIENCE_S = 60.0  # after this time the bytes are fetched without the claim: its holder may be stopped (SIGSTOP)


@contextlib.contextmanager
def claim(path: Path, first: int, last: int, deadline_s: float) -> Iterator[None]:
    """Claim the records `first` to `last`; while another holder has some of them, wait until `deadline_s` (time.monotonic)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not _lock(descriptor, first, last) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claim_free(path: Path, runs: Sequence[tuple[int, int]]) -> Iterator[list[bool]]:
    """Claim those runs of records, each (first, last), that no other holder has; yield for each run whether it is claimed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield [_lock(descriptor, first, last) for first, last in runs]
    finally:
        os.close(descriptor)


def _lock(descriptor: int, first: int, last: int) -> bool:
    """Lock a range of the file; return False if another holder has a part of it."""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, first, last - first + 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another holder
        return False
    except OSError:  # a file system without such locks: two may fetch the same bytes, which is slower and still right
        pass
    return True
