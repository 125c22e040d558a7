"""The memory of each process of a job: what it held when it was last read, for a job that ends because memory is out.

The resident memory without shared files comes with each sample, at no cost. Pages that a fork shares count in each process
there. The proportional size (PSS), which divides them, takes the kernel 0.1 s for 1.5 GiB: it is read seldom, and when memory
gets short.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.system.hardware.counter_files import read_counters

__all__ = ["ProcessMemories"]

INTERVAL_S = 30.0
COST_SHARE = 0.002
"""Read the proportional sizes at most this often, and at most for this share of one core."""

SHORT_SHARES = (0.25, 0.1, 0.04)
"""Read them once more, whatever it costs, when less than this share of the memory is left."""

MOST_READ_S = 1.0
"""Begin no further reading after this time, largest processes first: no sample is taken meanwhile."""

GROWTH = 1.1
"""Show the resident size again, in place of the PSS, once it has grown by more than this factor since the PSS was read."""

MOST_KEPT = 200
MOST_WRITTEN = 64


@dataclass(slots=True)
class _Held:
    name: str
    seen_s: float
    read_s: float
    memory_bytes: int
    resident_bytes: int
    is_proportional: bool = False


@dataclass(slots=True)
class ProcessMemories:
    """Remembers the processes of a job with their memory. `proc`: the mount point; tests pass a folder."""

    proc: Path
    _held: dict[int, _Held] = field(default_factory=dict)
    _next_s: float | None = None
    _shortages: int = 0

    def note(self, now_s: float, names: Mapping[int, str], memory_bytes: Mapping[int, int], left_share: float | None) -> None:
        """Remember the processes of a sample: name and resident memory by pid. left_share: memory that is left, of all."""
        for pid, name in names.items():
            held, resident = self._held.get(pid), memory_bytes.get(pid, 0)
            if held is not None and not resident:
                continue  # it has ended, and nobody has waited for it yet
            if held is None or not held.is_proportional or resident > GROWTH * held.resident_bytes:
                self._held[pid] = _Held(name, now_s, now_s, resident, resident)
            else:
                held.seen_s = now_s
        if len(self._held) > MOST_KEPT:
            for pid in sorted(self._held, key=lambda pid: self._held[pid].seen_s)[: len(self._held) - MOST_KEPT]:
                del self._held[pid]
        if self._is_due(now_s, left_share):
            self._read(now_s, [pid for pid in names if pid in self._held])

    def _is_due(self, now_s: float, left_share: float | None) -> bool:
        if self._next_s is None:
            self._next_s = now_s + INTERVAL_S
        short = sum(left_share is not None and left_share < share for share in SHORT_SHARES)
        is_shorter = short > self._shortages
        self._shortages = max(short, self._shortages)
        return is_shorter or now_s >= self._next_s

    def _read(self, now_s: float, pids: Sequence[int]) -> None:
        begin_s = time.monotonic()
        for pid in sorted(pids, key=lambda pid: -self._held[pid].resident_bytes):
            if time.monotonic() - begin_s > MOST_READ_S:
                break
            size = _proportional_bytes(f"{self.proc}/{pid}/smaps_rollup")
            if size is not None:
                held = self._held[pid]
                held.memory_bytes, held.read_s, held.is_proportional = size, now_s, True
        self._next_s = now_s + max(INTERVAL_S, (time.monotonic() - begin_s) / COST_SHARE)

    def as_json(self, end_s: float) -> list[dict[str, Any]]:
        """Return the processes that were seen last, as fields of `ProcessMemory`."""
        last = sorted(self._held.items(), key=lambda item: -item[1].seen_s)[:MOST_WRITTEN]
        return [
            {
                "pid": pid,
                "name": held.name,
                "seen_s": round(end_s - held.seen_s, 3),
                "read_s": round(end_s - held.read_s, 3),
                "memory_bytes": held.memory_bytes,
                "is_proportional": held.is_proportional,
            }
            for pid, held in last
        ]


def _proportional_bytes(file: str) -> int | None:
    for line in (read_counters(file) or "").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
