"""Mixup and CutMix on whole batches, on the device: each image is mixed with its neighbour in the batch.

Mixup: Zhang et al. 2018, arXiv 1710.09412. CutMix: Yun et al. 2019, arXiv 1905.04899. As in torchvision v2, one share is
drawn for the batch, and the partner is the batch rolled by one. Draws come from torch's CPU generator: no device sync.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["mix"]


def mix(images: torch.Tensor, labels: torch.Tensor, *, mixup: float, cutmix: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(mixed images, the partners' labels, the share of the first image); `mixup`, `cutmix`: alpha of the Beta distribution.

    With both, each batch is mixed in one of the two ways, at even chances; with neither, the share is 1. The loss is
    share * loss(labels) + (1 - share) * loss(partners' labels).
    """
    import torch

    if not mixup and not cutmix:
        return images, labels, 1.0
    partners = labels.roll(1, 0)
    cut = bool(cutmix) and (not mixup or torch.rand(()).item() < 0.5)
    alpha = cutmix if cut else mixup
    share = float(torch._sample_dirichlet(torch.tensor([alpha, alpha], dtype=torch.float64))[0])
    if not cut:
        return torch.lerp(images.roll(1, 0), images, share), partners, share
    height, width = images.shape[2:]
    top, bottom, left, right = _box(height, width, share)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images.roll(1, 0)[:, :, top:bottom, left:right]
    return mixed, partners, 1.0 - (bottom - top) * (right - left) / (height * width)


def _box(height: int, width: int, share: float) -> tuple[int, int, int, int]:
    """A rectangle of about (1 - share) of the area around a random point, cut off at the border."""
    import torch

    half = 0.5 * math.sqrt(1.0 - share)
    y, x = (torch.rand(2) * torch.tensor([height, width])).tolist()
    top, bottom = max(0, round(y - half * height)), min(height, round(y + half * height))
    left, right = max(0, round(x - half * width)), min(width, round(x + half * width))
    return top, bottom, left, right
