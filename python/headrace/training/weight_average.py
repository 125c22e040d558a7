"""The exponential moving average of a model's weights, which often scores better than the weights themselves."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """Keeps `model`: the average of what `update` has been shown. Evaluated and saved in place of the trained one."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model: nn.Module, updates: int) -> None:
        """Moves the average towards `model`; `updates` counts the optimizer's steps before this one.

        The decay starts small and grows to its value, min(decay, (1 + n) / (10 + n)) as in TensorFlow's
        ExponentialMovingAverage, so that a short run is not dominated by its random beginning. Statistics of
        batch normalisation are averaged too, counters copied.
        """
        import torch

        decay = min(self.decay, (1 + updates) / (10 + updates))
        kept, shown = self.model.state_dict(), model.state_dict()
        floats = [name for name, value in kept.items() if value.is_floating_point()]
        with torch.no_grad():
            torch._foreach_lerp_([kept[name] for name in floats], [shown[name] for name in floats], 1 - decay)
            for name in kept.keys() - set(floats):
                kept[name].copy_(shown[name])
