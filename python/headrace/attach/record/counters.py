"""Counters of the current step in the main process. `steps.py` reads and resets them."""

from __future__ import annotations

__all__ = ["COUNTERS", "Counters"]


class Counters:
    """Times and counts of the current step in the training process, summed by its hooks."""

    __slots__ = (
        "backward_s", "batch_s", "collective_s", "copy_s", "find_unused", "forward_end_s", "forward_s", "gradients_s",
        "losses", "optimizer_steps", "optimizer_thread", "stepped_cpu_s", "stepped_queue_s", "stepped_s", "sync_count",
        "sync_s", "usual_steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.optimizer_thread = 0
        self.optimizer_steps = 0
        self.usual_steps = 0
        self.find_unused = False
        self.reset(0.0)

    @property
    def is_after_optimizer(self) -> bool:
        """Whether the optimizer has stepped as often as in the step before: what follows belongs to no forward or backward."""
        return 0 < self.usual_steps <= self.optimizer_steps

    def reset(self, batch_s: float) -> None:
        """Begin a step: its batch was delivered at `batch_s` (monotonic seconds)."""
        self.batch_s = batch_s
        self.usual_steps = self.optimizer_steps or self.usual_steps
        self.stepped_s = self.stepped_cpu_s = 0.0
        self.stepped_queue_s: float | None = None
        self.sync_s = self.copy_s = 0.0
        self.sync_count = 0
        self.optimizer_steps = 0
        self.losses = 0
        self.forward_end_s = self.gradients_s = 0.0
        self.forward_s: float | None = None
        self.backward_s: float | None = None
        self.collective_s: float | None = None


COUNTERS = Counters()
