"""A model for tests of several ranks: without batch normalisation, so that a batch's parts give the whole's gradients."""

from __future__ import annotations

from torch import nn


def make(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(8 * 16, num_classes)
    )
