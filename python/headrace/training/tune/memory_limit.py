"""The memory that a search for a batch size on the CPU may use."""

from __future__ import annotations

import resource
from pathlib import Path

from headrace.system.hardware import machine
from headrace.system.hardware.cgroup import find_cgroup

__all__ = ["limit_this_process", "memory_budget_bytes", "memory_limit_bytes"]

RESERVE_SHARE = 0.10  # leave this share of all usable memory to other programs and to what the prediction misses
LEAST_RESERVE_BYTES = 1 << 30
DATA_MARGIN = 1.1  # set the limit this many times as high: it counts memory that is reserved but unused (threads' stacks)


def memory_budget_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that the processes of one measurement may use together: what is free, less a reserve; at least 0.

    Free is the least of MemAvailable and of what each control group above leaves. The reserve is a tenth of all usable memory,
    at least 1 GiB. `root` is the root of the file system; tests pass another.
    """
    memory = machine.memory(root)
    group = find_cgroup(proc=root / "proc", sys=root / "sys")
    left = group.memory_left_bytes() if group is not None else None
    free = memory.available_bytes if left is None else min(memory.available_bytes, left)
    return max(0, free - max(LEAST_RESERVE_BYTES, int(RESERVE_SHARE * memory.usable_bytes)))


def memory_limit_bytes(budget: int | None, processes: int) -> int | None:
    """Return the memory limit of each of `processes` in bytes: an equal part of the budget; None without a budget."""
    return None if budget is None else max(1, budget // processes)


def limit_this_process(limit: int) -> None:
    """Make allocations fail beyond `limit` bytes of private memory, so that the OOM killer does not end this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = round(DATA_MARGIN * limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
