"""Time training loops whose batches come from code that nobody knows: threads and a queue of the script's own, for example.

Steps then lie between the optimizer's. What is taken for waiting is the time from the end of one to the next forward pass,
but for waits for the device: nothing overlaps with what the script does there, whether it waits for a batch or makes it.
Only where no known loader feeds the training: one batch from such a loader, and this is off.
"""

from __future__ import annotations

import threading
from typing import Any

from headrace.attach import load_hooks
from headrace.attach.counters import COUNTERS
from headrace.attach.steps import StepRecorder

__all__ = ["install"]

FIRST_STEPS = 3
"""Optimizer steps without a batch of a known loader, after which there is none."""


def install(step_recorder: StepRecorder) -> None:
    """StepRecorder optimizer steps."""
    from torch.optim import optimizer

    optimizer.register_optimizer_step_post_hook(_BareLoop(step_recorder).after_optimizer)


class _Source:
    """Stands for the unknown loader, and for the passes over it."""


class _BareLoop:
    """One process. `_optimizer`: the one whose steps count, where there are several."""

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
        self._told = False

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has taken a step."""
        step_recorder = self._step_recorder
        if step_recorder.off:
            return
        try:
            if self._session != step_recorder.session:
                self._begin()
            if not self._off and not self._is_fed() and self._is_first(optimizer):
                self._steps += 1
                if self._steps >= FIRST_STEPS:
                    self._open()
        except Exception:
            self._off = True
            load_hooks.disable("timing of loops without a loader")

    def _is_fed(self) -> bool:
        """Whether a known loader has given a batch: then its steps are those that count."""
        self._off = self._off or self._step_recorder.has_batch
        return self._off

    def _is_first(self, optimizer: Any) -> bool:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        return self._optimizer == id(optimizer)

    def _open(self) -> None:
        """A step ends, and the wait of the next one begins."""
        from torch.nn.modules import module

        if self._current is None:
            self._step_recorder.number(self._source, self._source, _describe, family="none")
        self._current = self._step_recorder.before_next(self._source)
        self._thread = threading.get_ident()
        self._sync = COUNTERS.sync_s, COUNTERS.sync_count
        self._copy_s = COUNTERS.copy_s
        if self._hook is None:
            self._hook = module.register_module_forward_pre_hook(self._forward)

    def _forward(self, module: Any, inputs: Any) -> None:
        """The first forward pass of a model after the optimizer: the batch is there. Transforms are modules without weights.

        Once: the hook goes as soon as it has seen one.
        """
        try:
            in_training = threading.get_ident() == self._thread and next(module.parameters(), None) is not None
            if in_training and self._hook is not None:
                self._hook.remove()
                self._hook = None
                self._take(inputs)
        except Exception:
            self._off = True
            load_hooks.disable("timing of loops without a loader")

    def _take(self, inputs: Any) -> None:
        current, step_recorder = self._current, self._step_recorder
        waited_s, waits = COUNTERS.sync_s - self._sync[0], COUNTERS.sync_count - self._sync[1]
        device_s = waited_s + COUNTERS.copy_s - self._copy_s
        step_recorder.has_batch = self._told  # the start of the job is told once
        step_recorder.after_next(current, inputs)
        step_recorder.has_batch, self._told = False, True  # no known loader has given a batch
        # Waits for the device are the step's own: of the results of the one before, or of the copy of a batch that is there.
        current.wait_s = max(0.0, current.wait_s - device_s)
        current.end_s = current.start_s + current.wait_s
        COUNTERS.sync_s, COUNTERS.sync_count = waited_s, waits


def _describe(_: Any) -> dict[str, Any]:
    return {"num_workers": 0, "batch_size": None}
