"""The Triton kernels of augmentation: blur, hue and bilinear affine sampling, one or two launches in place of torch's dozens.

Imported only where Triton is. Arguments are those of the torch twins, and pixels are bit for bit theirs: no kernel joins a
product and a sum (`enable_fp_fusion=False`), and every division is the exactly rounded one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from headrace.gpu.augmentation.affine import FILL
from headrace.gpu.augmentation.colour_operations import each, hue_tables

if TYPE_CHECKING:
    from headrace.gpu.augmentation.colour_operations import Numbers

__all__ = ["OPERATIONS", "bilinear", "bilinear_kernel", "blur", "blur_across_kernel", "blur_down_kernel", "hue", "hue_kernel"]

BLOCK = 256
"""Pixels that one Triton program processes (in the blur: channel values): a power of two, two per thread of four warps."""


@triton.jit
def _reflected(at, length):  # type: ignore[no-untyped-def]
    """Return positions inside a line whose border is reflected, without repeating the last pixel."""
    at = tl.where(at < 0, -at, at)
    return tl.where(at > length - 1, 2 * (length - 1) - at, at)


@triton.jit  # type: ignore[untyped-decorator]
def blur_across_kernel(images, out, weights, height, width, columns, taps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Convolve BLOCK values of an image along its rows, into float32. Each image has `columns` weights, horizontal first."""
    image = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = element < height * width * 3
    x = element // 3 % width
    line = images + image * height * width * 3 + element - x * 3
    weight = weights + image * columns
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(taps):
        at = _reflected(x + tap - taps // 2, width)
        total += tl.load(line + at * 3, mask=mask, other=0).to(tl.float32) * tl.load(weight + tap)
    tl.store(out + image * height * width * 3 + element, total, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def blur_down_kernel(sums, out, weights, height, width, columns, first, taps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum BLOCK values of one image along their columns, and round. Weights: from `first` of each image's `columns`."""
    image = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = width * 3
    mask = element < height * row
    y = element // row
    line = sums + image * height * row + element - y * row
    weight = weights + image * columns + first
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(taps):
        at = _reflected(y + tap - taps // 2, height)
        total += tl.load(line + at * row, mask=mask, other=0) * tl.load(weight + tap)
    # 2**23 leaves a float32 no fraction bits: the sum is rounded to a whole number, halves to even.
    whole = (total + 8388608.0) - 8388608.0
    value = tl.minimum(tl.maximum(whole, 0.0), 255.0).to(tl.int32)
    tl.store(out + image * height * row + element, value.to(tl.uint8), mask=mask)


@triton.jit
def _angle_and_saturation(red, green, blue, most, least):  # type: ignore[no-untyped-def]
    """Return hue and saturation as 8-bit values (`colour_operations.hue`)."""
    span = (most - least).to(tl.float32)
    divisor = tl.where(most == least, 1.0, span)
    from_red = tl.math.div_rn((most - red).to(tl.float32), divisor)
    from_green = tl.math.div_rn((most - green).to(tl.float32), divisor)
    from_blue = tl.math.div_rn((most - blue).to(tl.float32), divisor)
    second = (2.0 + from_red.to(tl.float64) - from_blue.to(tl.float64)).to(tl.float32)
    third = (4.0 + from_green.to(tl.float64) - from_red.to(tl.float64)).to(tl.float32)
    sector = tl.where(red == most, from_blue - from_green, tl.where(green == most, second, third)).to(tl.float64)
    turn = sector / 6.0 + 1.0
    turn = tl.where(turn >= 1.0, turn - 1.0, turn)
    share = tl.math.div_rn(span, tl.maximum(most, 1).to(tl.float32))
    angle = (turn.to(tl.float32).to(tl.float64) * 255.0).to(tl.int32)
    saturation = (share.to(tl.float64) * 255.0).to(tl.int32)
    return tl.where(most == least, 0, angle), tl.where(most == least, 0, saturation)


@triton.jit
def _channel(sector, by, most, low, falling, rising):  # type: ignore[no-untyped-def]
    """Return the values of a channel, which runs through the six stages `by` sectors later than red."""
    stage = (sector + 6 - by) % 6
    lower = tl.where(stage == 4, rising, tl.where(stage == 1, falling, low))
    return tl.where((stage == 0) | (stage == 5), most, lower).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def hue_kernel(images, out, sectors, parts, shares, pixels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Turn the hue of BLOCK pixels of one image (Triton kernel of `hue`)."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels
    place = (image * pixels + pixel) * 3
    red = tl.load(images + place, mask=mask, other=0).to(tl.int32)
    green = tl.load(images + place + 1, mask=mask, other=0).to(tl.int32)
    blue = tl.load(images + place + 2, mask=mask, other=0).to(tl.int32)
    most = tl.maximum(tl.maximum(red, green), blue)
    angle, saturation = _angle_and_saturation(red, green, blue, most, tl.minimum(tl.minimum(red, green), blue))
    sector = tl.load(sectors + image * 256 + angle)
    part = tl.load(parts + image * 256 + angle)
    share = tl.load(shares + saturation)
    level = most.to(tl.float64)
    wide = share.to(tl.float64)
    low = (level * (1.0 - wide) + 0.5).to(tl.int32)
    falling = (level * (1.0 - (share * part).to(tl.float64)) + 0.5).to(tl.int32)
    rising = (level * (1.0 - wide * (1.0 - part.to(tl.float64))) + 0.5).to(tl.int32)
    tl.store(out + place, _channel(sector, 0, most, low, falling, rising), mask=mask)
    tl.store(out + place + 1, _channel(sector, 2, most, low, falling, rising), mask=mask)
    tl.store(out + place + 2, _channel(sector, 4, most, low, falling, rising), mask=mask)


@triton.jit
def _between_edges(edges, count, column, y, width):  # type: ignore[no-untyped-def]
    """Return which pixels are inside all edges (`affine.bilinear`). column: as float64. y: of the pixels' centres."""
    shown = column >= 0.0
    for edge in range(count):
        p, _ = tl.broadcast(tl.load(edges + 3 * edge), column)
        value = p * 0.5 + tl.load(edges + 3 * edge + 1) * y + tl.load(edges + 3 * edge + 2)
        zero = -value / tl.where(p == 0.0, 1.0, p)
        start = tl.minimum(tl.maximum(tl.ceil(zero), 0.0), width)
        end = tl.minimum(tl.maximum(tl.floor(zero) + 1.0, 0.0), width)
        shown = shown & (((p > 0.0) & (column >= start)) | ((p < 0.0) & (column < end)) | ((p == 0.0) & (value >= 0.0)))
    return shown


@triton.jit  # type: ignore[untyped-decorator]
def bilinear_kernel(images, out, numbers, columns, height, width, edges, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sample BLOCK output pixels of one image. Numbers: `columns` float64 an image, as `affine` says."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < height * width
    row = pixel // width
    column = (pixel - row * width).to(tl.float64)
    own = numbers + image * columns
    x = column + 0.5
    y = row.to(tl.float64) + 0.5
    from_x = tl.load(own) * x + tl.load(own + 1) * y + tl.load(own + 2)
    from_y = tl.load(own + 3) * x + tl.load(own + 4) * y + tl.load(own + 5)
    shown = (from_x >= 0.0) & (from_x < width) & (from_y >= 0.0) & (from_y < height)
    shown = shown & _between_edges(own + 9, edges, column, y, width)
    from_x -= 0.5
    from_y -= 0.5
    across = from_x - tl.floor(from_x)
    down = from_y - tl.floor(from_y)
    left = tl.minimum(tl.maximum(tl.floor(from_x), -1.0), width).to(tl.int32)
    top = tl.minimum(tl.maximum(tl.floor(from_y), -1.0), height).to(tl.int32)
    base = images + image * height * width * 3
    above = tl.minimum(tl.maximum(top, 0), height - 1) * width
    below = tl.minimum(top + 1, height - 1) * width
    first = tl.minimum(tl.maximum(left, 0), width - 1)
    second = tl.minimum(left + 1, width - 1)
    to = out + image * height * width * 3 + pixel * 3
    for channel in tl.static_range(3):
        corner = tl.load(base + (above + first) * 3 + channel, mask=mask, other=0).to(tl.float64)
        beside = tl.load(base + (above + second) * 3 + channel, mask=mask, other=0).to(tl.float64)
        upper = corner + (beside - corner) * across
        corner = tl.load(base + (below + first) * 3 + channel, mask=mask, other=0).to(tl.float64)
        beside = tl.load(base + (below + second) * 3 + channel, mask=mask, other=0).to(tl.float64)
        lower = corner + (beside - corner) * across
        value = (upper + (lower - upper) * down).to(tl.int32)
        fill = tl.load(own + 6 + channel).to(tl.int32)
        tl.store(to + channel, tl.where(shown, value, fill).to(tl.uint8), mask=mask)


def blur(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Blur images by two Triton kernels. Same arguments and pixels as `neighbour_operations.blur`."""
    images = images.contiguous()
    count, height, width, _ = images.shape
    across = int(numbers[0, 0])
    weights = each(numbers[:, 1:].astype(np.float32), images.device)
    columns = weights.shape[1]
    sums = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    out = torch.empty_like(images)
    grid: Any = (triton.cdiv(height * width * 3, BLOCK), count)
    blur_across_kernel[grid](
        images, sums, weights, height, width, columns, across, BLOCK=BLOCK, enable_fp_fusion=False
    )  # fmt: skip
    blur_down_kernel[grid](
        sums, out, weights, height, width, columns, across, columns - across, BLOCK=BLOCK, enable_fp_fusion=False
    )  # fmt: skip
    return out


def hue(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Turn the hue of images by one Triton kernel. Same arguments and pixels as `colour_operations.hue`."""
    images = images.contiguous()
    count, height, width, _ = images.shape
    sectors, parts, shares = hue_tables(numbers, images.device)
    out = torch.empty_like(images)
    grid: Any = (triton.cdiv(height * width, BLOCK), count)
    hue_kernel[grid](images, out, sectors, parts, shares, height * width, BLOCK=BLOCK, enable_fp_fusion=False)
    return out


def bilinear(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Sample images bilinearly by one Triton kernel. Same arguments and pixels as `affine.bilinear`."""
    images = images.contiguous()
    count, height, width, _ = images.shape
    columns = numbers.shape[1]
    out = torch.empty_like(images)
    grid: Any = (triton.cdiv(height * width, BLOCK), count)
    edges = (columns - FILL.stop) // 3
    bilinear_kernel[grid](
        images, out, each(numbers, images.device), columns, height, width, edges, BLOCK=BLOCK, enable_fp_fusion=False
    )  # fmt: skip
    return out


OPERATIONS: dict[str, Callable[[torch.Tensor, Numbers], torch.Tensor]] = {"hue": hue, "blur": blur, "bilinear": bilinear}
"""The operations of augmentation that have a kernel, by the names of `augment.OPERATIONS`."""
