"""A model without strides, to which BlurPool cannot be added, for `--model tiny_flat:make`."""

from __future__ import annotations

from torch import nn


def make(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
