"""How a model is optimised: learning rate over time, parameter groups, optimizer. Numbers carry their source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Recipe", "learning_rate", "make_optimizer"]


_SHARES = ("momentum", "label_smoothing", "average")  # from 0 to below 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """The ingredients. `learning_rate` is for a global batch of 256 and scales linearly with it (Goyal et al. 2017).

    Defaults: NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5 (0.256 per 256, momentum 0.875, weight decay 2**-15,
    label smoothing 0.1, cosine after a linear warm-up, no decay of norms and biases).
    """

    learning_rate: float = 0.256
    momentum: float = 0.875
    weight_decay: float = 2.0**-15
    label_smoothing: float = 0.1
    warmup_epochs: float | None = None  # None: a tenth of the run, at most 5
    mixup: float = 0.0  # alpha; 0: off
    cutmix: float = 0.0
    average: float = 0.0  # decay of the moving average of the weights; 0: off
    clip_norm: float = 0.0  # largest norm of the gradients; 0: off
    accumulate: int = 1  # batches whose gradients are added before the optimizer moves

    def __post_init__(self) -> None:
        for name in (*_SHARES, "learning_rate", "weight_decay", "mixup", "cutmix", "clip_norm"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{name.replace('_', ' ')} must be 0 or more, not {value}")
        for name in _SHARES:
            if getattr(self, name) >= 1:
                raise UsageError(f"{name.replace('_', ' ')} must be below 1, not {getattr(self, name)}")
        if self.warmup_epochs is not None and self.warmup_epochs < 0:
            raise UsageError(f"warm-up must be 0 epochs or more, not {self.warmup_epochs}")
        if self.accumulate < 1:
            raise UsageError(f"accumulate must be at least 1, not {self.accumulate}")

    def warmup_steps(self, epochs: int, steps_per_epoch: int) -> int:
        """Steps of linear warm-up."""
        chosen = min(5.0, epochs / 10) if self.warmup_epochs is None else self.warmup_epochs
        return round(chosen * steps_per_epoch)


def learning_rate(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Linear from 0 to `peak` over the warm-up, then a half cosine to 0 at `total_steps`; a function of the step alone."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * peak * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimizer(model: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum; weights of layers decay, norms and biases (one-dimensional) do not."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    nesterov = recipe.momentum > 0
    optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.0, momentum=recipe.momentum, nesterov=nesterov, fused=fused)
    return optimizer
