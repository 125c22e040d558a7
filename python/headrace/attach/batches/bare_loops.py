"""Time training loops whose batches come from unknown code, for example from threads and a queue of the script.

A step then begins and ends with the optimizer's step. The wait is the time from the end of an optimizer step to the next
forward pass, without waits for the device: in that time the script waits for a batch or makes one. The timing turns itself off
at the first batch of a known loader.
"""

from __future__ import annotations

import threading
from typing import Any

from headrace.attach.batches.steps import StepRecorder
from headrace.attach.record import load_hooks, stacks
from headrace.attach.record.counters import COUNTERS

__all__ = ["install"]

FIRST_STEPS = 3
"""Start timing the loop after this many optimizer steps without a batch of a known loader."""


def install(step_recorder: StepRecorder) -> None:
    """Register a hook on optimizer steps, which starts timing the loop if no known loader delivers its batches."""
    from torch.optim import optimizer

    optimizer.register_optimizer_step_post_hook(_BareLoop(step_recorder).after_optimizer)


class _Source:
    """A stand-in for the unknown loader and its iterators."""


class _BareLoop:
    """The timing of one process. `_optimizer`: the id of the first optimizer; the steps of others do not count."""

    def __init__(self, step_recorder: StepRecorder) -> None:
        self._step_recorder = step_recorder
        self._session = -1
        self._begin()

    def _begin(self) -> None:
        self._session = self._step_recorder.session
        self._off = False
        self._steps = 0
        self._optimizer: int | None = None
        self._source = _Source()
        self._hook: Any = None
        self._current: Any = None
        self._start_recorded = False

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """End a step after an optimizer's step."""
        step_recorder = self._step_recorder
        if step_recorder.off:
            return
        try:
            if self._session != step_recorder.session:
                self._begin()
            if not self._off and not self._is_fed() and self._is_first(optimizer):
                self._steps += 1
                if self._steps >= FIRST_STEPS:
                    self._end_step()
        except Exception:
            self._off = True
            load_hooks.disable("timing of loops without a loader")

    def _is_fed(self) -> bool:
        """Return whether a known loader has delivered a batch. Its own steps are then recorded."""
        self._off = self._off or self._step_recorder.has_batch
        return self._off

    def _is_first(self, optimizer: Any) -> bool:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        return self._optimizer == id(optimizer)

    def _end_step(self) -> None:
        """End the step, and begin the wait of the next step."""
        from torch.nn.modules import module

        if self._current is None:
            self._step_recorder.number(self._source, self._source, _describe, family="none")
        self._current = self._step_recorder.before_next(self._source)
        stacks.unmark()  # no loader's `next()` runs now
        self._thread = threading.get_ident()
        self._sync = COUNTERS.sync_s, COUNTERS.sync_count
        self._copy_s = COUNTERS.copy_s
        if self._hook is None:
            self._hook = module.register_module_forward_pre_hook(self._forward)

    def _forward(self, module: Any, inputs: Any) -> None:
        """End the wait at the first forward pass of a model after the optimizer step, and remove this hook.

        Modules without weights do not count: transforms are such modules.
        """
        try:
            in_training = threading.get_ident() == self._thread and next(module.parameters(), None) is not None
            if in_training and self._hook is not None:
                self._hook.remove()
                self._hook = None
                self._end_wait(inputs)
        except Exception:
            self._off = True
            load_hooks.disable("timing of loops without a loader")

    def _end_wait(self, inputs: Any) -> None:
        current, step_recorder = self._current, self._step_recorder
        waited_s, waits = COUNTERS.sync_s - self._sync[0], COUNTERS.sync_count - self._sync[1]
        device_s = waited_s + COUNTERS.copy_s - self._copy_s
        step_recorder.has_batch = self._start_recorded  # the start of the job is recorded once
        step_recorder.after_next(current, inputs)
        step_recorder.has_batch, self._start_recorded = False, True  # no known loader has delivered a batch
        # A wait for the device belongs to the step: it waits for results of the step before, or for the copy of the batch.
        current.wait_s = max(0.0, current.wait_s - device_s)
        current.end_s = current.start_s + current.wait_s
        COUNTERS.sync_s, COUNTERS.sync_count = waited_s, waits


def _describe(_: Any) -> dict[str, Any]:
    return {"num_workers": 0, "batch_size": None}
