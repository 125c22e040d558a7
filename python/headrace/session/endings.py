"""How a job ended: what its processes recorded of their end, and what the sampler saw of the machine. None: not measured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobEnd", "ProcessEnd", "ProcessMemory", "RaisedError"]


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception: type and message as in the last line of its traceback, and where the script's own code raised it.

    lost_rank, lost_pid, lost_code: the process that a launcher of ranks reports as failed, with its exit code (-9: SIGKILL).
    """

    type: str
    message: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    lost_rank: int | None = None
    lost_pid: int | None = None
    lost_code: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a Python process ended, as it recorded that itself. A process that was killed recorded nothing.

    how: by an "exception", by "exit" (`sys.exit(code)` at file and line), or at the "end" of its script.
    errors: the exception, or the one that was handled at `sys.exit`, then those behind it.
    children: pid and exit code (-9: SIGKILL) of its children that had failed by then.
    """

    pid: int
    time_s: float
    how: str
    code: int | None = None
    errors: tuple[RaisedError, ...] = ()
    file: str | None = None
    line: int | None = None
    function: str | None = None
    children: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process of the job. seen_s, read_s: how long before the end it was last seen, and its memory read.

    is_proportional: pages that processes share are divided among them (PSS); else each process counts all that it has, and
        pages that a fork shares count in each.
    """

    pid: int
    name: str
    seen_s: float
    read_s: float
    memory_bytes: int
    is_proportional: bool = False


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The machine when the job's first process had ended, as the sampler saw it.

    oom_kills: processes of the job's control group that the kernel killed for memory while the job ran; machine_oom_kills: the
        same on the whole machine.
    memory_peak_bytes: greatest use of the control group while the job ran, as far as it is known.
    shared_memory_least_free_bytes: least free space of /dev/shm in a sample.
    processes: those with most memory, and those that ended last.
    """

    time_s: float
    oom_kills: int | None = None
    machine_oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_left_bytes: int | None = None
    shared_memory_bytes: int | None = None
    shared_memory_least_free_bytes: int | None = None
    processes: tuple[ProcessMemory, ...] = ()
