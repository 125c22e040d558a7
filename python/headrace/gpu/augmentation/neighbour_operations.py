"""Operations on small neighbourhoods, and flips, of uint8 images of one size, on any device, bit for bit as the CPU kernel.

Arguments are those of `headrace.gpu.augmentation.colour_operations`; the arithmetic is that of `colour/neighbours.rs` and
`colour/blend.rs` in `crates/headrace-core`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from headrace.gpu.augmentation.colour_operations import Numbers, blend, each, factor_of

if TYPE_CHECKING:
    import torch

__all__ = ["blur", "dilate", "erode", "flip_x", "flip_y", "sharpness"]


def flip_x(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images mirrored from left to right."""
    return images.flip(2)


def flip_y(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images mirrored from top to bottom."""
    return images.flip(1)


def sharpness(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with sharpness scaled by the factor `numbers[:, 0]`: 0 gives the smoothed image, 1 the same image.

    The smoothing is Pillow's SMOOTH filter, (1 1 1, 1 5 1, 1 1 1) / 13. Border pixels do not change.
    """
    if min(images.shape[1:3]) < 3:
        return images
    values = images.int()
    columns = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    inside = values[:, 1:-1, 1:-1]
    total = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * inside
    smooth = (2 * total + 13).div(26, rounding_mode="floor").float()
    out = images.clone()
    out[:, 1:-1, 1:-1] = blend(smooth, images[:, 1:-1, 1:-1], factor_of(numbers, images.device))
    return out


def dilate(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images in which each value is the largest of its 3 × 3 neighbourhood inside the image."""
    import torch

    for axis in (1, 2):
        images = _extreme(images, axis, torch.maximum)
    return images


def erode(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images in which each value is the smallest of its 3 × 3 neighbourhood inside the image."""
    import torch

    for axis in (1, 2):
        images = _extreme(images, axis, torch.minimum)
    return images


def _extreme(images: torch.Tensor, axis: int, choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return for each value the chosen one of itself and its two neighbours along an axis."""
    length = images.shape[axis]
    out = images.clone()
    for shift in (-1, 1):
        to, source = max(0, -shift), max(0, shift)
        part = out.narrow(axis, to, length - 1)
        part.copy_(choose(part, images.narrow(axis, source, length - 1)))
    return out


def blur(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images convolved with one kernel along the rows, then one along the columns. Borders are reflected.

    Sums are in single precision, in the order of the weights. The result is rounded to whole numbers, halves to even.

    numbers: the kernel's width in pixels (the same for all images), its weights along the rows, its weights along the columns.
    """
    import torch

    width = int(numbers[0, 0])
    weights = each(numbers[:, 1:].astype(np.float32), images.device)
    across = _summed(images, weights[:, :width], 2)
    down = _summed(across, weights[:, width:], 1)
    return down.round_().clamp_(0.0, 255.0).to(torch.uint8)


def _summed(images: torch.Tensor, weights: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the weighted sums along an axis, float32, of images with a reflected border."""
    import torch

    length, taps = images.shape[axis], weights.shape[1]
    places = torch.arange(-(taps // 2), length + taps // 2, device=images.device).abs()
    reflected = torch.where(places > length - 1, 2 * (length - 1) - places, places)
    padded = images.index_select(axis, reflected).float()
    total = torch.zeros(images.shape, dtype=torch.float32, device=images.device)
    for tap in range(taps):
        # Product and sum are two operations: one that did both would round once.
        total += padded.narrow(axis, tap, length) * weights[:, tap].view(-1, 1, 1, 1)
    return total
