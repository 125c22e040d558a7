"""What the training loop of this process does at the moment, in a page of memory that the sampler reads.

A job that stands still calls no hook, so it cannot report that itself. Each hooked process therefore keeps a page up to date
(waits for a batch, runs a step, makes a batch, since when), and registers a handler of `faulthandler` for `SIGNAL`, which
appends the stack of the thread that gets it behind the page. The handler is C code: it needs no interpreter lock, and it also
works in a worker that waits for a lock it inherited at the fork. The page is an anonymous file (`memfd_create`) of one process.
The sampler finds it in `/proc/PID/fd`, and sends the signal to the training thread, only where the page says that it has the
handler.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import signal
import threading
import time
import zlib
from array import array
from contextlib import suppress

__all__ = [
    "PAGE_BYTES",
    "PAGE_NAME",
    "PHASES",
    "SIGNAL",
    "SLOTS",
    "batch_begun",
    "batch_ended",
    "epoch_ended",
    "install",
    "note_rank",
    "optimizer_stepped",
    "step_begun",
    "stop",
    "wait_begun",
]

SIGNAL = signal.SIGRTMIN + 11
"""The signal that asks a process for its stacks: one of the real-time signals, which libraries leave to programs."""

PAGE_NAME = "headrace-open-step"
PAGE_BYTES = mmap.PAGESIZE

PHASES = ("nothing", "waits", "runs", "epoch ended", "makes a batch", "worker idle")
"""What a process does: no loop yet, inside `next()`, between `next()` and the following one, after the last batch of an epoch;
a worker makes a batch, or has none to make. The page holds the position."""

SLOTS = (
    "pid", "descriptor", "thread", "phase", "since_s", "loader", "epoch", "batches", "steps", "longest_s", "begun_s",
    "rank", "world_size", "worker", "touched_s", "parent_pid", "job",
)  # fmt: skip
"""The numbers on the page, in order, each a float64. Times are monotonic seconds.

thread: the training thread (`threading.get_native_id`). since_s: since when it does what `phase` says. batches: handed out in
this epoch. steps: batches handed out in all loops. longest_s: the longest time between two changes so far. begun_s: time of
the first batch, 0 before. worker: the worker's number, else -1. touched_s: the last step of an optimizer. job: a number that
the ranks of one job share.
"""

PID, DESCRIPTOR, THREAD, PHASE, SINCE, LOADER, EPOCH, BATCHES = range(8)
STEPS, LONGEST, BEGUN, RANK, WORLD, WORKER, TOUCHED, PARENT, JOB = range(8, len(SLOTS))
WAITS, RUNS, EPOCH_ENDED, MAKES_BATCH, WORKER_IDLE = map(float, range(1, 6))

_page: array[float] | memoryview[float] = array("d", bytes(8 * len(SLOTS)))
_inherited: list[memoryview[float]] = []
"""Pages of the processes that this one was forked from. They stay mapped: a script may have closed and reused descriptors."""

_monotonic = time.monotonic


def install() -> str | None:
    """Begin to keep the page, in this process and in those forked from it. Return why not, or None.

    A script that has a handler of its own for `SIGNAL` keeps it.
    """
    if isinstance(_page, memoryview):
        return None
    if not hasattr(os, "memfd_create"):
        return "the kernel has no anonymous files (memfd_create)"
    try:
        if _is_caught():
            return f"the script or a library has a handler for signal {int(SIGNAL)}"
        _enter_process()
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)
    os.register_at_fork(after_in_child=_enter_child)
    return None


def _is_caught() -> bool:
    """Return whether the process has a handler for `SIGNAL`: Python does not know one that a library set by `sigaction`."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1) or signal.getsignal(SIGNAL) is not signal.SIG_DFL


def _enter_process() -> None:
    global _page
    descriptor = os.memfd_create(PAGE_NAME)
    os.ftruncate(descriptor, PAGE_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    page = memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("d")
    # Only the thread itself: reading the frames of others while they run can end the process (CPython issue 116008).
    faulthandler.register(SIGNAL, file=descriptor, all_threads=False, chain=False)
    page[DESCRIPTOR], page[THREAD], page[WORKER], page[SINCE] = descriptor, threading.get_native_id(), -1, _monotonic()
    page[PARENT] = os.getppid()
    page[PID] = os.getpid()  # last: from now on the sampler may send the signal
    _page = page


def _enter_child() -> None:
    global _page
    if isinstance(_page, memoryview):
        _inherited.append(_page)
    _page = array("d", bytes(8 * len(SLOTS)))
    with suppress(OSError, RuntimeError, ValueError):  # without a page the child gets no signal
        _enter_process()


def _change(phase: float, now_s: float) -> None:
    page = _page
    if page[BEGUN] and now_s - page[SINCE] > page[LONGEST]:
        page[LONGEST] = now_s - page[SINCE]
    page[PHASE], page[SINCE] = phase, now_s


def wait_begun(loader: int, epoch: int, batches: int, now_s: float) -> None:
    """Note that `next()` of a loader is called, for the batch after `batches` of this epoch. now_s: monotonic seconds."""
    page = _page
    if not page[TOUCHED]:  # until an optimizer tells, the thread that iterates the loader is the training thread
        page[THREAD] = threading.get_native_id()
    page[LOADER], page[EPOCH], page[BATCHES] = loader, epoch, batches
    _change(WAITS, now_s)


def step_begun(batches: int, now_s: float) -> None:
    """Note that `next()` has returned a batch, the one with the number `batches` of its epoch, from 1."""
    page = _page
    _change(RUNS, now_s)
    if not page[BEGUN]:
        page[BEGUN] = now_s
    page[BATCHES] = batches
    page[STEPS] += 1


def epoch_ended(now_s: float) -> None:
    """Note that the loader has no more batches in this epoch."""
    _change(EPOCH_ENDED, now_s)


def batch_begun(loader: int, worker: int, now_s: float) -> None:
    """Note that this worker begins to make a batch."""
    page = _page
    page[LOADER], page[WORKER], page[PHASE], page[SINCE] = loader, worker, MAKES_BATCH, now_s


def batch_ended(now_s: float) -> None:
    """Note that this worker has made its batch."""
    page = _page
    page[PHASE], page[SINCE] = WORKER_IDLE, now_s
    page[STEPS] += 1


def optimizer_stepped() -> None:
    """Note a step of an optimizer: training goes on, also where no loader is iterated."""
    page = _page
    page[TOUCHED], page[THREAD] = _monotonic(), threading.get_native_id()


def note_rank(rank: int, world_size: int) -> None:
    """Note the rank of this process and how many there are, of the job that meets at `MASTER_ADDR` and `MASTER_PORT`."""
    page = _page
    page[RANK], page[WORLD] = rank, world_size
    meeting = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    page[JOB] = zlib.crc32(meeting.encode("utf-8", "surrogateescape"))


def stop() -> None:
    """Keep no account any more, for example because the session ends: nothing then looks as if it stood still."""
    page = _page
    page[PHASE], page[BEGUN], page[STEPS], page[LONGEST], page[TOUCHED] = 0.0, 0.0, 0.0, 0.0, 0.0
    page[SINCE] = _monotonic()
