"""The programs outside the job that use most CPU, by pid and name.

Reading every process costs time on a big machine, so the list is only read while other programs use the CPU, and never for more
than a small share of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.attach.machine import procfs

__all__ = ["LEAST_FOREIGN_CORES", "ForeignPrograms"]

LEAST_FOREIGN_CORES = 0.2
"""List other programs only while they use at least this many cores together."""

MOST_RECORDED = 32
"""Record at most this many programs per sample. The report ranks means: the fourth of one sample may be first in the next.
"""

LEAST_CORES = 0.05
"""Leave out programs that use fewer cores than this."""

MOST_COST = 0.002
"""Reading these programs from `/proc` may take at most this share of the job's cores; otherwise they are read less often."""


@dataclass(slots=True)
class ForeignPrograms:
    """Finds the programs outside the job with most CPU time, from two readings of `/proc`. `proc`: mount point, for tests."""

    proc: Path = Path("/proc")
    _cpu_s: dict[int, tuple[float, int]] = field(default_factory=dict)
    _read_s: float | None = None
    _next_s: float = 0.0

    def largest(self, now_s: float, own: Collection[int], cores: Collection[int]) -> list[dict[str, Any]] | None:
        """Return pid, name and cores used of the programs outside the job since the last call, the largest first.

        own: processes to leave out. cores: numbers of the cores that count; a process that last ran on another one is left
        out. Empty: all cores. None: this is the first reading, or the last one was too short ago for its cost.
        """
        if now_s < self._next_s:
            return None
        began_s = time.thread_time()
        found, names = self._read(own, cores)
        before, passed_s = self._cpu_s, now_s - self._read_s if self._read_s is not None else None
        self._cpu_s, self._read_s = found, now_s
        self._next_s = now_s + (time.thread_time() - began_s) / (MOST_COST * max(1, len(cores)))
        if not passed_s:
            return None
        used = {
            pid: (cpu_s - before[pid][0]) / passed_s
            for pid, (cpu_s, start) in found.items()
            if pid in before and before[pid][1] == start
        }
        order = sorted((pid for pid in used if used[pid] >= LEAST_CORES), key=lambda pid: -used[pid])
        return [{"pid": pid, "name": names[pid], "cores": round(used[pid], 2)} for pid in order[:MOST_RECORDED]]

    def forget(self) -> None:
        """Drop the last reading after a gap: programs that were idle meanwhile would look smaller than they are."""
        self._read_s = None

    def _read(self, own: Collection[int], cores: Collection[int]) -> tuple[dict[int, tuple[float, int]], dict[int, str]]:
        """Return CPU seconds and start time, and the name, of each process outside the job, by pid."""
        found: dict[int, tuple[float, int]] = {}
        names: dict[int, str] = {}
        for entry in os.listdir(self.proc):  # noqa: PTH208 -- names only
            if not entry.isdigit() or int(entry) in own:
                continue
            use = procfs.process_cpu(int(entry), self.proc)
            if use is not None and (not cores or use.core is None or use.core in cores):
                found[int(entry)] = use.cpu_s, use.start_ticks
                names[int(entry)] = use.name
        return found, names
