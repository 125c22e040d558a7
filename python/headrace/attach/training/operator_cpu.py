"""Measure the useful CPU time of PyTorch's operators, without spinning, where the training process makes batches itself.

With several threads and too few free cores, each operator waits for a thread that has no core, and the waiting threads spin:
they use CPU without working. The cheapest calls of an operator met no such wait, so they tell its useful CPU time. Measured in
a few batches, once, and only if the batches before show the signs. The operators and their results stay as they are.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from headrace.attach.record.recorder import Recorder

__all__ = ["OperatorCpu"]

AFTER_BATCHES = 3
GIVE_UP_BATCH = 400
BATCHES = 6
"""Measure this many batches. A first result is written after `FIRST_RESULT`."""

FIRST_RESULT = 2

POOL_SHARE = 0.25
"""Measure only if other threads use at least this share of the CPU time of making a batch."""

QUEUE_SHARE = 0.15
"""Measure only if making a batch waits for a core for at least this share of the time."""

CALL_COST_S = 3e-6
"""Seconds that measuring adds to each operator call; they are subtracted. 3 to 4 µs on the development machine (Zen 5)."""


class OperatorCpu:
    """Follows the batches that the training process makes, until the measurement is done or found unnecessary (`done`)."""

    def __init__(self, recorder: Recorder) -> None:
        self.done = False
        self._recorder = recorder
        self._seen = self._measured = 0
        self._wall_s = self._cpu_s = self._pool_s = self._queue_s = 0.0
        self._wanted = False
        self._mode: Any = None
        self._entered = False
        self._batch_cpu_s = 0.0
        self._calls: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Start measuring operators if this batch is to be measured. Called before a batch is made."""
        if self._wanted and not self.done:
            if self._mode is None:
                self._mode = _timing_mode(self._calls)
            self._mode.__enter__()
            self._entered = True

    def leave(self) -> None:
        """Stop measuring operators. Called after a batch was made, or failed."""
        if self._entered:
            self._entered = False
            self._mode.__exit__(None, None, None)

    def end(self, wall_s: float, cpu_s: float, pool_s: float, queue_s: float | None) -> None:
        """Count a batch: its wall time, the CPU time of its thread and of the other threads, and its wait for a core."""
        self._seen += 1
        if self._wanted:
            self._measured += 1
            self._batch_cpu_s += cpu_s
            if self._measured in (FIRST_RESULT, BATCHES):
                self._write()
            self.done = self._measured >= BATCHES
            return
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        self._pool_s += pool_s
        self._queue_s += queue_s or 0.0
        spins = self._pool_s >= POOL_SHARE * (self._cpu_s + self._pool_s) and self._queue_s >= QUEUE_SHARE * self._wall_s
        self._wanted = self._seen >= AFTER_BATCHES and spins and sys.modules["torch"].get_num_threads() > 1
        self.done = self._seen >= GIVE_UP_BATCH

    def _write(self) -> None:
        """Record the useful CPU seconds per batch: at least, and at most, if every thread worked as long as the first one."""
        threads = sys.modules["torch"].get_num_threads()
        calls = sum(map(len, self._calls.values()))
        spent_s = sum(map(sum, self._calls.values()))
        least_s = sum(len(spent) * min(spent) for spent in self._calls.values())
        rest_s = max(0.0, self._batch_cpu_s - spent_s)  # in Python, Pillow, and this measurement
        rest_s = max(0.5 * rest_s, rest_s - calls * CALL_COST_S)
        values = {
            "low_s": round((rest_s + least_s) / self._measured, 6),
            "high_s": round((rest_s + least_s * threads) / self._measured, 6),
            "batches": self._measured,
            "calls": calls,
        }
        self._recorder.event("operator_cpu", time.monotonic(), 0.0, json.dumps(values))


def _timing_mode(calls: dict[str, list[float]]) -> Any:
    """Return a context in which the CPU time of each operator's call is appended to `calls`."""
    from torch.overrides import TorchFunctionMode

    class Timing(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            begin_s = time.thread_time()
            try:
                return function(*args, **(kwargs or {}))
            finally:
                name = getattr(function, "__qualname__", "") or str(function)
                calls.setdefault(name, []).append(time.thread_time() - begin_s)

    return Timing()
