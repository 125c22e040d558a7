"""How the system schedules a Python thread of ours beside the thread that trains. Linux."""

from __future__ import annotations

import contextlib
import os

__all__ = ["yield_to_running_threads"]


def yield_to_running_threads() -> None:
    """Stop the calling thread from displacing a running thread from its core when it wakes up (scheduling policy SCHED_BATCH).

    A thread that reads ahead is woken for each piece of data that arrives. Under the normal policy it may take the core of the
    thread that trains, for a tick (4 ms). A batch thread has the same share of a busy core as before (sched(7),
    `SCHED_BATCH`). The native threads do the same. A policy that the user has chosen stays (chrt(1)), and so does that of a
    thread in a sandbox that forbids the change.
    """
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
