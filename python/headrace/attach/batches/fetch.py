"""Time how each batch is made: in a DataLoader worker, or in the main process if there are no workers.

The kernel's accounting of the thread splits wall time into CPU time, run-queue delay and blocked time. The collate function and
socket reads are timed separately.
"""

from __future__ import annotations

import http.client
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.attach.batches.batch_values import is_on
from headrace.attach.batches.worker_draws import MOST_PASSES, WorkerDraws
from headrace.attach.experiments.probe import Probe
from headrace.attach.machine.sockets import tcp_connections
from headrace.attach.record import load_hooks, open_step, stacks
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.threads import (
    IoCounters,
    own_and_shared_bytes,
    python_threads_cpu_s,
    read_io,
    run_queue_delay_s,
)
from headrace.attach.record.unseen_frames import drop_own_frames
from headrace.attach.training.operator_cpu import OperatorCpu

__all__ = ["LOADER_VARIABLE", "install", "passes"]

SOCKETS_AT_BATCH = 5
"""Count the TCP connections of a process after this many batches: by then it has opened all that it needs."""

MEMORY_AT_BATCHES = (SOCKETS_AT_BATCH, 200)
"""Read the memory of a worker after these batches: once its first batches are made, and once its caches have grown.

Then each time that the number of its batches has doubled, within `MEMORY_COST`, to see whether it grows. Workers of later
passes than the first `MOST_PASSES` are not read: where tens of gigabytes are mapped, one reading takes a second."""

MEMORY_COST = 0.002
"""Later readings of a worker's memory may take at most this share of its time: a gigabyte takes some 50 ms."""

LOADER_VARIABLE = "HEADRACE_LOADER"
"""Environment variable `number:workers` of the loader whose workers are being started, for spawned workers to read."""

MAP_FETCHER = "_MapDatasetFetcher"
"""Measure operators only in this fetcher (datasets with indices): an iterable dataset may hold contexts open across batches."""

passes: dict[int, int] = {}
"""Passes over each loader, by its number: what a forked worker knows of them."""

REFUSALS = (429, 503)
"""HTTP answers by which a store asks for fewer requests: Too Many Requests, and Slow Down or Service Unavailable."""

_timing = threading.local()


def install(recorder: Recorder) -> None:
    """Patch PyTorch's fetchers to record the times of each batch, and Python's sockets to time reads from the network."""
    from torch.utils.data._utils import fetch

    timer = _BatchTimer(recorder)
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        fetcher.fetch = _timed_fetch(fetcher.fetch, timer)
    for kind in (socket.socket, ssl.SSLSocket):
        for name in ("recv", "recv_into"):
            setattr(kind, name, _timed_receive(getattr(kind, name)))
    http.client.HTTPResponse.begin = _counted_refusals(http.client.HTTPResponse.begin)  # type: ignore[method-assign]


def _timed_fetch(original: Callable[..., Any], timer: _BatchTimer) -> Callable[..., Any]:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        timed = timer.has_begun(self)
        outer = _timing.outer if timed else None  # here, because the dataset may read a loader of its own
        try:
            data = original(self, possibly_batched_index)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            if timed:
                _timing.active = False
                timer.leave()
                stacks.unmark(outer)
        if timed:
            timer.has_ended(possibly_batched_index)
        return data

    return fetch


def _timed_receive(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add up the time of socket reads while this thread makes a batch."""

    def receive(self: Any, *args: Any, **options: Any) -> Any:
        if not getattr(_timing, "active", False):
            return original(self, *args, **options)
        begin_s = time.monotonic()
        _timing.active = False  # recv_into of an SSLSocket calls recv_into of a socket
        try:
            return original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            _timing.active = True
            _timing.socket_s += time.monotonic() - begin_s

    return receive


def _counted_refusals(original: Callable[..., None]) -> Callable[..., None]:
    """Count the answers in which a store asks for fewer requests, while this thread makes a batch."""

    def begin(self: Any, *args: Any, **options: Any) -> None:
        try:
            original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if getattr(_timing, "active", False) and self.status in REFUSALS:
            _timing.refused += 1

    return begin


class _Collate:
    """The user's collate function, timed."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        try:
            return self.collate(samples)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            _timing.collate_s += time.monotonic() - begin_s
            _timing.collate_cpu_s += time.thread_time() - begin_cpu_s


class _BatchTimer:
    """The clocks at the start of the current batch. One for each process: a worker has one thread."""

    def __init__(self, recorder: Recorder) -> None:
        self.off = False
        self.recorder = recorder
        self.pid = 0

    def _enter_process(self) -> None:
        """Find the numbers of the worker and of its loader, at the first batch in this process."""
        from torch.utils.data import get_worker_info

        self.pid = os.getpid()
        self.made = 0
        self.memory_at, self.memory_after_s = SOCKETS_AT_BATCH, 0.0
        self.end_s: float | None = None
        self.end_process_cpu_s = time.process_time()
        self.end_thread_cpu_s = time.thread_time()
        info = get_worker_info()
        self.worker = -1 if info is None else int(info.id)
        number, _, workers = os.environ.get(LOADER_VARIABLE, "0:0").partition(":")
        self.loader = int(number)
        self.probe = Probe(self.recorder, self.loader, self.worker, int(workers)) if info is not None else None
        self.operators = OperatorCpu(self.recorder)
        self.draws: WorkerDraws | None = None
        if info is not None and is_on():
            self.draws = WorkerDraws(self.recorder, self.loader, self.worker, passes.get(self.loader, 0))
        if info is not None:
            from headrace.attach.record.processes import write_process

            write_process(self.recorder, role="worker", worker_id=self.worker)
            self.recorder.flush(last=False)  # of a worker that makes no batch, this is all there is

    def has_begun(self, fetcher: Any) -> bool:
        """Begin a batch. Return False if it is not timed."""
        if self.off or self.recorder.closed:
            return False
        try:
            self.begin(fetcher)
        except Exception:
            self.fail()
            return False
        return True

    def has_ended(self, index: Any) -> None:
        """Record a batch that `has_begun` has begun. A failure ends the timing."""
        try:
            self.end(index)
        except Exception:
            self.fail()

    def begin(self, fetcher: Any) -> None:
        if self.pid != os.getpid():
            self._enter_process()
        if not isinstance(fetcher.collate_fn, _Collate):
            fetcher.collate_fn = _Collate(fetcher.collate_fn)
        if self.draws is not None and not self.made:
            self.draws.before_first(fetcher, fetcher.collate_fn.collate)
        if self.probe is not None:
            self.probe.before_batch()
        if self.worker < 0:
            self.loader = getattr(_timing, "loader", 0)
        _timing.collate_s = _timing.collate_cpu_s = _timing.socket_s = 0.0
        _timing.refused = 0
        _timing.active = True
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.faults, self.preempted = usage.ru_majflt, usage.ru_nivcsw
        self.io = read_io()
        self.queue_s = run_queue_delay_s()
        self.threads_cpu_s = python_threads_cpu_s()
        self.process_cpu_s = time.process_time()
        self.cpu_s = time.thread_time()
        _timing.outer = stacks.mark("batch", self.loader)
        self.start_s = time.monotonic()
        if self.worker >= 0:
            open_step.batch_begun(self.loader, self.worker, self.start_s)
        if self.worker < 0 and not self.operators.done and type(fetcher).__name__ == MAP_FETCHER:
            self.operators.begin()

    def leave(self) -> None:
        """Undo what `begin` did to the calls of this thread. Called however the batch ended."""
        try:
            self.operators.leave()
        except Exception:
            self.fail()

    def end(self, index: Any) -> None:
        end_s = time.monotonic()
        if self.worker >= 0:
            open_step.batch_ended(end_s)
        cpu_s = time.thread_time()
        process_cpu_s = time.process_time()
        queue_s = run_queue_delay_s()
        read_bytes, disk_bytes = _delta(self.io, read_io())
        threads_cpu_s = sum(now_s - self.threads_cpu_s.get(each, 0.0) for each, now_s in python_threads_cpu_s().items())
        pool_cpu_s = max(0.0, (process_cpu_s - self.process_cpu_s) - (cpu_s - self.cpu_s) - threads_cpu_s)
        other_cpu_s = (process_cpu_s - self.end_process_cpu_s) - (cpu_s - self.end_thread_cpu_s)
        wall_s = end_s - self.start_s
        usage = resource.getrusage(resource.RUSAGE_SELF)
        if self.worker < 0 and not self.operators.done:
            self.operators.end(wall_s, cpu_s - self.cpu_s, pool_cpu_s, _difference(self.queue_s, queue_s))
        alone = self.probe.after_batch(wall_s, cpu_s - self.cpu_s, _difference(self.queue_s, queue_s)) if self.probe else 0
        row = [
            self.start_s,
            wall_s,
            len(index) if isinstance(index, list | tuple) else None,
            cpu_s - self.cpu_s,
            _difference(self.queue_s, queue_s),
            _timing.collate_s,
            _timing.collate_cpu_s,
            max(0.0, other_cpu_s) if self.worker >= 0 else None,
            None if self.end_s is None or self.worker < 0 else self.start_s - self.end_s,
            read_bytes,
            disk_bytes,
            _timing.socket_s,
            usage.ru_majflt - self.faults,
            alone,
            pool_cpu_s,
            usage.ru_nivcsw - self.preempted,
            _timing.refused,
        ]
        self.end_s, self.end_process_cpu_s, self.end_thread_cpu_s = end_s, process_cpu_s, cpu_s
        self.made += 1
        if self.made == SOCKETS_AT_BATCH:
            self._note_connections(end_s)
        if self._is_memory_due(end_s):
            self._note_memory(end_s)
        self.recorder.row("batches", self.loader, [_rounded(value) for value in row], worker=self.worker)
        self.recorder.flush_when_due(end_s)
        if self.draws is not None:
            self.draws.after_batch()

    def _note_connections(self, now_s: float) -> None:
        """Record the number of TCP connections of this process. Without any, its waits are not for the network."""
        count = tcp_connections()
        if count is not None:
            self.recorder.event("tcp_connections", now_s, 0.0, str(count))

    def _is_memory_due(self, now_s: float) -> bool:
        if self.worker < 0 or passes.get(self.loader, 0) > MOST_PASSES:
            return False
        return self.made in MEMORY_AT_BATCHES or (self.made >= 2 * self.memory_at and now_s >= self.memory_after_s)

    def _note_memory(self, now_s: float) -> None:
        """Record the memory of this worker that it shares with no other process: what one more worker would need.

        Also what the fork still shares: where that falls, the worker copies pages by writing to them.
        """
        found = own_and_shared_bytes()
        self.memory_at, self.memory_after_s = self.made, now_s + (time.monotonic() - now_s) / MEMORY_COST
        if found is not None:
            self.recorder.event("worker_memory", now_s, 0.0, str(found[0]))
            self.recorder.event("worker_shared_memory", now_s, 0.0, str(found[1]))

    def fail(self) -> None:
        self.off = True
        load_hooks.disable("timing of batches")


def note_loader(number: int) -> None:
    """Record which loader (by number) the batches belong to that this thread makes itself, without workers."""
    _timing.loader = number


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _delta(before: IoCounters | None, after: IoCounters | None) -> tuple[int | None, int | None]:
    if before is None or after is None:
        return None, None
    return after[0] - before[0], after[1] - before[1]


def _rounded(value: Any) -> Any:
    """Round to microseconds, which keeps the files small."""
    return round(value, 6) if isinstance(value, float) else value
