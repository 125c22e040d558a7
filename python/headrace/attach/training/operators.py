"""Measure once, on the CPU, which share of a step PyTorch's operators take.

The rest of the step is Python code between the operators. A large rest means that the batch or the model is too small for the
cost of Python. A profile of three steps gives the share and costs the job about 50 ms. The profile is taken only if the
training thread is always on a core, steps are short, and no GPU is in use.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

from headrace.attach.record.recorder import Recorder

__all__ = ["OperatorProfile"]

FIRST_STEP = 12
STEPS = 3
LONGEST_STEP_S = 0.1
LEAST_CPU_SHARE = 0.6
GIVE_UP_STEP = 200

OPERATOR_MARK = "::"
"""Text in the names of operators (`aten::mm`). Names without it (`Optimizer.step#SGD.step`) are user ranges."""


class OperatorProfile:
    """Profiles a few steps with PyTorch's profiler, if operators may matter. `done`: the profile is taken or unnecessary."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._profile: Any = None
        self._steps = 0
        self._profiled = 0
        self._compute_s = 0.0
        self._wanted = False
        self.done = False

    def batch_handed_out(self) -> None:
        """Begin the profile if it is due. Called when `next()` has returned."""
        if self._profile is None and self._steps >= FIRST_STEP and self._wanted:
            self._begin()

    def step_finished(self, compute_s: float, cpu_s: float) -> None:
        """Count a finished step, and end the profile after enough steps. Called before the next `next()`."""
        self._steps += 1
        if self._profile is not None:
            self._profiled += 1
            self._compute_s += compute_s
            if self._profiled == STEPS:
                self._end()
            return
        self._wanted = compute_s < LONGEST_STEP_S and cpu_s > LEAST_CPU_SHARE * compute_s
        self.done = self._steps > GIVE_UP_STEP

    def _begin(self) -> None:
        import torch

        if torch.cuda.is_initialized() or torch.autograd._profiler_enabled():
            self.done = True
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # keeps the profiler's messages off the script's output
        self._profile = torch.autograd.profiler.profile(use_kineto=False)
        self._began_s = time.monotonic()
        self._profile.__enter__()
        atexit.register(self.cancel)  # torch crashes when the interpreter ends within a profile

    def cancel(self) -> None:
        """End an unfinished profile without a result, because the session or the process ends."""
        self.done = True
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)

    def _end(self) -> None:
        profile = self._profile
        self.cancel()
        atexit.unregister(self.cancel)
        operators_us = sum(event.self_cpu_time_total for event in profile.function_events if OPERATOR_MARK in event.name)
        share = min(1.0, operators_us * 1e-6 / self._compute_s)
        # The share stands in the field of the duration, so that the session needs no further kind of line.
        self._recorder.event("operators", self._began_s, share)
        self._recorder.event("probe", self._began_s, time.monotonic() - self._began_s)
