"""Images of different sizes in one flat tensor, and the weights with which an axis is resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["AxisWeights", "Pixels", "batch_pixels", "interleaved_pixels", "planar_pixels"]


@dataclass(frozen=True, slots=True)
class Pixels:
    """N images of different sizes in one flat uint8 tensor. Pixel (y, x, c) of image n is at
    `start[n] + y * row[n] + x * column + c * channel[n]`; the three tensors are int64 [N]."""

    flat: torch.Tensor
    start: torch.Tensor
    row: torch.Tensor
    channel: torch.Tensor
    column: int


def batch_pixels(images: torch.Tensor) -> Pixels:
    """Return a batch, uint8 [N, H, W, 3] and contiguous, as `Pixels`."""
    import torch

    count, height, width, _ = images.shape
    ones = torch.ones(count, dtype=torch.int64, device=images.device)
    start = torch.arange(count, device=images.device) * (height * width * 3)
    return Pixels(images.reshape(-1), start, ones * (width * 3), ones, 3)


def planar_pixels(images: Sequence[torch.Tensor]) -> Pixels:
    """Return images, each uint8 [3, H, W] on one device, as `Pixels`. They are copied next to each other."""
    import torch

    starts = [0, *accumulate(int(image.numel()) for image in images)][:-1]
    device = images[0].device

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    rows = [int(image.shape[2]) for image in images]
    planes = [int(image.shape[1]) * int(image.shape[2]) for image in images]
    flat = torch.cat([image.reshape(-1) for image in images])
    return Pixels(flat, column(starts), column(rows), column(planes), 1)


def interleaved_pixels(images: Sequence[torch.Tensor]) -> Pixels:
    """Return images, each uint8 [H, W, 3] on one device, as `Pixels`. They are copied next to each other."""
    import torch

    starts = [0, *accumulate(int(image.numel()) for image in images)][:-1]
    device = images[0].device

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    flat = torch.cat([image.reshape(-1) for image in images])
    return Pixels(flat, column(starts), column([3 * int(image.shape[1]) for image in images]), column([1] * len(images)), 3)


@dataclass(frozen=True, slots=True)
class AxisWeights:
    """The weights of one axis: output i of image n is the sum of `values[n, i, t] * pixel[starts[n, i] + t]` over taps t.

    Positions count from the image's edge. Taps beyond a filter have weight 0, and may lie outside the image.
    """

    starts: torch.Tensor  # int32 [N, count]
    values: torch.Tensor  # int32 [N, count, taps]
    last: torch.Tensor  # int32 [N] the last position inside the box
