"""The exponential moving average of a model's weights, which often scores better than the weights themselves."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """Holds `model`, a copy of the trained model whose weights are a moving average of the weights given to `update`."""

    # torch.optim.swa_utils.AveragedModel is not used: it replaces the average by the weights at the first update, prefixes
    # every tensor with "module.", and averages integer counters. Checkpoints would differ in names and values. The arithmetic
    # of an update is torch's own.

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model: nn.Module, updates: int) -> None:
        """Move the average towards the weights of `model`; `updates` counts the optimizer's updates before this one.

        The decay grows from 0.1 to its value, min(decay, (1 + n) / (10 + n)) as in TensorFlow's ExponentialMovingAverage: the
        random weights of the beginning then count little in a short run. Statistics of batch normalisation are averaged too;
        integer counters are copied.
        """
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        decay = min(self.decay, (1 + updates) / (10 + updates))
        averaged, current = self.model.state_dict(), model.state_dict()
        floats = [name for name, value in averaged.items() if value.is_floating_point()]
        get_ema_multi_avg_fn(decay)([averaged[name] for name in floats], [current[name] for name in floats], None)
        for name in averaged.keys() - set(floats):
            averaged[name].copy_(current[name])
