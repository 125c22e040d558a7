"""Affine sampling of uint8 images of one size, on any device, bit for bit as Pillow and the CPU kernel do it.

Arguments are those of `headrace.gpu.augmentation.colour_operations`. A row of `numbers` holds the map from output points to
source points (a, b, c, d, e, f: x' = a x + b y + c, y' = d x + e y + f), the fill colour (R, G, B), then any number of edges
(p, q, r): output points with p x + q y + r < 0 take the fill colour. The arithmetic is that of `crates/headrace-core/src/warp`:
bilinear in double precision; nearest in 16.16 fixed point, or by adding doubles where the map has no rotation or shear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.gpu.augmentation.colour_operations import Numbers, each

if TYPE_CHECKING:
    import torch

__all__ = ["FILL", "bilinear", "is_straight", "nearest"]

MAP = slice(0, 6)
FILL = slice(6, 9)
"""Columns of `numbers` with the fill colour; the edges follow."""


def is_straight(numbers: list[float]) -> bool:
    """Return whether a map (a row of `numbers`) has no rotation and no shear: b and d are 0."""
    return numbers[1] == 0.0 and numbers[3] == 0.0


def bilinear(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images resampled by the maps in `numbers`, bilinearly: values are truncated to whole numbers."""
    import torch

    height, width = images.shape[1:3]
    a, b, c, d, e, f = (each(numbers[:, at], images.device).view(-1, 1, 1) for at in range(6))
    x = torch.arange(width, dtype=torch.float64, device=images.device).view(1, 1, -1) + 0.5
    y = torch.arange(height, dtype=torch.float64, device=images.device).view(1, -1, 1) + 0.5
    from_x, from_y = a * x + b * y + c, d * x + e * y + f
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    from_x, from_y = from_x - 0.5, from_y - 0.5
    column, row = from_x.floor(), from_y.floor()
    across, down = (from_x - column)[..., None], (from_y - row)[..., None]
    left, top = column.clamp_(-1, width).long(), row.clamp_(-1, height).long()

    def line(row: torch.Tensor) -> torch.Tensor:
        first, second = (_pixels(images, row, at).double() for at in (left, left + 1))
        return first + (second - first) * across

    upper = line(top)
    values = upper + (line(top + 1) - upper) * down
    return _filled(values.to(torch.uint8), inside, numbers)


def nearest(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images resampled by the maps in `numbers`, by nearest neighbour. All maps are `is_straight`, or none is."""
    if is_straight(list(numbers[0])):
        column, row = _added(images, numbers)
    else:
        column, row = _fixed_point(images, numbers)
    height, width = images.shape[1:3]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return _filled(_pixels(images, row, column), inside, numbers)


def _start(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the source x and y of the centre of the first output pixel, [N]."""
    a, b, c, d, e, f = numbers[:, MAP].T
    return c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5


def _fixed_point(images: torch.Tensor, numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the source columns and rows, int64 [N, H, W]."""
    import torch

    height, width = images.shape[1:3]
    x = torch.arange(width, device=images.device).view(1, 1, -1)
    y = torch.arange(height, device=images.device).view(1, -1, 1)
    found = []
    for start, step_x, step_y in zip(_start(numbers), numbers[:, [0, 3]].T, numbers[:, [1, 4]].T, strict=True):
        fixed = (np.floor(part * 65536.0 + 0.5).astype(np.int64) for part in (start, step_x, step_y))
        at, across, down = (each(part, images.device).view(-1, 1, 1) for part in fixed)
        found.append((at + down * y + across * x) >> 16)
    return found[0], found[1]


def _added(images: torch.Tensor, numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the source columns, int64 [N, 1, W], and rows, int64 [N, H, 1], from doubles added one after the other."""
    found = []
    for start, step, length in zip(_start(numbers), numbers[:, [0, 4]].T, (images.shape[2], images.shape[1]), strict=True):
        steps = np.repeat(step[:, None], length, axis=1)
        steps[:, 0] = start
        places = np.add.accumulate(steps, axis=1)  # in order, as Pillow adds them
        whole = np.where(places < 0.0, -1.0, np.minimum(places, length)).astype(np.int64)
        found.append(each(whole, images.device))
    return found[0][:, None, :], found[1][:, :, None]


def _pixels(images: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Return the pixels at rows and columns of each image, clamped to the image, uint8 [N, H, W, 3]."""
    import torch

    count, height, width, _ = images.shape
    first = torch.arange(count, device=images.device).view(-1, 1, 1) * (height * width)
    at = first + row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    return images.reshape(-1, 3)[at]


def _filled(values: torch.Tensor, inside: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return the values, with the fill colour outside the image and outside the edges."""
    import torch

    shown = inside & _between_edges(values, numbers)
    fill = each(numbers[:, FILL].astype(np.uint8), values.device).view(-1, 1, 1, 3)
    return torch.where(shown[..., None], values, fill)


def _between_edges(values: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return which pixels are inside all edges, bool [N, H or 1, W or 1]. An edge of three zeros cuts nothing."""
    import torch

    height, width = values.shape[1:3]
    x = torch.arange(width, device=values.device).view(1, 1, -1)
    y = torch.arange(height, dtype=torch.float64, device=values.device).view(1, -1, 1) + 0.5
    shown = torch.ones((1, 1, 1), dtype=torch.bool, device=values.device)
    for first in range(FILL.stop, numbers.shape[1], 3):
        p, q, r = (each(numbers[:, first + at], values.device).view(-1, 1, 1) for at in range(3))
        value = p * 0.5 + q * y + r  # at the first pixel of each row; it grows by p from pixel to pixel
        zero = -value / torch.where(p == 0, torch.ones_like(p), p)
        start, end = zero.ceil().clamp(0, width), (zero.floor() + 1).clamp(0, width)
        straight = (value >= 0).expand(-1, -1, width)
        shown = shown & torch.where(p > 0, x >= start, torch.where(p < 0, x < end, straight))
    return shown
