"""The sampler: a niced process that samples the machine twice a second, and writes the samples to the session.

    python -m headrace.attach.sampler FOLDER PID LAUNCHER

The sampler follows process PID and all its descendants until PID ends, and leaves out process LAUNCHER (0: none is left out).
Other processes that record into FOLDER, and their descendants, belong to the job too: the other ranks of a watched training are
no descendants of the first. A thread in the user's process would take the interpreter lock from the training loop; a process of
its own does not.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.attach.machine import gpu_counters, procfs
from headrace.attach.machine.foreign_programs import LEAST_FOREIGN_CORES, ForeignPrograms
from headrace.attach.machine.process_memory import ProcessMemories
from headrace.attach.record.recorder import THINNED_TO
from headrace.attach.standstill import Standstills
from headrace.system.files.private_files import private_opener
from headrace.system.hardware.cgroup import Cgroup, find_cgroup
from headrace.system.hardware.nvml import NvmlError
from headrace.system.processes.own_python import own_module

__all__ = ["Sampler", "main", "start"]

INTERVAL_S = 0.5
MOST_SAMPLES = 50_000
"""After this many samples (seven hours), take one in sixteen: the session of a run of days must fit in memory."""

NICENESS = 10
WORKER_NAMES = ("pt_data_worker",)
LONGEST_LINE = 4096
"""Characters to read of the first line of a recording, which names the process that writes it."""
SHARED_MEMORY = Path("/dev/shm")


def start(session_dir: Path, pid: int) -> subprocess.Popen[bytes]:
    """Start the sampler process for `pid` and its descendants. The calling process is left out, unless it is `pid`.

    The sampler ends when `pid` ends, or by `terminate()`.
    """
    launcher = os.getpid() if pid != os.getpid() else 0
    package = str(Path(__file__).parents[2])  # sys.path may have been changed since this process started
    return subprocess.Popen(
        own_module("headrace.attach.sampler", str(session_dir), str(pid), str(launcher)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C for the command must not cut the record short
    )


@dataclass(slots=True)
class _Counters:
    """The values of all counters at one time."""

    time_s: float
    cores: list[procfs.CoreTimes] | None
    runnable: int | None
    use: procfs.TreeUse
    own_cpu_s: float
    pressure: dict[str, float | None]
    throttled_s: float | None
    disk: tuple[int, float] | None
    network: tuple[int, int] | None
    memory: _Memory
    affinity: frozenset[int]
    quota_cores: float | None


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory in use, the limit of the control group, what is left, and what is free in /dev/shm, in bytes. None: unknown."""

    used: int | None
    limit: int | None
    left: int | None
    shared_free: int | None


@dataclass(slots=True)
class Sampler:
    """Reads the counters of a job's processes and of the machine. proc, sys: the mount points; tests pass folders.

    `folder`: the session, whose files name the processes that record; None: the job is `pid` and the processes below it.
    """

    pid: int
    folder: Path | None = None
    ignored_pids: frozenset[int] = frozenset()
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    gpu: gpu_counters.GpuCounters | None = None
    cgroup: Cgroup | None = None
    not_measured: dict[str, str] = field(default_factory=dict)
    affinity: frozenset[int] = frozenset()
    programs: ForeignPrograms = field(init=False)
    memories: ProcessMemories = field(init=False)
    standstills: Standstills | None = None
    _last: _Counters | None = None
    _joined: set[tuple[int, int]] = field(default_factory=set)  # pid and start time of each rank that is no descendant of `pid`
    # Recording in the session folder → pid and start time of its process; None: a process on another machine.
    _writers: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    _cpu_s: dict[int, float] = field(default_factory=dict)
    _ended_cpu_s: float = 0.0
    _recorded: tuple[int, ...] = ()  # training processes and workers that live
    _first_affinity: frozenset[int] = frozenset()
    _first_quota_cores: float | None = None
    _began: dict[str, int | None] = field(default_factory=dict)  # counters of memory when the sampling began
    _most_used_bytes: int | None = None
    _least_shared_free_bytes: int | None = None

    def __post_init__(self) -> None:
        self.programs = ForeignPrograms(self.proc)
        self.memories = ProcessMemories(self.proc)

    def prepare(self) -> None:
        """Find out what can be measured on this machine; `not_measured` then holds what cannot, with the reason."""
        self.cgroup = find_cgroup(self.pid, proc=self.proc, sys=self.sys)
        self._began = self._memory_counters()
        with suppress(OSError):
            self.affinity = frozenset(os.sched_getaffinity(self.pid)) if self.proc == Path("/proc") else frozenset()
        self._first_affinity = self.affinity
        self._first_quota_cores = self.cgroup.quota_cores() if self.cgroup else None
        if self.cgroup is None:
            self.not_measured["cgroup limits"] = "no control group is visible"
        elif self.cgroup.throttled_s() is None:
            self.not_measured["CPU throttling"] = f"the cgroup (version {self.cgroup.version}) has no cpu.stat"
        if self._pressure("cpu") is None:
            self.not_measured["pressure (PSI)"] = "the kernel has none (/proc/pressure)"
        if procfs.tree_use([self.pid, os.getpid()], self.proc).queue_s is None:  # the job may have ended already
            self.not_measured["run-queue delay"] = "the kernel keeps no scheduler statistics (schedstat)"
        if procfs.disk_counters(self.proc) is None:
            self.not_measured["disks"] = "no /proc/diskstats"
        if self.gpu is None:
            try:
                self.gpu = gpu_counters.open_counters()
            except NvmlError as error:
                self.not_measured["GPU counters"] = str(error)

    def host(self) -> dict[str, Any]:
        """Return the constant facts of the machine (cores, memory, GPUs, …), as fields of `Host`."""
        values = procfs.meminfo(self.proc)
        cores = procfs.core_times(self.proc)
        return {
            "hostname": platform.node(),
            "cores_online": len(cores) if cores else os.cpu_count(),
            "cores_affinity": len(self.affinity) or None,
            "affinity": sorted(self.affinity),
            "quota_cores": self._first_quota_cores,
            "memory_bytes": values.get("MemTotal"),
            "memory_limit_bytes": self.cgroup.memory_limit_bytes() if self.cgroup else None,
            "cgroup": f"version {self.cgroup.version}" if self.cgroup else None,
            "kernel": platform.release(),
            "cpu_model": self._cpu_model(),
            "gpus": [gpu_counters.as_json(gpu) for gpu in self.gpu.gpus()] if self.gpu else [],
            "remote_mounts": procfs.remote_mounts(self.proc),
        }

    def sample(self, now_s: float) -> dict[str, Any] | None:
        """Return the counters' changes since the last call, as fields of `Sample`; None at first and when a rank joined."""
        ranks = len(self._joined)
        last, self._last = self._last, self._read(now_s)
        found = None if last is None or len(self._joined) > ranks else self._compare(last, self._last)
        if self.standstills is not None:
            busy = [gpu["busy"] for gpu in (found or {}).get("gpus", ()) if gpu.get("busy") is not None]
            self._look(self.standstills, now_s, max(busy, default=None))
        return found

    def _look(self, standstills: Standstills, now_s: float, gpu_busy: float | None) -> None:
        """Look for a standstill. What goes wrong there ends the looking, and not the sampling."""
        try:
            standstills.look(now_s, self._recording(), list(self._last.use.cpu_s) if self._last else [], gpu_busy)
        except OSError:
            raise
        except Exception as error:
            self.standstills = None
            with suppress(OSError):
                print(f"headrace: standstills are no longer noticed: {error!r}", file=sys.stderr, flush=True)

    def job_end(self, now_s: float) -> dict[str, Any]:
        """Return what is left to know of memory when the job has ended, as fields of `JobEnd`."""
        now, began = self._memory_counters(), self._began
        peak = now["peak"] if now["peak"] != began.get("peak") else None  # else it is older than the job
        values = {
            "time_s": now_s,
            "oom_kills": _count_since(began.get("own"), now["own"]),
            "machine_oom_kills": _count_since(began.get("machine"), now["machine"]),
            "memory_limit_bytes": self.cgroup.memory_limit_bytes() if self.cgroup else None,
            "memory_peak_bytes": max((each for each in (peak, self._most_used_bytes) if each is not None), default=None),
            "shared_memory_bytes": _shared_memory(0),
            "shared_memory_least_free_bytes": self._least_shared_free_bytes,
            "processes": self.memories.as_json(now_s),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _memory_counters(self) -> dict[str, int | None]:
        return {
            "own": self.cgroup.oom_kills() if self.cgroup else None,
            "machine": procfs.oom_kills(self.proc),
            "peak": self.cgroup.memory_peak_bytes() if self.cgroup else None,
        }

    def _job(self) -> list[int]:
        """List the processes of the job: `pid`, others that record into the session, and all below them."""
        pids = procfs.descendants(self.pid, self.proc)
        known = set(pids)
        ended: set[tuple[int, int]] = set()
        recording = self._recording()
        for pid, start in recording:
            if pid in known:
                continue
            if procfs.start_ticks(pid, self.proc) != start:  # ended; another process may have its number
                ended.add((pid, start))
                continue
            self._joined.add((pid, start))
            below = [each for each in procfs.descendants(pid, self.proc) if each not in known]
            pids += below
            known.update(below)
        if ended:  # each worker has a file: those of all epochs would be looked at twice a second
            self._writers = {name: None if writer in ended else writer for name, writer in self._writers.items()}
        self._recorded = tuple(pid for pid, _ in recording if pid in known)
        return pids

    def _recording(self) -> list[tuple[int, int]]:
        """List pid and start of the processes of this machine that have written to the session: see `Recorder`.

        Ranks on other machines may write to the same folder; their pids mean nothing here.
        """
        names = procfs.listed(self.folder) if self.folder is not None else []
        for name in names:
            if name.startswith("process-") and name not in self._writers:
                line = _first_line(Path(self.folder or ".") / name)
                if line is not None:
                    self._writers[name] = _writer(line)
        return sorted({writer for writer in self._writers.values() if writer is not None})

    def _read(self, now_s: float) -> _Counters:
        pids = [pid for pid in self._job() if pid not in self.ignored_pids]
        use = procfs.tree_use(pids, self.proc)
        # The last known CPU time of an ended process stays in the sum, so that the sum never falls.
        self._ended_cpu_s += sum(cpu_s for pid, cpu_s in self._cpu_s.items() if pid not in use.cpu_s)
        self._cpu_s = use.cpu_s
        memory = self._read_memory()
        self._note_memory(now_s, use, memory)
        cores, runnable = procfs.cores_and_runnable(self.proc)
        self.affinity = self._job_affinity()
        return _Counters(
            time_s=now_s,
            cores=cores,
            runnable=runnable,
            use=use,
            own_cpu_s=sum(use.cpu_s.values()) + self._ended_cpu_s,
            pressure={name: self._pressure(name) for name in ("cpu", "io", "memory")},
            throttled_s=self.cgroup.throttled_s() if self.cgroup else None,
            disk=procfs.disk_counters(self.proc),
            network=procfs.network_counters(self.proc),
            memory=memory,
            affinity=self.affinity,
            quota_cores=self.cgroup.quota_cores() if self.cgroup else None,
        )

    def _job_affinity(self) -> frozenset[int]:
        """Return the cores that training processes and workers may run on now: a script may change that while it runs."""
        found: set[int] = set()
        for pid in self._recorded if self.proc == Path("/proc") else ():
            with suppress(OSError):
                found |= os.sched_getaffinity(pid)
        return frozenset(found) or self.affinity

    def _read_memory(self) -> _Memory:
        limit = self.cgroup.memory_limit_bytes() if self.cgroup else None
        return _Memory(self._memory_used_bytes(), limit, self._memory_left_bytes(), _shared_memory(2))

    def _note_memory(self, now_s: float, use: procfs.TreeUse, memory: _Memory) -> None:
        """Remember each process's memory, the most that was in use, and the least that was free in /dev/shm."""
        left, limit = memory.left, memory.limit or procfs.meminfo(self.proc).get("MemTotal")
        self.memories.note(now_s, use.names, use.memory_of, left / limit if left is not None and limit else None)
        self._most_used_bytes = max((each for each in (memory.used, self._most_used_bytes) if each is not None), default=None)
        known = (each for each in (memory.shared_free, self._least_shared_free_bytes) if each is not None)
        self._least_shared_free_bytes = min(known, default=None)

    def _compare(self, old: _Counters, new: _Counters) -> dict[str, Any]:
        passed_s = max(1e-6, new.time_s - old.time_s)
        busy = _core_busy(old.cores, new.cores)
        own = max(0.0, new.own_cpu_s - old.own_cpu_s) / passed_s
        on_core, queued = _change(old.use.on_core_s, new.use.on_core_s), _change(old.use.queue_s, new.use.queue_s)
        pressures = {name: _rate(old.pressure[name], new.pressure[name], passed_s) for name in new.pressure}
        disk = _rates(old.disk, new.disk, passed_s)
        network = _rates(old.network, new.network, passed_s)
        foreign = round(max(0.0, self._busy_cores(old.cores, new.cores, passed_s) - own), 3) if busy else None
        workers = [pid for pid, name in new.use.names.items() if name in WORKER_NAMES]
        values = {
            "time_s": new.time_s,
            "interval_s": round(passed_s, 4),
            "core_busy": busy,
            "own_cores": round(own, 3),
            "foreign_cores": foreign,
            "foreign_programs": self._foreign_programs(foreign, new),
            "queue_share": round(queued / (on_core + queued), 4) if on_core and queued is not None and on_core > 0 else None,
            "runnable": new.runnable,
            "pressure_cpu": pressures["cpu"],
            "pressure_io": pressures["io"],
            "pressure_memory": pressures["memory"],
            "throttled_share": _rate(old.throttled_s, new.throttled_s, passed_s),
            "memory_used_bytes": new.memory.used,
            "memory_limit_bytes": new.memory.limit,
            "memory_left_bytes": new.memory.left,
            "own_memory_bytes": new.use.memory_bytes,
            "workers_memory_bytes": sum(new.use.memory_of[pid] for pid in workers),
            "disk_read_bytes_s": disk[0],
            "disk_busy": disk[1],
            "network_receive_bytes_s": network[0],
            "loopback_receive_bytes_s": network[1],
            "shared_memory_free_bytes": new.memory.shared_free,
            "major_faults_s": max(0.0, (new.use.major_faults - old.use.major_faults) / passed_s),
            "processes": len(new.use.cpu_s),
            "workers": len(workers),
            "affinity": None if new.affinity == self._first_affinity else sorted(new.affinity),
            "quota_cores": None if new.quota_cores == self._first_quota_cores else new.quota_cores,
            "niceness": max((new.use.niceness.get(pid, 0) for pid in self._recorded), default=0) or None,
            "gpus": [gpu_counters.as_json(sample) for sample in self.gpu.sample()] if self.gpu else [],
        }
        return {name: value for name, value in values.items() if value is not None}

    def _foreign_programs(self, foreign_cores: float | None, new: _Counters) -> list[dict[str, Any]] | None:
        """Return the largest programs outside the job, or None while other programs use little CPU or were not compared."""
        if foreign_cores is None or foreign_cores < LEAST_FOREIGN_CORES:
            self.programs.forget()
            return None
        return self.programs.largest(new.time_s, {*new.use.cpu_s, *self.ignored_pids}, self.affinity)

    def _busy_cores(self, old: list[procfs.CoreTimes] | None, new: list[procfs.CoreTimes] | None, passed_s: float) -> float:
        """Return the CPU time in use on the job's cores, in cores. Time stolen by the host counts as used by others."""
        pairs = list(zip(old or (), new or (), strict=False))
        mine = [pair for number, pair in enumerate(pairs) if number in self.affinity] or pairs
        used_s = sum(now.busy_s + now.stolen_s - before.busy_s - before.stolen_s for before, now in mine)
        return used_s / passed_s

    def _pressure(self, resource: str) -> float | None:
        own = self.cgroup.pressure_file(resource) if self.cgroup else None
        return procfs.pressure_s(own if own is not None else self.proc / "pressure" / resource)

    def _memory_used_bytes(self) -> int | None:
        own = self.cgroup.memory_used_bytes() if self.cgroup else None
        return own if own is not None else procfs.memory_used_bytes(self.proc)

    def _memory_left_bytes(self) -> int | None:
        own = self.cgroup.memory_left_bytes() if self.cgroup else None
        return min((left for left in (own, procfs.memory_available_bytes(self.proc)) if left is not None), default=None)

    def _cpu_model(self) -> str | None:
        with suppress(OSError):
            for line in (self.proc / "cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
        return None


def _core_busy(old: list[procfs.CoreTimes] | None, new: list[procfs.CoreTimes] | None) -> list[float]:
    """Return the share of time in which each core was busy. Empty if unknown, or if the number of cores has changed."""
    if not old or not new or len(old) != len(new):
        return []
    shares = []
    for before, after in zip(old, new, strict=True):
        busy_s = after.busy_s - before.busy_s + after.stolen_s - before.stolen_s
        total_s = busy_s + after.idle_s - before.idle_s
        shares.append(round(min(1.0, max(0.0, busy_s / total_s)), 3) if total_s > 0 else 0.0)
    return shares


def _change(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else max(0.0, new - old)


def _rate(old: float | None, new: float | None, passed_s: float) -> float | None:
    change = _change(old, new)
    return None if change is None else round(change / passed_s, 4)


def _rates(
    old: tuple[float, float] | None, new: tuple[float, float] | None, passed_s: float
) -> tuple[float | None, float | None]:
    if old is None or new is None:
        return None, None
    return _rate(old[0], new[0], passed_s), _rate(old[1], new[1], passed_s)


def _shared_memory(part: int) -> int | None:
    """Return size (part 0) or free space (part 2) of /dev/shm."""
    try:
        return shutil.disk_usage(SHARED_MEMORY)[part]
    except OSError:
        return None


def _count_since(began: int | None, now: int | None) -> int | None:
    return None if began is None or now is None else max(0, now - began)


def _first_line(file: Path) -> str | None:
    """Read the first line of a file. None: the file is being written, or cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            line = opened.readline(LONGEST_LINE)
    except OSError:
        return None
    return line if line.endswith("\n") or len(line) == LONGEST_LINE else None


def _writer(line: str) -> tuple[int, int] | None:
    """Return pid and start of the process whose file begins with this line. None: another machine's, or an unknown one."""
    try:
        values = json.loads(line)
        pid, start = values["pid"], values["start_ticks"]
        known = values["kind"] == "recording" and values["hostname"] == platform.node()
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # written by an older headrace, which named no machine
    return (pid, start) if known and isinstance(pid, int) and isinstance(start, int) else None


def main(arguments: list[str]) -> int:
    """Append a line per sample to the session until the followed process ends. arguments: folder, pid, launcher's pid."""
    folder, pid, launcher = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    with suppress(OSError):
        os.nice(NICENESS)
    sampler = Sampler(pid, folder, ignored_pids=frozenset({os.getpid(), launcher}), standstills=Standstills(folder))
    sampler.prepare()
    with open(folder / "sampler.jsonl", "a", encoding="utf-8", buffering=1, opener=private_opener) as file:

        def write(kind: str, values: dict[str, Any]) -> None:
            file.write(json.dumps({"kind": kind, **values}, separators=(",", ":")) + "\n")

        write("host", sampler.host())
        for what, why in sampler.not_measured.items():
            write("not_measured", {"what": what, "why": why})
        next_s, samples = time.monotonic(), 0
        start = procfs.start_ticks(pid, sampler.proc)
        # SIGTERM ends the sampling, not the process: a block of `headrace.watch` is over, and its process goes on.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # A zombie has ended: its parent may first read a pipe to the end that this process holds open.
        while start is not None and procfs.start_ticks(pid, sampler.proc) == start:
            sample = sampler.sample(time.monotonic())
            if sample is not None:
                write("sample", sample)
            samples += 1
            interval_s = INTERVAL_S if samples <= MOST_SAMPLES else THINNED_TO * INTERVAL_S
            next_s = max(next_s + interval_s, time.monotonic() + INTERVAL_S / 4)
            if signal.sigtimedwait({signal.SIGTERM}, max(0.0, next_s - time.monotonic())) is not None:
                break
        write("job_end", sampler.job_end(time.monotonic()))
    return 0


def _run(arguments: list[str]) -> int:
    """Follow a process as `main` does. A session that cannot be written is one line on stderr."""
    try:
        return main(arguments)
    except OSError as error:
        with suppress(OSError):
            print(f"headrace: machine counters are no longer recorded: {error.strerror or error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
