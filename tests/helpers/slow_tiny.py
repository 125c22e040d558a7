"""A small deterministic model whose steps take a while, so that a job can be interrupted between them."""

from __future__ import annotations

import time

import torch
from torch import nn


class Slow(nn.Module):
    """The model of `tiny`, with a pause in each forward pass of training."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(8 * 16, num_classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.1)
        found: torch.Tensor = self.layers(images)
        return found


def make(num_classes: int) -> nn.Module:
    return Slow(num_classes)
