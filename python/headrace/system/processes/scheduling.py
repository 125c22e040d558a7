"""How the system schedules a Python thread of ours beside the thread that trains. Linux."""

from __future__ import annotations

import contextlib
import os

__all__ = ["yield_to_running_threads"]


def yield_to_running_threads() -> None:
    """Have the system run the calling thread without taking the core of a thread that runs already, when this one wakes up.

    A thread that reads ahead is woken for each piece of data that arrives. Under the normal policy it may take the core of the
    thread that trains, for a tick (4 ms). A batch thread has the same share of a busy core as before (sched(7),
    `SCHED_BATCH`). The native threads do the same. A policy that the user has chosen stays (chrt(1)), and so does that of a
    thread in a sandbox that forbids the change.
    """
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
