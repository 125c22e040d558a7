"""A batch on its way: what is filled for it, and the job that fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Pending"]


@dataclass(slots=True)
class Pending:
    """A batch on its way. `indices` come from the sampler; `number` counts the batches of the pass.

    `places`: what to fill natively, one for each index; empty if the script must make the whole batch. `images`: the memory of
    each view. `job`: None while nothing is being filled; it fills the images from number `start` on.
    """

    indices: list[Any]
    number: int
    places: Sequence[Any]
    images: list[torch.Tensor] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)
    job: Any = None
    start: int = 0

    def withdraw(self) -> None:
        """Stop filling. All images are filled again later."""
        if self.job is not None:
            self.job.cancel()
        self.job, self.start = None, 0
