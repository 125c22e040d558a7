"""Where a process of a job stands while no training step comes: its place, and what it waits for, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from headrace.session.standstill import StandingProcess

__all__ = [
    "COMPILES",
    "OWN",
    "STORAGE_STATE",
    "Place",
    "collective_of",
    "is_event_loop",
    "is_idle_worker",
    "place_of",
    "place_words",
]

Frame = tuple[str, str, int]

WAITS = (
    ("queue.py", "put", "waits for room in a queue"),
    ("queue.py", "get", "waits for an item of a queue"),
    ("queue.py", "join", "waits until a queue has been worked off"),
    ("multiprocessing/queues.py", "put", "waits for room in a queue"),
    ("multiprocessing/queues.py", "get", "waits for an item of a queue"),
    ("multiprocessing/pool.py", "", "waits for a worker of a pool"),
    ("concurrent/futures/", "", "waits for the result of a pool"),
    ("multiprocessing/popen_", "", "waits for another process to end"),
    ("multiprocessing/connection.py", "", "waits for another process"),
    ("subprocess.py", "", "waits for another program"),
    ("socket.py", "", "waits for an answer from the network"),
    ("ssl.py", "", "waits for an answer from the network"),
    ("threading.py", "join", "waits for another thread to end"),
    ("threading.py", "", "waits for another thread"),
)
"""File of the standard library, function (empty: any), and what a thread does whose innermost frames are there."""

KERNEL_WAITS = (
    ("hrtimer_nanosleep", "sleeps"),
    ("wait_for_partner", "waits for the other end of a FIFO"),
    ("fifo_open", "waits for the other end of a FIFO"),
    ("pipe_write", "waits for room in a pipe"),
    ("anon_pipe_write", "waits for room in a pipe"),
    ("pipe_read", "waits for bytes from a pipe"),
    ("anon_pipe_read", "waits for bytes from a pipe"),
    ("do_wait", "waits for another process to end"),
    ("sk_", "waits for an answer from the network"),
    ("tcp_", "waits for an answer from the network"),
    ("inet_csk_accept", "waits for a connection"),
    ("fcntl_setlk", "waits for the lock of a file"),
    ("locks_lock", "waits for the lock of a file"),
    ("flock", "waits for the lock of a file"),
    ("__flock", "waits for the lock of a file"),
)
"""Begin of the kernel's name of a wait, and what the thread then does."""

OWN = ("/", "…/")
"""Begin of the files of the script: absolute paths, shortened ones in a session for strangers."""

COMPILERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
COMPILES = "torch.compile compiles"

BASES = ("_worker_loop", "_bootstrap", "_bootstrap_inner")
"""Functions in which a worker, a process of multiprocessing or a thread begins its own work."""

STORAGE_STATE = "D"
"""State of a thread that waits for a disk or a file system and cannot be interrupted."""

COLLECTIVES = "distributed_c10d.py"
COLLECTIVE_WORDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "barrier": "a barrier",
    "init_process_group": "init_process_group for the other ranks",
}
BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
DDP = "torch/nn/parallel/distributed.py"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread stands. own: the innermost frame in the script's own code, or the innermost of all. what: what it does.

    lock: the name of the lock that it takes there, if it does.
    """

    innermost: Frame
    own: Frame
    what: str
    lock: str | None = None


def place_of(process: StandingProcess) -> Place | None:
    """Return where the training thread of a process stands; None where its stack is not known."""
    begin = max((number for number, frame in enumerate(process.frames) if frame[0] in BASES), default=-1)
    frames = process.frames[begin + 1 :] or process.frames  # the frames below are those of the process that it was forked from
    if not frames:
        return None
    compiler = next((number for number, frame in enumerate(frames) if frame[1] in COMPILERS), len(frames))
    own = next((frame for frame in reversed(frames[:compiler]) if frame[1].startswith(OWN)), frames[-1])
    lock = process.lock if own == frames[-1] else None
    return Place(frames[-1], own, _what(frames, process, lock), lock)


def place_words(place: Place, cwd: str = "", *, wait_first: bool = False) -> str:
    """Return a place in words: `stands at train.py:12 in __getitem__ (waits for the lock cache_lock)`.

    cwd: files below this folder are named from there. wait_first: `waits for the lock cache_lock at train.py:12 in save`.
    """
    function, file, line = place.own
    shown = str(PurePath(file).relative_to(cwd)) if len(cwd) > 1 and PurePath(file).is_relative_to(cwd) else file
    where = f"at {shown}:{line} in {function}"
    if wait_first and place.what.startswith("waits"):
        return f"{place.what} {where}"
    return f"stands {where} ({place.what})" if place.what else f"stands {where}"


def _what(frames: Sequence[Frame], process: StandingProcess, lock: str | None) -> str:
    """Return what a thread waits for; empty where nothing tells. Of nested waits, the outermost says most."""
    if lock is not None:
        return f"waits for the lock {lock}"
    if any(file in COMPILERS for _, file, _ in frames):
        return COMPILES
    last_own = max((number for number, frame in enumerate(frames) if frame[1].startswith(OWN)), default=-1)
    for function, file, _ in frames[last_own + 1 :]:
        for known, name, words in WAITS:
            if file.startswith(known) and name in ("", function):
                return words
    for begin, words in KERNEL_WAITS:
        if process.waits_in.startswith(begin):
            return words
    return "waits for storage" if process.state == STORAGE_STATE else ""


def is_idle_worker(process: StandingProcess) -> bool:
    """Return whether a worker has no batch to make: it waits for the numbers of the next records."""
    inner = [frame for frame in process.frames if frame[0] == "_worker_loop"]
    if not process.frames:
        return process.phase == "worker idle"
    if not inner:
        return False
    below = process.frames[process.frames.index(inner[-1]) + 1 :]
    return bool(below) and below[0][:2] == ("get", "multiprocessing/queues.py")


def is_event_loop(process: StandingProcess) -> bool:
    """Return whether a thread waits for the next event of asyncio, as a notebook does between its cells."""
    inner = [file for _, file, _ in process.frames[-2:]]
    return len(inner) == 2 and inner[0].startswith("asyncio/") and inner[1] == "selectors.py"


def collective_of(process: StandingProcess) -> str | None:
    """Return the exchange between ranks that a training process waits in ("all-reduce"); None if it is elsewhere."""
    for function, file, _ in reversed(process.frames):
        if file.endswith(COLLECTIVES):
            named = next((words for name, words in COLLECTIVE_WORDS.items() if function.startswith(name)), None)
            if named is not None or not function.startswith("_"):
                return named or function.replace("_", "-")
        if file == DDP:
            return "the exchange of DistributedDataParallel"
    inner = process.frames[-1][:2] if process.frames else ("", "")
    return "all-reduce" if process.world_size > 1 and inner == (BACKWARD[1], BACKWARD[0]) else None
