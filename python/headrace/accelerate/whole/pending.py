"""A batch that is being made: the indices of its items, their memory, and the native job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Pending"]


@dataclass(slots=True)
class Pending:
    """A batch that native threads make. `indices` come from the sampler; `number` counts the batches of the pass.

    `places`: for each index the file or planned item; empty if the script must make the whole batch. `images`: the tensor of
    each view. `job`: the native job that decodes the images from number `start` on; None while there is none.
    """

    indices: list[Any]
    number: int
    places: Sequence[Any]
    images: list[torch.Tensor] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)
    job: Any = None
    start: int = 0

    def withdraw(self) -> None:
        """Cancel the native job of the batch. The next job for it decodes all of its images again."""
        if self.job is not None:
            self.job.cancel()
        self.job, self.start = None, 0
