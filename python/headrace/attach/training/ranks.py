"""Mark the phases of a step: end of forward, last gradient, optimizer. With several ranks they show the slowest rank.

All ranks end a synchronous step together, because each one waits for the others after its own last gradient. The wall time of
backward is therefore equal on all ranks. The time from the batch to the last gradient is not: the slowest rank takes longest.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from headrace.attach.record import open_step
from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.threads import run_queue_delay_s

__all__ = ["install"]

FIRST_PARAMETERS = 3
"""Watch the gradients of this many parameters from the model's start: backward reaches them last; the first may be unused."""


def install() -> None:
    """Register optimizer hooks and patch `DistributedDataParallel.forward`, to mark when the phases of a step end."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(_before_optimizer)
    optimizer.register_optimizer_step_post_hook(_after_optimizer)
    DistributedDataParallel.forward = _marked_forward(DistributedDataParallel.forward)


def _before_optimizer(*_: Any) -> None:
    if COUNTERS.gradients_s:
        COUNTERS.collective_s = (COUNTERS.collective_s or 0.0) + time.monotonic() - COUNTERS.gradients_s
        COUNTERS.backward_s = (COUNTERS.backward_s or 0.0) + COUNTERS.gradients_s - COUNTERS.forward_end_s
        COUNTERS.gradients_s = 0.0


def _after_optimizer(*_: Any) -> None:
    COUNTERS.optimizer_steps += 1
    COUNTERS.optimizer_thread = threading.get_ident()
    COUNTERS.stepped_queue_s = run_queue_delay_s()
    COUNTERS.stepped_s, COUNTERS.stepped_cpu_s = time.monotonic(), time.thread_time()
    open_step.optimizer_stepped()


def _note_gradient(_: Any) -> None:
    COUNTERS.gradients_s = time.monotonic()


def _marked_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if self not in watched:
            watched.add(self)
            COUNTERS.find_unused = bool(getattr(self, "find_unused_parameters", False))
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            for parameter in trained[:FIRST_PARAMETERS]:
                parameter.register_hook(_note_gradient)
        result = original(self, *args, **options)
        COUNTERS.forward_end_s = time.monotonic()
        COUNTERS.forward_s = COUNTERS.forward_end_s - COUNTERS.batch_s
        return result

    return forward
