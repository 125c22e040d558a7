"""What used the machine during a measurement: this program's threads, other programs, storage and network.

The counters are those that a diagnosis uses (`headrace.attach.machine.procfs`): time on a core, time in the run queue, bytes
that came from storage and not from the page cache. None stands for a counter that the kernel does not have.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.attach.machine import procfs

__all__ = ["QUIET_SHARE", "MachineMeter", "MachineUse"]

PROC = Path("/proc")
QUIET_SHARE = 0.05  # do not mention other programs if they use less than this share of the cores


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Mean use of the machine during a measurement, in cores and bytes per second.

    cores: cores that this process may run on.
    own_cores, foreign_cores: cores used by this process and its ended children, and by other programs.
    queue_cores: threads of this process that waited for a core, on average.
    arrived_bytes_s: bytes that came from storage and from the network.
    """

    cores: int
    own_cores: float
    foreign_cores: float | None
    queue_cores: float | None
    arrived_bytes_s: float | None

    def noise(self) -> str:
        """Return text to append to a rate: the cores that other programs used, that this was not measured, or "" if few."""
        if self.foreign_cores is None:
            return " (other programs: not measured)"
        if self.foreign_cores < QUIET_SHARE * self.cores:
            return ""
        return f" (other programs used {self.foreign_cores:.1f} of {self.cores} cores)"


@dataclass(frozen=True, slots=True)
class _Counters:
    time_s: float
    busy_s: float | None
    own_s: float
    queue_s: float | None
    arrived_bytes: int | None


class MachineMeter:
    """Reads the counters when it is made; `use` returns the means since then. `proc` is the mount point."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._began = self._read()

    def use(self) -> MachineUse:
        """Return the mean use of cores, storage and network since the meter was made."""
        now, began = self._read(), self._began
        elapsed_s = max(now.time_s - began.time_s, 1e-9)
        own = (now.own_s - began.own_s) / elapsed_s
        busy = _rate(began.busy_s, now.busy_s, elapsed_s)
        return MachineUse(
            cores=len(os.sched_getaffinity(0)),
            own_cores=own,
            foreign_cores=None if busy is None else max(0.0, busy - own),
            queue_cores=_rate(began.queue_s, now.queue_s, elapsed_s),
            arrived_bytes_s=_rate(began.arrived_bytes, now.arrived_bytes, elapsed_s),
        )

    def _read(self) -> _Counters:
        cores = procfs.core_times(self._proc)
        mine = os.sched_getaffinity(0)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return _Counters(
            time_s=time.perf_counter(),
            busy_s=sum(one.busy_s for index, one in enumerate(cores) if index in mine) if cores else None,
            own_s=time.process_time() + children.ru_utime + children.ru_stime,
            queue_s=procfs.tree_use([os.getpid()], self._proc).queue_s,
            arrived_bytes=self._arrived_bytes(),
        )

    def _arrived_bytes(self) -> int | None:
        """Return the bytes that this process read from storage plus those that the machine received; None if not readable."""
        network = procfs.network_counters(self._proc)
        try:
            lines = (self._proc / "self/io").read_text().splitlines()
        except OSError:
            return None
        read = {name: int(value) for name, value in (line.split(":") for line in lines)}.get("read_bytes")
        return None if read is None else read + (network[0] if network else 0)


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else max(0.0, after - before) / seconds
