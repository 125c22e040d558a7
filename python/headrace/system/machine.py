"""What this machine lets a process use: cores, memory, shared memory. Linux; standard library only.

A container or a batch system may give a process far less than `os.cpu_count()` says, and a loader that starts
one worker per visible core then fights itself. Cores are therefore counted three ways: those of the machine,
those of the affinity mask, and the CPU time that the control group's quota allows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cores", "Memory", "Processor", "SharedMemory", "cores", "memory", "processor", "shared_memory"]

# The extensions that image decoding and resampling use (libjpeg-turbo, Pillow-SIMD, our kernels).
SIMD_FLAGS = ("sse2", "sse4_1", "ssse3", "avx2", "bmi2", "avx512bw", "avx512vbmi", "asimd", "sve")
# Control groups of version 1 write "no limit" as the largest page-aligned number; anything this big is none.
NO_MEMORY_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Cores:
    """`machine`: online cores; `affinity`: those this process may run on; `quota`: cores' worth of CPU time or None."""

    machine: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> float:
        """Cores' worth of CPU time that this process can get."""
        return float(self.affinity) if self.quota is None else min(float(self.affinity), self.quota)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of RAM; `limit_bytes` is the control group's limit, or None."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """The most that this process may hold."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """/dev/shm, through which DataLoader's worker processes hand over their batches."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU's name and which of `SIMD_FLAGS` it has."""

    model: str
    flags: tuple[str, ...]


def cores(root: Path = Path("/"), *, affinity: Collection[int] | None = None, machine: int | None = None) -> Cores:
    """Cores by machine, affinity and control-group quota; `root` is another file-system root in tests."""
    mask = os.sched_getaffinity(0) if affinity is None else affinity
    quotas = [quota for folder in _cpu_groups(root) if (quota := _cpu_quota(folder)) is not None]
    return Cores(
        machine=machine if machine is not None else os.cpu_count() or len(mask),
        affinity=len(mask),
        quota=min(quotas, default=None),
    )


def memory(root: Path = Path("/")) -> Memory:
    """RAM and the control group's limit (the smallest one on the way up counts)."""
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    limits = [limit for folder in _memory_groups(root) if (limit := _memory_limit(folder)) is not None]
    return Memory(
        total_bytes=fields["MemTotal"],
        available_bytes=fields.get("MemAvailable", fields.get("MemFree", 0)),
        limit_bytes=min(limits, default=None),
    )


def shared_memory(path: Path = Path("/dev/shm")) -> SharedMemory | None:
    """Size and free space of /dev/shm, or None where there is none."""
    try:
        facts = os.statvfs(path)
    except FileNotFoundError:
        return None
    return SharedMemory(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)


def processor(root: Path = Path("/")) -> Processor:
    """CPU model and SIMD extensions from /proc/cpuinfo (x86: `flags`, Arm: `Features`)."""
    fields: dict[str, str] = {}
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    present = set((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or fields.get("CPU part") or "unknown"
    return Processor(model=model, flags=tuple(flag for flag in SIMD_FLAGS if flag in present))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups that may limit `controller`, own group first, then its ancestors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2, alone or beside version 1
            mount = base if (base / "cgroup.controllers").exists() else base / "unified"
        elif controller in controllers.split(","):
            mount = base / controllers if (base / controllers).exists() else base / controller
        else:
            continue
        # In a container the path may name the host's tree, of which only the mount's root is visible here.
        inner = mount / path.lstrip("/")
        while inner != mount and mount in inner.parents:
            yield inner
            inner = inner.parent
        yield mount


def _cpu_groups(root: Path) -> Iterator[Path]:
    return _groups(root, "cpu")


def _memory_groups(root: Path) -> Iterator[Path]:
    return _groups(root, "memory")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # absent at the root group, or hidden from this user: no limit that we can know of
        return None


def _cpu_quota(folder: Path) -> float | None:
    """Cores' worth of CPU time a control group allows: version 2 `cpu.max`, version 1 `cpu.cfs_*_us`."""
    if (text := _read(folder / "cpu.max")) is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    text, period_text = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if text is None or period_text is None or int(text) <= 0:
        return None
    return int(text) / int(period_text)


def _memory_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(folder / name)
        if text is not None and text != "max" and int(text) < NO_MEMORY_LIMIT:
            return int(text)
    return None
