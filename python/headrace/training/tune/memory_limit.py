"""The memory that a search for a batch size on the CPU may use, and what a batch of some size will need."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.system import machine
from headrace.system.cgroup import find_cgroup
from headrace.training.options import Options

if TYPE_CHECKING:
    from headrace.training.tune.compute_rate import ComputeRate

__all__ = ["limit_this_process", "memory_budget_bytes", "memory_limit_bytes", "predicted_bytes"]

RESERVE_SHARE = 0.10  # of all usable memory: left for other programs and for what the prediction misses
LEAST_RESERVE_BYTES = 1 << 30
BATCH_BUFFERS = 2  # of the loader besides `prefetch`: the batch in use, and the one being filled
IMAGE_VALUE_BYTES = 3  # of one pixel in a uint8 batch
DATA_MARGIN = 1.1  # a limit counts memory that is reserved but not touched (stacks of threads): leave a tenth for it


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
    """Return the limit of each process; None without a budget."""
    return None if budget is None else max(1, budget // processes)


def predicted_bytes(trials: Sequence[ComputeRate], size: int, options: Options, processes: int) -> int | None:
    """Predict the memory of all ranks together with batches of `size`; None where nothing was measured yet.

    The steepest growth between two measured sizes (from a process without a batch to the first) is assumed to go on from the
    largest one. The loader's batches of the training come on top.
    """
    points = [(0, trials[0].base_bytes)] if trials and trials[0].base_bytes is not None else []
    points += [(one.batch_size, one.host_bytes) for one in trials if one.host_bytes is not None]
    if len(points) < 2:
        return None
    growth = max((b - a) / (large - small) for (small, a), (large, b) in pairwise(points))
    last_size, last_bytes = points[-1]
    buffers = (options.prefetch + BATCH_BUFFERS) * IMAGE_VALUE_BYTES * options.image_size**2
    return round(last_bytes + max(0.0, growth) * (size - last_size)) + buffers * size * processes


def limit_this_process(limit: int) -> None:
    """Let allocations of this process fail beyond `limit` bytes of private memory, instead of meeting the OOM killer."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = round(DATA_MARGIN * limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
