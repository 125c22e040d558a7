"""The cores, memory and shared memory that this process may use. Linux.

A container or a batch system may give a process far fewer cores than `os.cpu_count()` reports. A loader with one worker per
visible core is then slow. So cores are counted in three ways: the cores of the machine, the cores of the affinity mask, and
the CPU time that the quota of the control group allows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from headrace.system.hardware.cgroup import find_cgroup

__all__ = ["Cores", "Memory", "Processor", "SharedMemory", "cores", "job_processes", "memory", "processor", "shared_memory"]

SIMD_FLAGS = ("sse2", "sse4_1", "ssse3", "avx2", "bmi2", "avx512bw", "avx512vbmi", "asimd", "sve")
"""The CPU extensions that image decoding and resampling use (libjpeg-turbo, Pillow-SIMD, headrace's kernels)."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Counts of cores: online (`machine`), in the affinity mask (`affinity`), and the CPU quota in cores or None (`quota`)."""

    machine: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> float:
        """The CPU time that this process can get, in cores."""
        return float(self.affinity) if self.quota is None else min(float(self.affinity), self.quota)

    @property
    def parallel(self) -> int:
        """How many threads can compute at the same time: `usable`, rounded up."""
        return max(1, math.ceil(self.usable))


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM in bytes. `limit_bytes` is the limit of the control group, or None."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """The largest amount of memory that this process may hold."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)

    @property
    def free_bytes(self) -> int:
        """The most memory that this process may take now."""
        return min(self.available_bytes, self.usable_bytes)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The size of /dev/shm, through which the workers of a DataLoader pass batches."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU's model name, the names in `SIMD_FLAGS` that it has, and on x86 its family and model number."""

    model: str
    flags: tuple[str, ...]
    family: int | None = None
    model_number: int | None = None


def cores(root: Path = Path("/"), *, affinity: Collection[int] | None = None, machine: int | None = None) -> Cores:
    """Return how many cores the machine has, the affinity mask allows, and the cgroup's CPU quota is worth."""
    mask = os.sched_getaffinity(0) if affinity is None else affinity
    group = find_cgroup(proc=root / "proc", sys=root / "sys")
    return Cores(
        machine=machine if machine is not None else os.cpu_count() or len(mask),
        affinity=len(mask),
        quota=group.quota_cores() if group is not None else None,
    )


def job_processes() -> int:
    """Return the number of the job's processes on this host: torchrun's LOCAL_WORLD_SIZE, 1 without it."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(local)) if local.isdigit() else 1


def memory(root: Path = Path("/")) -> Memory:
    """Read the size of RAM, its free part, and the limit of the control group."""
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    group = find_cgroup(proc=root / "proc", sys=root / "sys")
    return Memory(
        total_bytes=fields["MemTotal"],
        available_bytes=fields.get("MemAvailable", fields.get("MemFree", 0)),
        limit_bytes=group.memory_limit_bytes() if group is not None else None,
    )


def shared_memory(path: Path = Path("/dev/shm")) -> SharedMemory | None:
    """Read the size and the free space of /dev/shm. None: this machine has no such folder."""
    try:
        facts = os.statvfs(path)
    except FileNotFoundError:
        return None
    return SharedMemory(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)


def processor(root: Path = Path("/")) -> Processor:
    """Read the CPU model and its extensions from /proc/cpuinfo (x86: `flags`, Arm: `Features`)."""
    fields: dict[str, str] = {}
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    present = set((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or fields.get("CPU part") or "unknown"
    numbers = [int(value) if (value := fields.get(name, "")).isdecimal() else None for name in ("cpu family", "model")]
    return Processor(model, tuple(flag for flag in SIMD_FLAGS if flag in present), *numbers)
