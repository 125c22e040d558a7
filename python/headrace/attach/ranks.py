"""Mark the phases of a step: end of forward, last gradient, optimizer; with several ranks they name the straggler.

In a synchronous step all ranks end together, so the wall time of backward is the same on all of them. What differs is
the time from the batch to the point at which a rank's last gradient is there: from then on it waits for the others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from headrace.attach.counters import COUNTERS

__all__ = ["install"]

FIRST_PARAMETERS = 3
"""The gradients of a model's first parameters come last; a few are watched, as the very first may be unused."""


def install() -> None:
    """Register optimizer hooks and patch `DistributedDataParallel.forward`."""
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


def _gradient_is_there(_: Any) -> None:
    COUNTERS.gradients_s = time.monotonic()


def _marked_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if self not in watched:
            watched.add(self)
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            for parameter in trained[:FIRST_PARAMETERS]:
                parameter.register_hook(_gradient_is_there)
        result = original(self, *args, **options)
        COUNTERS.forward_end_s = time.monotonic()
        COUNTERS.forward_s = COUNTERS.forward_end_s - COUNTERS.batch_s
        return result

    return forward
