"""Sample the Python stacks of this process while it makes or waits for a batch or runs a step, to name what takes the time.

A daemon thread reads `sys._current_frames()` about fifteen times a second, only while another thread is marked as working. It
measures its own CPU time and samples more rarely where that would exceed `COST_SHARE` of a core. It keeps names, files and
line numbers, never a frame: a kept frame would keep the tensors of its function alive. It ends before a fork, when no thread
has been marked for a while, and with the session. `HEADRACE_STACKS=0` turns it off.

Native code has no Python frame, so the Python function that called it stands for it.

A thread that another thread keeps from the interpreter (its lock, the GIL) shows a frame like any other. The sampling thread
needs the interpreter too: where it gets it late, the other thread that used most CPU meanwhile is recorded too, as `HOLDER`, or
as `STEP_HOLDER` where a step runs that neither sleeps nor waits for anything else.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.script_files import library_path
from headrace.attach.record.threads import is_blocked, python_threads_cpu_s, run_queue_delay_s

__all__ = ["HOLDER", "NEXT", "STACKS_VARIABLE", "StackSampler", "calling_places", "install", "mark", "pause", "unmark"]

STACKS_VARIABLE = "HEADRACE_STACKS"

COST_SHARE = 0.002
"""The sampling thread may take at most this share of one core; otherwise it samples less often."""

INTERVAL_S = 0.06
"""Mean seconds between two samples, if sampling so often stays within `COST_SHARE`."""

LATE_INTERVAL_S = 1.0
"""Mean seconds between two samples after the first `EARLY_SAMPLES`: a long run needs no more detail."""

EARLY_SAMPLES = 3000
FIRST_MARKS = 3
"""Begin to sample at this batch or step: earlier ones contain imports and compilation."""

IDLE_S = 2.0
"""End the sampling thread when no work was marked for this long. The next mark starts another."""

LONGEST_S = 120.0
"""Ignore work that was marked longer ago than this: the loop was left, and the script does something else."""

LATE_S = 0.002
"""Look for a thread that holds the interpreter when the sampling thread, with a core, got it this much later than due."""

HOLDER_CPU_SHARE = 0.05
"""A thread that holds the interpreter uses at least this share of a core."""

FEEDER = "QueueFeederThread"
"""Name of the threads of `multiprocessing` that write into a queue: those of a training process send only indices."""

HOLDER_SINCE_S = 2 * LATE_INTERVAL_S
"""Compare the CPU times of threads only with those read this recently: what used CPU before holds no interpreter now."""

NEXT = "next"
"""The role of the training thread inside `next()`."""

HOLDER = "holder"
"""The role of a thread that keeps one from the interpreter which makes a batch or is inside `next()`."""

STEP_HOLDER = "step holder"
"""The role of a thread that keeps one from the interpreter which runs a step."""

MOST_FRAMES = 96
MOST_WALKED = 1000
MOST_STACKS = 1000
"""Count this many different stacks between two writes. Further ones count together, as one stack without frames."""

MOST_CODES = 4096
FIRST_WRITE_S = 2.0
"""Write the counts this long after the first mark, and then each time that time has doubled, in case the job is killed."""

Work = tuple[str, int]
"""What a marked thread does ("batch", "next" or "step"), and the number of the loader."""

Mark = tuple[Work, Callable[[], Any] | None, float, int | None]
"""The work of a thread, whose end ends it, since when, and the thread that it waits for."""

Counted = tuple[str, int, bool]
"""The same of a sample, and whether the optimizer had done its part of the step."""

Place = tuple[str, str, int]
"""Function, file and line of a frame: the line that ran in files of the script, else the first line of the function."""

_ATTACH = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 -- as everywhere in this folder, without pathlib
_FETCH = os.path.join(_ATTACH, "batches", "fetch.py")  # noqa: PTH118
_STEPS = os.path.join(_ATTACH, "batches", "steps.py")  # noqa: PTH118
_TRANSFERS = os.path.join(_ATTACH, "training", "transfers.py")  # noqa: PTH118
DEVICE_WAIT_FILE = "torch/_tensor.py"
_DEVICE_WAITS = {"read": "Tensor.item", "synchronize": "torch.cuda.synchronize"}
"""Functions of `transfers` by which the script waits for the device, and the name of the call that each stands for."""

_TORCH_FETCH = os.path.join("torch", "utils", "data", "_utils", "fetch.py")  # noqa: PTH118
_CALLS = ("_wrapped_call_impl", "_call_impl")  # functions of torch.nn.Module, left out of stacks: they call every forward

WAITS = frozenset(
    {
        ("threading.py", "wait"), ("threading.py", "join"), ("threading.py", "_wait_for_tstate_lock"), ("queue.py", "get"),
        ("queue.py", "put"), ("selectors.py", "select"), ("connection.py", "wait"), ("connection.py", "_recv"),
        ("connection.py", "_poll"), ("subprocess.py", "_try_wait"), ("popen_fork.py", "poll"), ("_base.py", "result"),
    }
)  # fmt: skip
"""(file, function) of innermost frames in which a thread only waits for another thread."""


class StackSampler:
    """Samples the stacks of the marked threads of one process, in a thread of its own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._random = random.Random()  # the script's own draws stay as they are
        self._codes: dict[int, tuple[CodeType, tuple[str, str, bool]]] = {}  # by id: hashing code is slow
        self._enter_process()
        recorder.before_flush.append(self.write)
        os.register_at_fork(before=self.stop, after_in_child=self._enter_process)
        atexit.register(self.stop)

    def _enter_process(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._threads_cpu_s: tuple[float, dict[int, float]] = (0.0, {})
        self._seen: Counter[str] = Counter()
        self._counts: Counter[tuple[Counted, bool, tuple[Place, ...]]] = Counter()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = 0
        self._started_s: float | None = None
        self._write_after_s = FIRST_WRITE_S

    def mark(self, role: str, loader: int, owner: Any = None, behind: int | None = None) -> Mark | None:
        """Sample this thread's Python stack from now on. Return its mark until now.

        role: it makes a batch ("batch"), is inside `next()` (`NEXT`), or runs a training step ("step"). loader: the loader's
        number. owner: an object after whose end this thread is not sampled (None: until `unmark`). behind: the thread that
        this one waits for; while this one waits and that one works, the stack of that one counts.
        """
        me, since_s = threading.get_ident(), time.monotonic()
        before = self._marks.get(me)
        self._marks[me] = ((role, loader), None if owner is None else weakref.ref(owner), since_s, behind)
        if self._thread is None:
            self._seen[role] += 1
            if self._seen[role] >= FIRST_MARKS:
                self._start()
        return before

    def unmark(self, before: Mark | None = None) -> None:
        """Stop sampling the Python stack of this thread, or go on with the mark that it had `before`."""
        if before is None:
            self._marks.pop(threading.get_ident(), None)
        else:
            self._marks[threading.get_ident()] = before

    def stop(self) -> None:
        """End the sampling thread, and wait for its end. The next mark starts another."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._end.set()
            thread.join(timeout=1.0)

    def _start(self) -> None:
        self._started_s = self._started_s or time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._end,), name="headrace-stacks", daemon=True)
        self._thread.start()

    def _run(self, end: threading.Event) -> None:
        taken, spent_s, highest_s, busy_s = 0, 0.0, 0.0, time.monotonic()
        interval_s = INTERVAL_S
        before_s, queue_s = time.thread_time(), run_queue_delay_s() or 0.0
        try:
            while True:
                pause_s = interval_s * self._random.uniform(0.6, 1.4)
                due_s = time.monotonic() + pause_s
                if end.wait(pause_s):
                    break
                now_s, queued_s, queue_s = time.monotonic(), queue_s, run_queue_delay_s() or 0.0
                busy_s = now_s if self.sample(now_s - due_s - (queue_s - queued_s)) else busy_s
                self._recorder.flush_when_idle(now_s)
                if now_s - busy_s > IDLE_S:
                    break
                cost_s, before_s = time.thread_time() - before_s, time.thread_time()
                taken, spent_s, highest_s = taken + 1, spent_s + cost_s, max(highest_s, cost_s)
                each_s = (spent_s - highest_s) / max(1, taken - 1)  # the first sample after a fork costs 8 ms once: cold pages
                least_s = INTERVAL_S if self._samples < EARLY_SAMPLES else LATE_INTERVAL_S
                interval_s = max(least_s, each_s / COST_SHARE)
        except Exception:  # the script goes on without samples
            self._end.set()
            return
        if self._end is end and not end.is_set():
            self._thread = None

    def sample(self, late_s: float = 0.0) -> bool:
        """Count the current stack of each marked thread. Return whether a thread was marked.

        late_s: how much later than due this thread got the interpreter, without its wait for a core.
        """
        now_s = time.monotonic()
        working = []
        for thread, (work, owner, since_s, behind) in list(self._marks.items()):
            if now_s - since_s > LONGEST_S or (owner is not None and owner() is None):
                continue
            working.append((thread, work, behind))
        if not working:
            return False
        frames = sys._current_frames()
        after = COUNTERS.is_after_optimizer
        found = []
        used = self._cpu_used() if late_s >= LATE_S and self._has_other_threads() else None
        for thread, work, behind in working:
            stack = self._stack(frames.get(thread))
            if stack[1] and behind in frames:
                other = self._stack(frames[behind])
                stack = stack if other[1] else other
            found.append((work, stack))
            if used is not None and (work[0] != "step" or not (stack[1] or is_blocked(thread))):
                holder = self._holder(frames, thread, *used)
                found += [((STEP_HOLDER if work[0] == "step" else HOLDER, work[1]), holder)] if holder is not None else []
        del frames
        with self._lock:
            for (role, loader), (collating, waiting, places) in found:
                self._samples += 1
                key = (("collate" if collating else role, loader, after and role == "step"), waiting, places)
                if key not in self._counts and len(self._counts) >= MOST_STACKS:
                    key = (key[0], False, ())
                self._counts[key] += 1
        return True

    def _has_other_threads(self) -> bool:
        """Return whether a Python thread runs that is neither marked nor one that only sends what another one made."""
        return any(
            each is not self._thread and each.ident not in self._marks and each.name != FEEDER for each in threading.enumerate()
        )

    def _cpu_used(self) -> tuple[float, dict[int, float]] | None:
        """Return the time since the last late sample, and the CPU time of each thread in it; None if that is long ago."""
        now_s, (then_s, before) = time.monotonic(), self._threads_cpu_s
        cpu_s = python_threads_cpu_s()
        self._threads_cpu_s = now_s, cpu_s
        if now_s - then_s > HOLDER_SINCE_S:
            return None
        threads = [(each.ident, each.native_id) for each in threading.enumerate()]
        return now_s - then_s, {
            ident: cpu_s[number] - before[number]
            for ident, number in threads
            if ident is not None and number in cpu_s and number in before
        }

    def _holder(
        self, frames: dict[int, FrameType], marked: int, elapsed_s: float, used: dict[int, float]
    ) -> tuple[bool, bool, tuple[Place, ...]] | None:
        """Return the stack of the thread that keeps a marked one from the interpreter; None where no other thread works."""
        least_s = max(used.get(marked, 0.0), HOLDER_CPU_SHARE * elapsed_s)
        others = [ident for ident in used if ident != marked and ident in frames]
        for ident in sorted(others, key=lambda one: -used[one]):
            if used[ident] < least_s:
                return None
            stack = self._stack(frames[ident])
            if stack[2] and not stack[1]:
                return stack
        return None

    def _stack(self, frame: FrameType | None) -> tuple[bool, bool, tuple[Place, ...]]:
        """Return whether the thread collates, whether it waits, and its places from the outermost to the innermost."""
        places: list[Place] = []
        collating = waiting = False
        walked = 0
        while frame is not None and walked < MOST_WALKED:
            walked += 1
            code = frame.f_code
            if code.co_filename == _FETCH and code.co_name in ("__call__", "fetch"):
                collating = code.co_name == "__call__"
                break  # below is the loader
            known = self._codes.get(id(code))
            function, file, own = known[1] if known is not None else self._describe(code)
            if not places and walked == 1:
                waiting = (os.path.basename(code.co_filename), code.co_name) in WAITS  # noqa: PTH119
            if not file and code.co_name == "__next__" and code.co_filename.startswith(_STEPS):
                break  # below is the loop that waits for a batch
            if file:
                places.append((function, file, (frame.f_lineno or 0) if own else code.co_firstlineno))
            frame = frame.f_back
        del frame
        places.reverse()
        return collating, waiting, tuple(places[:MOST_FRAMES])

    def places(self, frame: FrameType | None) -> tuple[Place, ...]:
        """Return the places of a frame and its callers, from the outermost to the innermost."""
        return self._stack(frame)[2]

    def _describe(self, code: CodeType) -> tuple[str, str, bool]:
        """Return name and file of a function, and whether it is the script's. An empty file: leave the frame out."""
        if code.co_filename == _TRANSFERS and code.co_name in _DEVICE_WAITS:
            return self._remember(code, (_DEVICE_WAITS[code.co_name], DEVICE_WAIT_FILE, False))
        library = "" if code.co_name in _CALLS else library_path(code.co_filename)
        if library == _TORCH_FETCH:
            library = ""
        file = code.co_filename if library is None else library
        return self._remember(code, (code.co_qualname.rpartition("<locals>.")[2], file, library is None))

    def _remember(self, code: CodeType, described: tuple[str, str, bool]) -> tuple[str, str, bool]:
        if len(self._codes) < MOST_CODES:
            self._codes[id(code)] = (code, described)
        return described

    def write(self, *, last: bool) -> None:
        """Pass the counted stacks to the recorder if a write is due, or if `last` (the session or process ends)."""
        elapsed_s = time.monotonic() - self._started_s if self._started_s is not None else 0.0
        if not self._counts or (not last and elapsed_s < self._write_after_s) or not self._lock.acquire(timeout=0.1):
            return
        try:
            counts, self._counts = self._counts, Counter()
        finally:
            self._lock.release()
        self._write_after_s = max(self._write_after_s, elapsed_s) * 2
        for work in sorted({key[0] for key in counts}):
            rows = [[count, int(waits), places] for (of, waits, places), count in counts.items() if of == work]
            self._recorder.line("stacks", role=work[0], loader=work[1], after_optimizer=work[2], stacks=rows)


_samplers: list[StackSampler] = []


def install(recorder: Recorder) -> None:
    """Let `mark` start sampling stacks in this process, unless `HEADRACE_STACKS=0` turns it off."""
    if os.environ.get(STACKS_VARIABLE, "1") != "0" and not _samplers:
        _samplers.append(StackSampler(recorder))


def mark(role: str, loader: int, owner: Any = None, behind: int | None = None) -> Mark | None:
    """Sample this thread's stack from now on, as `StackSampler.mark` says. Return its mark until now."""
    for sampler in _samplers:
        return sampler.mark(role, loader, owner, behind)
    return None


def unmark(before: Mark | None = None) -> None:
    """Stop sampling the Python stack of this thread, or go on with the mark that it had `before`."""
    for sampler in _samplers:
        sampler.unmark(before)


def calling_places() -> tuple[Place, ...]:
    """Return the places of this thread now, from the outermost to the innermost; none where no stacks are sampled."""
    return _samplers[0].places(sys._getframe(1)) if _samplers else ()


def pause() -> None:
    """End the sampling thread, because the session ends."""
    for sampler in _samplers:
        sampler.stop()
        sampler._marks.clear()
