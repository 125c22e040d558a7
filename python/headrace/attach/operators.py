"""How much of a CPU-only step is PyTorch's operators, and how much Python between them: a profile of three steps, once.

Only where the question arises: the training thread computes on its core all the time, steps are short, and no GPU is in
use. It costs the job some 50 ms, once. Without it, a small batch could not be told from a small model.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

from headrace.attach.recorder import Recorder

__all__ = ["OperatorProfile"]

FIRST_STEP = 12
STEPS = 3
LONGEST_STEP_S = 0.1
LEAST_CPU_SHARE = 0.6
GIVE_UP_STEP = 200

OPERATOR_MARK = "::"
"""Operators are called `aten::mm` and the like; user ranges (`Optimizer.step#SGD.step`) hold Python."""


class OperatorProfile:
    """Fed with every finished step until the profile is taken or the question does not arise."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._profile: Any = None
        self._steps = 0
        self._profiled = 0
        self._compute_s = 0.0
        self._wanted = False
        self.done = False

    def batch_handed_out(self) -> None:
        """`next()` has returned: a profile that is due begins here."""
        if self._profile is None and self._steps >= FIRST_STEP and self._wanted:
            self._begin()

    def step_finished(self, compute_s: float, cpu_s: float) -> None:
        """The next `next()` is about to be called."""
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
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its messages are not the script's
        self._profile = torch.autograd.profiler.profile(use_kineto=False)
        self._began_s = time.monotonic()
        self._profile.__enter__()
        atexit.register(self.cancel)  # torch crashes when the interpreter ends within a profile

    def cancel(self) -> None:
        """Ends a profile under way without a result: the session or the process ends here."""
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
        # The share takes the place of the duration, so that the session needs no other kind of line.
        self._recorder.event("operators", self._began_s, share)
        self._recorder.event("probe", self._began_s, time.monotonic() - self._began_s)
