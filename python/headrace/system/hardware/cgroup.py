"""The control group (cgroup) of a process: its CPU and memory limits, its memory use, and how often its limits stopped it.

Versions 1 and 2 are read. The standard library suffices, because the sampler of a watched job uses this module. `proc` and
`sys` are the mount points `/proc` and `/sys`; tests pass folders. Sources: the kernel's
`Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.system.hardware.counter_files import read_counters

__all__ = ["Cgroup", "find_cgroup"]

UNLIMITED_BYTES = 1 << 60
"""A memory limit of at least this means none: cgroup version 1 writes "no limit" as a huge number."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One control group. `cpu` and `memory` are its folders, or None where the controller is not mounted or not visible."""

    version: int
    cpu: Path | None
    memory: Path | None

    def quota_cores(self) -> float | None:
        """Return the CPU limit in cores: the least of the group and the groups above it. None: no limit, or unknown."""
        if self.cpu is None:
            return None
        return min(filter(None, (self._quota_at(folder) for folder in _upwards(self.cpu))), default=None)

    def _quota_at(self, folder: Path) -> float | None:
        if self.version == 2:
            words = (_read(folder / "cpu.max") or "").split()
        else:
            words = [_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
            return None  # "max", -1 or missing
        return int(words[0]) / int(words[1])

    def throttled_s(self) -> float | None:
        """Return the seconds for which CPU limits have stopped the group so far, summed over cores. None: unknown.

        The limit of a group above stops this group too, but only the group above counts it. The result is therefore the
        largest count on the path.
        """
        if self.cpu is None:
            return None
        return max((stopped for folder in _upwards(self.cpu) if (stopped := _throttled_at(folder)) is not None), default=None)

    def memory_limit_bytes(self) -> int | None:
        """Return the memory limit: the least of the group and the groups above it. None: no limit, or unknown."""
        if self.memory is None:
            return None
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limits = [_read(folder / name) or "" for folder in _upwards(self.memory)]
        return min((int(limit) for limit in limits if limit.isdigit() and int(limit) < UNLIMITED_BYTES), default=None)

    def memory_used_bytes(self) -> int | None:
        """Return the memory in use without the page cache that the kernel can drop (`inactive_file`). None: unknown."""
        return None if self.memory is None else self._memory_used_at(self.memory)

    def _memory_used_at(self, folder: Path) -> int | None:
        used = _read(folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))
        if used is None or not used.isdigit():
            return None
        counters = _pairs(folder / "memory.stat")
        droppable = counters.get("total_inactive_file", counters.get("inactive_file", 0))
        return max(0, int(used) - droppable)

    def memory_left_bytes(self) -> int | None:
        """Return the memory that the group may still take: the least of what it and each group above it have left.

        None: no limit, or unknown.
        """
        if self.memory is None:
            return None
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        left = []
        for folder in _upwards(self.memory):
            limit, used = _read(folder / name) or "", self._memory_used_at(folder)
            if limit.isdigit() and int(limit) < UNLIMITED_BYTES and used is not None:
                left.append(max(0, int(limit) - used))
        return min(left, default=None)

    def memory_peak_bytes(self) -> int | None:
        """Return the greatest memory use of the group since it was made. None: unknown."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        peak = (_read(self.memory / name) or "") if self.memory is not None else ""
        return int(peak) if peak.isdigit() else None

    def oom_kills(self) -> int | None:
        """Return how many processes of the group, and of groups below it, were killed for memory so far. None: unknown."""
        if self.memory is None:
            return None
        return _pairs(self.memory / ("memory.events" if self.version == 2 else "memory.oom_control")).get("oom_kill")

    def pressure_file(self, resource: str) -> Path | None:
        """Return the group's PSI file for "cpu", "io" or "memory". None: cgroup version 1, or no such file."""
        folder = self.cpu if self.version == 2 else None
        file = folder / f"{resource}.pressure" if folder is not None else None
        return file if file is not None and file.exists() else None


def find_cgroup(pid: int | str = "self", *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Cgroup | None:
    """Return the control group of `pid`, or None if no group is visible."""
    lines = (_read(proc / str(pid) / "cgroup") or "").splitlines()
    paths: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    root = sys / "fs/cgroup"
    for controllers in ("cpu", "cpuacct"):
        if controllers in paths and "memory" in paths:
            cpu = _folder(root, (controllers, "cpu,cpuacct"), paths[controllers])
            memory = _folder(root, ("memory",), paths["memory"])
            if cpu is not None or memory is not None:
                return Cgroup(1, cpu, memory)
    unified = next((base for base in (root, root / "unified") if (base / "cgroup.controllers").exists()), None)
    if "" not in paths or unified is None:
        return None
    folder = _inside(unified, paths[""])
    return Cgroup(2, folder, folder)


def _folder(root: Path, names: tuple[str, ...], path: str) -> Path | None:
    base = next((root / name for name in names if (root / name).is_dir()), None)
    return _inside(base, path) if base is not None else None


def _inside(base: Path, path: str) -> Path:
    """Return the group's folder. In a container the path may be the host's; then only the root of the mount is visible."""
    folder = base / path.lstrip("/")
    return folder if folder.is_dir() else base


def _upwards(folder: Path) -> list[Path]:
    """Return the folder and the folders above it up to the mount point. The mount point may be a container's own group."""
    folders = [folder, *folder.parents]
    names = [item.name for item in folders]
    return folders[: names.index("cgroup") + 1] if "cgroup" in names else folders[:1]


def _throttled_at(folder: Path) -> float | None:
    counters = _pairs(folder / "cpu.stat")
    if "throttled_usec" in counters:
        return counters["throttled_usec"] * 1e-6
    return counters["throttled_time"] * 1e-9 if "throttled_time" in counters else None


def _pairs(file: Path) -> dict[str, int]:
    words = [line.split() for line in (_read(file) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _read(file: Path) -> str | None:
    text = read_counters(file)
    return None if text is None else text.strip()
