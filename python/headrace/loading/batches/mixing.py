"""MixUp and CutMix: the arithmetic on a batch. The partner of an image is its neighbour: the batch rolled by one.

The loader (`batch_transforms`) and the trainer (`headrace.training.learning.mixing`) each draw share and rectangle in their own
way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Rectangle", "blend", "neighbours", "paste_rectangle"]

Rectangle = tuple[int, int, int, int]  # top, bottom, left, right, in pixels


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """Return a copy of `values` rolled by one along the batch: row n holds what was row n - 1."""
    return values.roll(1, 0)


def blend(values: torch.Tensor, share: float, *, round_once: bool = False) -> torch.Tensor:
    """Return share * values + (1 - share) * neighbours(values).

    By default each product and the sum are rounded, as in torchvision. `round_once` rounds the result only, which is more
    precise in half precision.
    """
    import torch

    if round_once:
        return torch.lerp(neighbours(values), values, share)
    return neighbours(values).mul_(1.0 - share).add_(values.mul(share))


def paste_rectangle(images: torch.Tensor, rectangle: Rectangle) -> float:
    """Replace a rectangle of each image by its neighbour's, in place. Return the share of the area that was not replaced."""
    top, bottom, left, right = rectangle
    height, width = int(images.shape[-2]), int(images.shape[-1])
    images[..., top:bottom, left:right] = neighbours(images[..., top:bottom, left:right])
    return 1.0 - (bottom - top) * (right - left) / (height * width)
