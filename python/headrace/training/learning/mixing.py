"""MixUp and CutMix in training: draws of share and rectangle. The arithmetic is `headrace.loading.batches.mixing`'s.

As in torchvision v2, one share is drawn for the whole batch. Draws come from torch's CPU generator: no device sync.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.loading.batches.mixing import Rectangle, blend, neighbours, paste_rectangle

if TYPE_CHECKING:
    import torch

__all__ = ["mix"]


def mix(images: torch.Tensor, labels: torch.Tensor, *, mixup: float, cutmix: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return (mixed images, labels of each image's partner, weight of the image itself, 0 to 1), by MixUp or CutMix.

    `mixup`, `cutmix`: alpha of the Beta distribution, 0 turns it off. With both, each batch is mixed in one of the two ways,
    with equal chances; with neither, the share is 1. The loss is share * loss(labels) + (1 - share) * loss(partners' labels).
    """
    import torch

    if not mixup and not cutmix:
        return images, labels, 1.0
    cut = bool(cutmix) and (not mixup or torch.rand(()).item() < 0.5)
    alpha = cutmix if cut else mixup
    share = float(torch._sample_dirichlet(torch.tensor([alpha, alpha], dtype=torch.float64))[0])
    if not cut:
        return blend(images, share, round_once=True), neighbours(labels), share
    mixed = images.clone()
    share = paste_rectangle(mixed, _rectangle(images, share))
    return mixed, neighbours(labels), share


def _rectangle(images: torch.Tensor, share: float) -> Rectangle:
    """Draw a rectangle of about (1 - share) of the area around a random point, cut off at the border."""
    import torch

    height, width = images.shape[-2:]
    half = 0.5 * math.sqrt(1.0 - share)
    y, x = (torch.rand(2) * torch.tensor([height, width])).tolist()
    top, bottom = max(0, round(y - half * height)), min(height, round(y + half * height))
    left, right = max(0, round(x - half * width)), min(width, round(x + half * width))
    return top, bottom, left, right
