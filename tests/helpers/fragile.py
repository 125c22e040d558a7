"""Models that fail on purpose, for `--model fragile:NAME`."""

from __future__ import annotations

import torch
from torch import nn

BAD_BATCHES: set[int] = set()  # forward passes in training, counted from 1, whose scores are nan
PASSES = [0]


class Fragile(nn.Module):
    """A small network with batch normalisation whose scores are nan for the batches in BAD_BATCHES."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            PASSES[0] += 1
            if PASSES[0] in BAD_BATCHES:
                images = images * float("nan")
        return self.head(self.body(images).flatten(1))


def bad_batches(num_classes: int) -> nn.Module:
    return Fragile(num_classes)


def too_many_classes(num_classes: int) -> nn.Module:
    return Fragile(num_classes + 1)


def wants_large_images(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 64), nn.Flatten(), nn.Linear(4, num_classes))


class Hungry(Fragile):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().forward(images)


def hungry(num_classes: int) -> nn.Module:
    return Hungry(num_classes)
