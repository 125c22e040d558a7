"""How long a command was silent, apart from the time in which the machine gave it no core."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from subprocess import Popen


def longest_silence_s(process: Popen[str]) -> float:
    """Read the stderr of `process` to its end, and return the longest time between two of its lines, in seconds.

    The time in which threads of the process, or this thread, waited for a core does not count: on a busy machine it is not the
    command that was silent.
    """
    assert process.stderr is not None
    seen = [(time.monotonic(), _queued_s(process.pid)) for _ in process.stderr]
    assert len(seen) >= 2
    return max(after[0] - before[0] - max(0.0, after[1] - before[1]) for before, after in itertools.pairwise(seen))


def _queued_s(pid: int) -> float:
    """Time that the living threads of `pid` and this thread have waited for a core."""
    total_ns = 0
    for file in [*Path(f"/proc/{pid}/task").glob("*/schedstat"), Path("/proc/thread-self/schedstat")]:
        with contextlib.suppress(OSError):
            total_ns += int(file.read_text().split()[1])
    return total_ns / 1e9
