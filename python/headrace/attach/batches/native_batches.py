"""Record what the batches of `headrace.Loader` cost: time in its threads, on a core, waiting for a core, and bytes read.

The loader's own counters give images, bytes and the time of each stage; the kernel's accounting of its threads gives CPU and
queueing. Both are read at most twice a second, so one row is the mean of the batches made since the row before.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from headrace.attach.record.recorder import Recorder
from headrace.attach.record.threads import read_io

__all__ = ["NativeBatches"]

INTERVAL_S = 0.5
"""Read the counters of the loader's threads at most once in this many seconds: with 128 threads it takes about a millisecond.
"""

THREAD_NAME = b"headrace-"
"""Prefix of the names of the loader's threads (`crates/headrace-core/src/engine/mod.rs`)."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Totals at one moment. `busy_s`: time of the stages over all threads."""

    time_s: float
    images: int
    busy_s: float
    read_bytes: int
    disk_bytes: int | None
    cpu_s: float
    queue_s: float | None


class NativeBatches:
    """Records the batch cost of each `headrace.Loader` of this process. Call `after_batch` after each `next()`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._loader: int | None = None
        self._last: _Reading | None = None
        self._names: dict[str, bool] = {}

    def after_batch(self, loader: Any, number: int, items: int | None) -> None:
        """Record the mean cost of a batch since the last record, at most every `INTERVAL_S`.

        number: the loader's. items: images in a batch.
        """
        now_s = time.monotonic()
        if number != self._loader:  # the threads of another loader, such as the validation's, were at work until now
            self._loader, self._last = number, None
        if self._last is not None and now_s < self._last.time_s + INTERVAL_S:
            return
        before, self._last = self._last, self._read(loader, now_s)
        now = self._last
        if before is None or not items or now.images <= before.images or now.cpu_s < before.cpu_s:
            return  # the first reading, or the loader has started new threads
        share = items / (now.images - before.images)
        cpu_s = share * (now.cpu_s - before.cpu_s)
        queue_s = None if now.queue_s is None or before.queue_s is None else share * max(0.0, now.queue_s - before.queue_s)
        from_disk = None if now.disk_bytes is None or before.disk_bytes is None else now.disk_bytes - before.disk_bytes
        row: list[Any] = [
            before.time_s,
            round(max(share * (now.busy_s - before.busy_s), cpu_s + (queue_s or 0.0)), 6),
            items,
            round(cpu_s, 6),
            None if queue_s is None else round(queue_s, 6),
            *[None] * 4,
            round(share * (now.read_bytes - before.read_bytes)),
            None if from_disk is None else round(share * from_disk),
        ]
        self._recorder.row("batches", number, row, worker=-1)

    def _read(self, loader: Any, now_s: float) -> _Reading:
        stats, io = loader.stats(), read_io()
        busy_s = sum(stage.total_s for stage in stats.stages if stage.name != "python")
        return _Reading(now_s, stats.images, busy_s, stats.bytes_read, None if io is None else io[1], *self._thread_times())

    def _thread_times(self) -> tuple[float, float | None]:
        """Return the seconds that the loader's threads have had on a core, and waited for one (None: the kernel keeps none)."""
        cpu_ns = queue_ns = 0
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 -- pathlib would cost more than the rest
            if not self._is_native(thread):
                continue
            try:
                with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                    fields = file.read().split()
            except OSError:
                continue  # it has ended meanwhile
            cpu_ns, queue_ns = cpu_ns + int(fields[0]), queue_ns + int(fields[1])
        return cpu_ns * 1e-9, queue_ns * 1e-9 if cpu_ns else None

    def _is_native(self, thread: str) -> bool:
        if thread not in self._names:
            try:
                with open(f"/proc/self/task/{thread}/comm", "rb") as file:
                    self._names[thread] = file.read().startswith(THREAD_NAME)
            except OSError:
                return False
        return self._names[thread]
