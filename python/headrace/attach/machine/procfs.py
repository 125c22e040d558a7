"""Counters of the machine and of a tree of processes, from `/proc`. None for a counter that the kernel does not have.

No privileges are needed. `proc` is the mount point; tests pass a folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.system.hardware.counter_files import read_counters

__all__ = [
    "CoreTimes",
    "ProcessCpu",
    "TreeUse",
    "ancestors",
    "core_times",
    "cores_and_runnable",
    "descendants",
    "disk_bytes",
    "disk_counters",
    "listed",
    "meminfo",
    "memory_available_bytes",
    "memory_used_bytes",
    "network_bytes",
    "network_counters",
    "oom_kills",
    "pressure_s",
    "process_cpu",
    "remote_mounts",
    "start_ticks",
    "tree_use",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SECTOR_BYTES = 512
"""Size of a sector in `/proc/diskstats`, whatever the device has (kernel: admin-guide/iostats.rst)."""

MAX_THREADS_READ = 400

REMOTE = (
    "nfs", "cifs", "smb", "ceph", "lustre", "gluster", "fuse", "9p", "virtiofs", "beegfs", "gpfs", "afs", "orangefs", "pvfs",
    "weka", "panfs",
)  # fmt: skip
"""Beginnings of the types of file systems behind which a network may be. A program of the user's serves `fuse`."""

NEVER_REMOTE = ("fusectl", "fuseblk", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "nfsd")
"""Of these types, those that hold no data of a network, or a local disk."""


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds of one core since boot: busy, idle (including waits for a disk), and stolen by the host."""

    busy_s: float
    idle_s: float
    stolen_s: float


def core_times(proc: Path) -> list[CoreTimes] | None:
    """Read the times of each online core, in the order of `/proc/stat`."""
    return cores_and_runnable(proc)[0]


def cores_and_runnable(proc: Path) -> tuple[list[CoreTimes] | None, int | None]:
    """Read the times of each online core, and the number of tasks that run or wait for a core now (`procs_running`)."""
    text = read_counters(f"{proc}/stat")
    if text is None:
        return None, None
    cores, running = [], None
    for line in text.splitlines():
        if line.startswith("cpu") and not line.startswith("cpu "):
            # user nice system idle iowait irq softirq steal; user includes guest time
            ticks = [int(word) / TICKS_PER_S for word in line.split()[1:9]]
            user, nice, system, idle, iowait, irq, softirq, steal = ticks + [0.0] * (8 - len(ticks))
            cores.append(CoreTimes(user + nice + system + irq + softirq, idle + iowait, steal))
        elif line.startswith("procs_running "):
            running = int(line.split()[1])
    return cores, running


@dataclass(frozen=True, slots=True)
class TreeUse:
    """The CPU time, memory and page faults of a process and all of its descendants.

    `cpu_s`, `names`, `niceness` and `memory_of` (private memory now, bytes) are by process id. `on_core_s` and `queue_s`:
    seconds of its threads on a core and waiting for one.
    """

    cpu_s: dict[int, float]
    on_core_s: float | None
    queue_s: float | None
    memory_of: dict[int, int]
    major_faults: int
    names: dict[int, str]
    niceness: dict[int, int]

    @property
    def memory_bytes(self) -> int:
        """Private memory of all."""
        return sum(self.memory_of.values())


def descendants(root: int, proc: Path) -> list[int]:
    """List `root` and all processes below it, by the kernel's lists of children or by each process's parent.

    The lists of children (`CONFIG_PROC_CHILDREN`) avoid reading the other processes of a big machine.
    """
    if not os.access(f"{proc}/{root}/task/{root}/children", os.F_OK):
        return _descendants_by_parent(root, proc)
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        tasks = f"{proc}/{pid}/task"
        for thread in listed(tasks):
            text = read_counters(f"{tasks}/{thread}/children")
            if text:
                pending += [int(word) for word in text.split()]
    return found


def _descendants_by_parent(root: int, proc: Path) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 -- names only, twice a second
        if name.isdigit():
            fields = _stat(f"{proc}/{name}/stat")
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += children.get(pid, [])
    return found


def ancestors(pid: int, proc: Path) -> list[int]:
    """List the processes above `pid`: its parent first."""
    found: list[int] = []
    while (fields := _stat(f"{proc}/{pid}/stat")) is not None and (pid := int(fields[1])) > 0 and pid not in found:
        found.append(pid)
    return found


def start_ticks(pid: int, proc: Path) -> int | None:
    """Read when a process was started, in ticks since boot; with the pid it identifies the process. None: it has ended."""
    fields = _stat(f"{proc}/{pid}/stat")
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessCpu:
    """CPU seconds of one process so far, its start time, its name, and the core that it last ran on (None: unknown).

    children_s: CPU seconds of its children that have ended.
    """

    cpu_s: float
    start_ticks: int
    name: str
    core: int | None
    children_s: float = 0.0


def process_cpu(pid: int, proc: Path) -> ProcessCpu | None:
    """Read the CPU time of one process. None: it has ended."""
    found = _stat_with_name(f"{proc}/{pid}/stat")
    if found is None:
        return None
    name, words = found
    core = int(words[36]) if len(words) > 36 else None
    own, children = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    return ProcessCpu(own / TICKS_PER_S, int(words[19]), name, core, children / TICKS_PER_S)


def tree_use(pids: list[int], proc: Path) -> TreeUse:
    """Sum the CPU time, memory and page faults of these processes, as far as they still exist."""
    cpu_s: dict[int, float] = {}
    names: dict[int, str] = {}
    niceness: dict[int, int] = {}
    memory_of: dict[int, int] = {}
    on_core_ns = queue_ns = faults = threads = 0
    has_schedstat = False
    for pid in pids:
        found = _stat_with_name(f"{proc}/{pid}/stat")
        if found is None:
            continue
        names[pid], fields = found
        cpu_s[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        faults += int(fields[9])
        niceness[pid] = int(fields[16])
        memory_of[pid] = _private_bytes(f"{proc}/{pid}/statm", int(fields[21]))
        tasks = f"{proc}/{pid}/task"
        for thread in listed(tasks):
            threads += 1
            words = (read_counters(f"{tasks}/{thread}/schedstat") or "").split() if threads <= MAX_THREADS_READ else []
            if len(words) >= 2:
                has_schedstat = True
                on_core_ns += int(words[0])
                queue_ns += int(words[1])
    known = has_schedstat and on_core_ns > 0
    on_core_s, queue_s = (on_core_ns * 1e-9, queue_ns * 1e-9) if known else (None, None)
    return TreeUse(cpu_s, on_core_s, queue_s, memory_of, faults, names, niceness)


def _private_bytes(statm: str, resident_pages: int) -> int:
    """Return the resident memory that is not shared (`statm`), so that forked workers do not count twice."""
    words = (read_counters(statm) or "").split()
    shared = int(words[2]) if len(words) > 2 else 0
    return max(0, resident_pages - shared) * PAGE_BYTES


def meminfo(proc: Path) -> dict[str, int]:
    """Return `/proc/meminfo` as a dict of bytes by field name; empty if the file is missing."""
    lines = (read_counters(f"{proc}/meminfo") or "").splitlines()
    words = [line.replace(":", "").split() for line in lines]
    return {line[0]: int(line[1]) * (1024 if len(line) == 3 else 1) for line in words if len(line) >= 2}


def oom_kills(proc: Path) -> int | None:
    """Return how many processes of the machine were killed for memory since it started (`/proc/vmstat`). None: unknown."""
    for line in (read_counters(f"{proc}/vmstat") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def memory_used_bytes(proc: Path) -> int | None:
    """Return the memory in use on the machine: total less available."""
    values = meminfo(proc)
    if "MemTotal" not in values or "MemAvailable" not in values:
        return None
    return values["MemTotal"] - values["MemAvailable"]


def memory_available_bytes(proc: Path) -> int | None:
    """Return the memory that new work can take without swapping, as the kernel estimates it (MemAvailable)."""
    return meminfo(proc).get("MemAvailable")


def pressure_s(file: Path) -> float | None:
    """Read the seconds in which at least one task waited for the resource (PSI, "some … total=" in microseconds)."""
    for line in (read_counters(file) or "").splitlines():
        if line.startswith("some "):
            return int(line.rsplit("total=", 1)[1]) * 1e-6
    return None


def network_counters(proc: Path) -> tuple[int, int] | None:
    """Return the bytes received so far from outside, and over the loopback device."""
    devices = _network_devices(proc)
    if not devices:
        return None
    loopback = sum(int(counters[0]) for name, counters in devices if name == "lo")
    return sum(int(counters[0]) for _, counters in devices) - loopback, loopback


def network_bytes(proc: Path) -> int:
    """Return the bytes received and sent so far, without the loopback device; 0 if unknown."""
    return sum(int(counters[0]) + int(counters[8]) for name, counters in _network_devices(proc) if name != "lo")


def remote_mounts(proc: Path) -> int | None:
    """Return the number of mounted file systems behind which a network may be (`/proc/self/mounts`)."""
    content = read_counters(f"{proc}/self/mounts")
    if content is None:
        return None
    types = [words[2] for line in content.splitlines() if len(words := line.split()) > 2]
    return sum(one.startswith(REMOTE) and one not in NEVER_REMOTE for one in types)


def _network_devices(proc: Path) -> list[tuple[str, list[str]]]:
    """List the name and the counters of each network device. Counter 0: bytes received; 8: bytes sent."""
    lines = (line.partition(":") for line in (read_counters(f"{proc}/net/dev") or "").splitlines()[2:])
    return [(name.strip(), counters.split()) for name, _, counters in lines]


def disk_counters(proc: Path) -> tuple[int, float] | None:
    """Return the bytes read so far from all whole disks, and the busy time of the busiest one in seconds."""
    disks = _whole_disks(proc)
    if disks is None:
        return None
    bytes_read = sum(int(words[5]) * SECTOR_BYTES for words in disks)
    return bytes_read, max((int(words[12]) * 1e-3 for words in disks), default=0.0)


def disk_bytes(proc: Path) -> int:
    """Return the bytes read from and written to all whole disks so far; 0 if unknown."""
    return sum(SECTOR_BYTES * (int(words[5]) + int(words[9])) for words in _whole_disks(proc) or ())


def _whole_disks(proc: Path) -> list[list[str]] | None:
    """List the words of /proc/diskstats for each whole disk. Word 5: sectors read; 9: written; 12: busy milliseconds."""
    text = read_counters(f"{proc}/diskstats")
    if text is None:
        return None
    lines = (line.split() for line in text.splitlines())
    return [words for words in lines if len(words) >= 14 and _is_whole_disk(words[2])]


def _is_whole_disk(name: str) -> bool:
    """Return whether it is no partition, loop, RAM or mapped device: the disk below counts their reads too."""
    if name.startswith(("loop", "ram", "zram", "dm-", "md", "sr")):
        return False
    if name.startswith(("nvme", "mmcblk")):
        return "p" not in name.removeprefix("nvme").removeprefix("mmcblk")
    return not name[-1].isdigit()


def _stat(file: str) -> list[str] | None:
    """Read the fields of `/proc/PID/stat` from the state on."""
    found = _stat_with_name(file)
    return None if found is None else found[1]


def _stat_with_name(file: str) -> tuple[str, list[str]] | None:
    """Read the name and the fields from the state on. The name may contain spaces and brackets."""
    text = read_counters(file)
    if not text or ")" not in text:
        return None
    begin, end = text.index("("), text.rindex(")")
    return text[begin + 1 : end], text[end + 2 :].split()


def listed(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder; none where it cannot be listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names only, several times a second
    except OSError:
        return []
