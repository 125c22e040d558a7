"""Notice that no training step comes any more, and record where every process of the job stands then.

The sampler calls `Standstills.look` twice a second. It reads the pages of `headrace.attach.record.open_step`, so it knows since
when each training process waits for a batch or runs a step. After 20 s, or ten mean steps, without a change in any of them it
asks their training threads for their stacks, several times, and appends what it finds to `standstill.jsonl` in the session.

A signal without a handler would end its process, so the signal goes only to a process whose page bears its own pid, whose
descriptor is still that page, and whose kernel state says that the signal is caught, is not blocked, and stops no debugger.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.attach.machine import procfs
from headrace.attach.machine.sockets import SocketTraffic, link_target
from headrace.attach.record.open_step import EPOCH_ENDED, MAKES_BATCH, PAGE_BYTES, PAGE_NAME, PHASES, SIGNAL, SLOTS, WORKER_IDLE
from headrace.attach.record.script_files import library_path
from headrace.system.files.private_files import private_opener
from headrace.system.files.regular_file import read_regular
from headrace.system.hardware.counter_files import read_counters

__all__ = ["FILE", "SCALE_VARIABLE", "Standstills", "parse_stack"]

FILE = "standstill.jsonl"
"""File of the session. It is made at the first standstill."""

SCALE_VARIABLE = "HEADRACE_STANDSTILL_SCALE"
"""Environment variable: all times here are multiplied by it. Tests wait 2 s instead of 20."""

LEAST_S, MEAN_STEPS = 20.0, 10.0
"""Look closer when nothing has changed for this long, and for this many mean steps."""

BEFORE_FIRST_S = 60.0
"""The same while no loop has called `next()` yet: a job may prepare its data."""

SAMPLES, EVERY_S, LATER = 4, 2.0, 1.5
"""Take this many samples, this many seconds apart; then another each time the standstill is this many times as long."""

MOST_STANDSTILLS = 100
"""Record so many of a session at most."""

ANSWER_S = 0.5
"""Wait this long at most for the stacks of the processes."""

SCAN_S = 5.0
"""Look for the page of a process this often. Until one is known, every process of the job is looked at."""

GONE_S = 10.0
"""Call a standstill over when its processes have ended this long ago, while another training of the command goes on."""

MOST_PROCESSES, MOST_FRAMES = 512, 64
MOST_STACK_BYTES = 1 << 18

PAGE_TARGET = f"/memfd:{PAGE_NAME}"
"""Begin of what the link of a descriptor of a page points to. A file on a disk has another, whatever its name."""

STORAGE = "D"
"""State of a thread that waits for a disk or a file system and cannot be interrupted."""

SERVED = ("request_wait", "fuse", "nfs", "rpc", "unix_stream")
"""First letters of wait channels (`/proc/PID/wchan`) in which the kernel or another process fetches the data."""

TGKILL = {"x86_64": 234, "aarch64": 131}
"""Number of the system call `tgkill`, which sends a signal to one thread, on each kind of machine."""


@dataclass(slots=True)
class _Page:
    """The page of one process, held open: it can be read after the process has ended. above: its parent, and so on.

    It is not mapped: the process may belong to another user, who may cut the page off.
    """

    pid: int
    start_ticks: int
    descriptor: int
    above: tuple[int, ...] = ()
    ended: bool = False

    def values(self) -> dict[str, float]:
        """Return the numbers on the page; of a page that was cut off, zeros."""
        data = os.pread(self.descriptor, 8 * len(SLOTS), 0)
        return dict(zip(SLOTS, struct.unpack(f"{len(SLOTS)}d", data.ljust(8 * len(SLOTS), b"\0")), strict=True))

    def close(self) -> None:
        os.close(self.descriptor)


Trainer = tuple[_Page, dict[str, float]]
"""The page of a training process, and its values."""


@dataclass(slots=True)
class _Open:
    """The standstill of one training, as far as it was recorded: samples taken, when the next is due, and the last look."""

    since_s: float = 0.0
    taken: int = 0
    next_s: float = 0.0
    looked_s: float = 0.0
    traffic: SocketTraffic = field(default_factory=SocketTraffic)


@dataclass(slots=True)
class Standstills:
    """Follows the training processes of a command. proc: the mount point; scale: multiplies all times."""

    folder: Path
    proc: Path = Path("/proc")
    scale: float = field(default_factory=lambda: _scale())
    _pages: dict[int, _Page] = field(default_factory=dict)
    _tried_s: dict[int, float] = field(default_factory=dict)  # when a process was last found without a page
    _open_of: dict[int, _Open] = field(default_factory=dict)  # by the first process of each training
    _count: int = 0

    def look(self, now_s: float, recording: Iterable[tuple[int, int]], job: list[int], gpu_busy: float | None) -> None:
        """Record a sample of the standstill if there is one and a sample is due. Raises `OSError` if it cannot be written.

        recording: pid and start of the processes that record. job: the pids of all its processes. gpu_busy: 0 to 1.
        """
        self._follow(now_s, recording, job)
        trainers = [(page, values) for page in self._pages.values() if _trains(values := page.values())]
        alive = [pair for pair in trainers if not pair[0].ended]
        if not alive:
            trainers = alive = [
                (page, page.values()) for page in self._pages.values() if not page.ended and _is_main(page.values())
            ]
        if not alive:
            return
        trainings = _trainings(trainers)
        for one in trainings:
            others = [page.pid for other in trainings if other is not one for page, _ in other if not page.ended]
            is_whole = all(any(page is mine for mine, _ in one) for page, _ in alive)
            self._look_at(one, now_s, job, gpu_busy, is_whole=is_whole, beside=others)
        for state in self._open_of.values():  # one whose processes have ended, while others go on
            if state.taken and now_s - state.looked_s > GONE_S * self.scale:
                self._end(state, now_s)

    def _look_at(
        self,
        training: list[Trainer],
        now_s: float,
        job: list[int],
        gpu_busy: float | None,
        *,
        is_whole: bool,
        beside: list[int],
    ) -> None:
        """Record a sample of one training. is_whole: all processes of the command are its. beside: processes that train too."""
        here = [pair for pair in training if not pair[0].ended]
        state = self._open_of.setdefault(training[0][0].pid, _Open())
        since_s = max(max(values["since_s"], values["touched_s"]) for _, values in here)
        if state.taken and since_s > state.since_s:
            self._end(state, since_s)
        state.looked_s = now_s
        limit_s = max(_limit_s(values, self.scale) for _, values in here)
        if now_s - since_s < limit_s or (state.taken and now_s < state.next_s):
            return
        if not state.taken:
            self._count += 1
            state.traffic = SocketTraffic()
        if self._count > MOST_STANDSTILLS:
            return
        state.since_s = since_s
        if not is_whole:
            below = {pid for page, _ in here for pid in procfs.descendants(page.pid, self.proc)}
            job = [pid for pid in job if pid in below]
        self._write({**self._sample(now_s, training, job, gpu_busy, state.traffic), "since_s": since_s, "beside": beside})
        state.taken += 1
        later_s = EVERY_S * self.scale if state.taken < SAMPLES else (LATER - 1) * (now_s - since_s)
        state.next_s = now_s + later_s

    def _end(self, state: _Open, time_s: float) -> None:
        self._write({"kind": "standstill_over", "since_s": state.since_s, "time_s": time_s})
        state.taken = 0

    def _follow(self, now_s: float, recording: Iterable[tuple[int, int]], job: list[int]) -> None:
        """Open the pages of new processes, and note which have ended. Of the ended ones, those of training processes stay."""
        for page in list(self._pages.values()):
            if page.ended:
                continue
            page.ended = procfs.start_ticks(page.pid, self.proc) != page.start_ticks
            if not _is_there(page, self.proc) and not (page.ended and _trains(page.values())):
                self._pages.pop(page.pid).close()  # a worker that has ended, or a process that runs another program now
        pids = [pid for pid, _ in recording]
        for pid in pids if self._pages else [*pids, *job]:
            if now_s - self._tried_s.get(pid, -SCAN_S) >= SCAN_S * self.scale and self._open(pid) is None:
                self._tried_s[pid] = now_s

    def _open(self, pid: int) -> _Page | None:
        known = self._pages.get(pid)
        start = procfs.start_ticks(pid, self.proc)
        if start is None or (known is not None and known.start_ticks == start):
            return known
        page = _open_page(pid, start, self.proc)
        if page is not None:
            if known is not None:
                known.close()
            self._pages[pid] = page
        return page

    def _sample(
        self, now_s: float, training: list[Trainer], job: list[int], gpu_busy: float | None, traffic: SocketTraffic
    ) -> dict[str, Any]:
        """Ask all processes of a training for their stacks, and return what each does."""
        trainers = [page.pid for page, _ in training]  # never those that are left out
        pids = list(dict.fromkeys((*trainers, *job)))[:MOST_PROCESSES]
        counters = {pid: found for pid in pids if (found := _counters(pid, self.proc)) is not None}
        pages = [page for pid in counters if (page := self._open(pid)) is not None and not page.ended]
        asked = [page for page in pages if _ask(page, self.proc)]
        _await_answers(asked)
        dumps = {page.pid: _dump(page) for page in asked}
        ended = [page for page, _ in training if page.ended]
        processes = [
            {
                "pid": page.pid,
                "ended": page.ended,
                **_described(page.values()),
                **counters.get(page.pid, {}),
                **parse_stack(dumps.get(page.pid, "")),
            }
            for page in (*pages, *ended)
        ]
        others = [{"pid": pid, **found} for pid, found in counters.items() if pid not in self._pages]
        return {
            "kind": "standstill",
            "time_s": now_s,
            "scale": self.scale,
            "gpu_busy": gpu_busy,
            "network_bytes": traffic.moved(counters, self.proc, behind=any(map(_is_served, counters.values()))),
            "disk_bytes": procfs.disk_bytes(self.proc),
            "stack_bytes": sum(map(len, dumps.values())),
            "processes": processes,
            "others": others,
        }

    def _write(self, line: dict[str, Any]) -> None:
        with open(self.folder / FILE, "a", encoding="utf-8", opener=private_opener) as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _scale() -> float:
    try:
        return float(os.environ.get(SCALE_VARIABLE, ""))
    except ValueError:
        return 1.0


def _is_main(values: dict[str, float]) -> bool:
    return values["worker"] < 0 and values["phase"] not in (MAKES_BATCH, WORKER_IDLE)


def _trains(values: dict[str, float]) -> bool:
    """Whether the process has begun to iterate a loader, or steps an optimizer."""
    return _is_main(values) and (values["phase"] > 0 or values["touched_s"] > 0)


def _trainings(trainers: list[Trainer]) -> list[list[Trainer]]:
    """Return the training processes that belong together: the ranks of one job, and those that one of them started.

    Beside others, a training that has ended its epoch is left out: it may have ended, or wait for them.
    """
    pids = {page.pid for page, _ in trainers}
    found: list[tuple[set[tuple[float, ...]], list[Trainer]]] = []
    for page, values in trainers:
        tags: set[tuple[float, ...]] = {(next((pid for pid in reversed(page.above) if pid in pids), page.pid),)}
        if values["world_size"] > 1:
            tags.add((values["world_size"], values["job"]))
        same = [one for one in found if one[0] & tags]
        members = [pair for _, pairs in same for pair in pairs]
        found = [one for one in found if one not in same]
        found.append((tags.union(*(one[0] for one in same)), [*members, (page, values)]))
    trainings = [pairs for _, pairs in found]
    inside = [pairs for pairs in trainings if any(not page.ended and values["phase"] != EPOCH_ENDED for page, values in pairs)]
    return inside or [trainers]


def _limit_s(values: dict[str, float], scale: float) -> float:
    """Return after how many seconds without a change to look closer."""
    if not values["begun_s"]:
        return scale * (LEAST_S if _trains(values) else BEFORE_FIRST_S)
    mean_s = (values["since_s"] - values["begun_s"]) / max(1.0, values["steps"])
    return max(scale * LEAST_S, MEAN_STEPS * mean_s, values["longest_s"])  # a pause that recurs is looked at once


def _described(values: dict[str, float]) -> dict[str, Any]:
    whole = ("loader", "epoch", "batches", "steps", "rank", "world_size", "worker", "parent_pid")
    times = {name: round(values[name], 3) for name in ("since_s", "longest_s", "begun_s")}
    return {"phase": PHASES[int(values["phase"])], **times, **{name: int(values[name]) for name in whole}}


def _open_page(pid: int, start: int, proc: Path) -> _Page | None:
    """Return the page of a process, or None: it has none, or may not be looked into."""
    folder = f"{proc}/{pid}/fd"
    try:
        for number in os.listdir(folder):  # noqa: PTH208
            if link_target(f"{folder}/{number}").startswith(PAGE_TARGET):
                descriptor = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CLOEXEC)
                page = _Page(pid, start, descriptor, tuple(procfs.ancestors(pid, proc)))
                values = page.values()
                if values["pid"] == pid and values["descriptor"] == float(number):
                    return page
                page.close()
    except (OSError, ValueError):
        return None
    return None


def _is_there(page: _Page, proc: Path) -> bool:
    """Whether the process still has its page: another program in its place (`exec`) has neither page nor handler."""
    values = page.values()
    descriptor = f"{proc}/{page.pid}/fd/{int(values['descriptor'])}"
    return values["pid"] == page.pid and link_target(descriptor).startswith(PAGE_TARGET)


def _ask(page: _Page, proc: Path) -> bool:
    """Send the signal to a training thread that catches it. Return False where it does not, or has ended."""
    if not _is_there(page, proc) or procfs.start_ticks(page.pid, proc) != page.start_ticks:
        return False
    thread = int(page.values()["thread"])
    status = _status(f"{proc}/{page.pid}/task/{thread}/status")
    if not _has_signal(status, "SigCgt") or _has_signal(status, "SigBlk") or status.get("TracerPid") != "0":
        return False
    try:
        os.ftruncate(page.descriptor, PAGE_BYTES)
        return _signal_thread(page.pid, thread)
    except OSError:
        return False


def _status(path: str) -> dict[str, str]:
    """Return the fields of a `status` file of /proc by name. The dict is empty if the file cannot be read."""
    fields = (line.partition(":") for line in (read_counters(path) or "").splitlines())
    return {name: value.strip() for name, _, value in fields}


def _has_signal(status: dict[str, str], name: str) -> bool:
    """Whether the signal is in a set of signals of a thread, such as those that it blocks."""
    return bool(int(status.get(name, "0"), 16) >> (SIGNAL - 1) & 1)


def _signal_thread(pid: int, thread: int) -> bool:
    """Send the signal to one thread. Return whether it was sent. Raises `OSError` where the process has ended."""
    number = TGKILL.get(platform.machine())
    if number is not None:  # by its number: `tgkill` has a function in glibc from 2.30 on only
        return bool(ctypes.CDLL(None).syscall(*map(ctypes.c_long, (number, pid, thread, SIGNAL))) == 0)
    if thread == pid:  # the kernel gives the signal to the main thread if it does not block it
        os.kill(pid, SIGNAL)
    return thread == pid


def _await_answers(pages: list[_Page]) -> None:
    """Wait until each process has written stacks, and no file grows any more."""
    end_s, sizes = time.monotonic() + ANSWER_S, [0]
    while pages and time.monotonic() < end_s:
        time.sleep(0.05)
        before, sizes = sizes, [os.fstat(page.descriptor).st_size for page in pages]
        if sizes == before and min(sizes) > PAGE_BYTES:
            return


def _dump(page: _Page) -> str:
    return os.pread(page.descriptor, MOST_STACK_BYTES, PAGE_BYTES).decode("utf-8", "replace")


def _counters(pid: int, proc: Path) -> dict[str, Any] | None:
    """Return CPU seconds, bytes moved by system calls, reads, switches and state of a process. None: it has ended.

    With the CPU seconds and bytes of its children that have ended.
    """
    use = procfs.process_cpu(pid, proc)
    if use is None:
        return None
    words = (read_counters(f"{proc}/{pid}/io") or "").split()  # name, value, …
    known = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    status = _status(f"{proc}/{pid}/status")
    return {
        "cpu_s": use.cpu_s + use.children_s,
        "name": use.name,
        "state": status.get("State", "")[:1],
        "waits_in": _waits_in(f"{proc}/{pid}"),
        "bytes": known.get("rchar:", 0) + known.get("wchar:", 0),
        "reads": known.get("syscr:", 0),
        "switches": int(status.get("voluntary_ctxt_switches", 0)),
    }


def _is_served(counters: dict[str, Any]) -> bool:
    """Whether a process may wait for bytes that another one or the kernel receives: a file system, or a service next door."""
    return bool(counters["state"] == STORAGE or counters["waits_in"].startswith(SERVED))


def _waits_in(process: str) -> str:
    """Return what the main thread waits in, as the kernel names it; empty where that is not known.

    A wait for a socket is often named by a helper of the kernel that terminals use too. The descriptor, its call's first
    argument, tells.
    """
    found = (read_counters(f"{process}/wchan") or "").strip("0")
    if found != "wait_woken":
        return found
    call = (read_counters(f"{process}/syscall") or "").split()  # number, arguments …
    is_socket = len(call) > 1 and link_target(f"{process}/fd/{int(call[1], 16)}").startswith("socket:")
    return "sk_wait_data" if is_socket else found


_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')


def parse_stack(text: str) -> dict[str, Any]:
    """Return the frames of a dump of faulthandler for one thread, outermost first, and the lock that it takes.

    A frame is (function, file, line). As in `headrace.attach.record.stacks`, only the script's own files are absolute.
    `lock`: the name of the lock that the innermost line takes, if it is the script's own and does.
    """
    places = [found.groups() for line in text.splitlines() if (found := _FRAME.match(line)) is not None]
    shown = [(function, file if (path := library_path(file)) is None else path, row) for file, row, function in places]
    frames = [(function, file, int(row) if row.isdigit() else 0) for function, file, row in shown if file][:MOST_FRAMES]
    own = frames[0] if frames else None
    lock = lock_name(own[1], own[2]) if own is not None and os.path.isabs(own[1]) else None  # noqa: PTH117
    return {"frames": frames[::-1], "lock": lock}


_LOCK = re.compile(r"^\s*(?:with\s+([\w.]*[\w])(?:\[.*\])?\s*(?:,.*)?:|.*?([\w.]+)\.acquire\()")


MOST_SCRIPT_BYTES, LONGEST_LINE = 4 << 20, 1000
"""Read no larger script, and so many bytes of a line: the path comes from a process that may belong to another user."""


def lock_name(file: str, line: int) -> str | None:
    """Return the name that a line of a script takes as a lock (`with NAME:`, `NAME.acquire()`), or None."""
    with suppress(OSError, ValueError, IndexError):
        lines = read_regular(Path(file), limit=MOST_SCRIPT_BYTES).splitlines()
        found = _LOCK.match(lines[line - 1][:LONGEST_LINE].decode("utf-8", "replace")) if line > 0 else None
        return None if found is None else found[1] or found[2]
    return None
