"""The Triton kernel of resampling. Imported only where Triton is; its torch twin gives the same result.

Triton reads the source of these functions: they hold no more than its language has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from headrace.gpu.resampling.pixels import AxisWeights, Pixels

__all__ = ["resample_kernel", "resample_triton"]

BLOCK = 256
"""Output pixels of one program: a power of two. Two warps' worth of lanes hide the loads of each other."""


@triton.jit
def _tap(sum0, sum1, sum2, at, channel, weight, mask):  # type: ignore[no-untyped-def]
    """Add weight × the three values of a pixel to three sums."""
    sum0 += tl.load(at, mask=mask, other=0).to(tl.int32) * weight
    sum1 += tl.load(at + channel, mask=mask, other=0).to(tl.int32) * weight
    sum2 += tl.load(at + 2 * channel, mask=mask, other=0).to(tl.int32) * weight
    return sum0, sum1, sum2


@triton.jit
def _round(value):  # type: ignore[no-untyped-def]
    """Return a sum of weights of 22 fraction bits as a pixel, 0 to 255."""
    return tl.minimum(tl.maximum(value >> 22, 0), 255)


@triton.jit  # type: ignore[untyped-decorator]
def _two_passes(  # type: ignore[no-untyped-def]
    base,
    plane,
    outer_start,
    outer_last,
    outer_step,
    outer_weights,
    outer_taps,
    inner_start,
    inner_last,
    inner_step,
    inner_weights,
    inner_taps,
    mask,
    BLOCK: tl.constexpr,
):
    """Return the three sums of each output pixel: the inner pass is rounded to 8 bits, then summed by the outer one."""
    half = tl.full([BLOCK], 1 << 21, tl.int32)
    red, green, blue = half, half, half
    for outer in range(outer_taps):
        line = base + tl.minimum(outer_start + outer, outer_last).to(tl.int64) * outer_step
        sum0, sum1, sum2 = half, half, half
        for inner in range(inner_taps):
            at = line + tl.minimum(inner_start + inner, inner_last).to(tl.int64) * inner_step
            weight = tl.load(inner_weights + inner, mask=mask, other=0)
            sum0, sum1, sum2 = _tap(sum0, sum1, sum2, at, plane, weight, mask)
        weight = tl.load(outer_weights + outer, mask=mask, other=0)
        red += _round(sum0) * weight
        green += _round(sum1) * weight
        blue += _round(sum2) * weight
    return red, green, blue


@triton.jit  # type: ignore[untyped-decorator]
def resample_kernel(  # type: ignore[no-untyped-def]
    flat,
    out,
    start,
    row,
    channel,
    column,
    row_starts,
    row_values,
    row_last,
    column_starts,
    column_values,
    column_last,
    vertical_first,
    height,
    width,
    row_taps,
    column_taps,
    BLOCK: tl.constexpr,
):
    """Make BLOCK output pixels of one image, the passes in Pillow's order."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < height * width
    y = pixel // width
    x = pixel - y * width
    base = flat + tl.load(start + image)
    row_step = tl.load(row + image)
    plane = tl.load(channel + image)
    top = tl.load(row_starts + image * height + y, mask=mask, other=0)
    left = tl.load(column_starts + image * width + x, mask=mask, other=0)
    bottom = tl.load(row_last + image)
    right = tl.load(column_last + image)
    rows = row_values + (image * height + y) * row_taps
    columns = column_values + (image * width + x) * column_taps
    if tl.load(vertical_first + image) != 0:
        red, green, blue = _two_passes(
            base, plane, left, right, column, columns, column_taps, top, bottom, row_step, rows, row_taps, mask, BLOCK
        )
    else:
        red, green, blue = _two_passes(
            base, plane, top, bottom, row_step, rows, row_taps, left, right, column, columns, column_taps, mask, BLOCK
        )
    to = out + (image * height * width + pixel) * 3
    tl.store(to, _round(red).to(tl.uint8), mask=mask)
    tl.store(to + 1, _round(green).to(tl.uint8), mask=mask)
    tl.store(to + 2, _round(blue).to(tl.uint8), mask=mask)


def resample_triton(
    pixels: Pixels, rows: AxisWeights, columns: AxisWeights, vertical_first: Sequence[bool], size: tuple[int, int]
) -> torch.Tensor:
    """Return the crops of all images, uint8 [N, H, W, 3], by one kernel."""
    (height, width), count = size, len(vertical_first)
    device = pixels.flat.device
    out = torch.empty((count, height, width, 3), dtype=torch.uint8, device=device)
    first = torch.tensor(vertical_first, dtype=torch.uint8).to(device, non_blocking=True)
    grid: Any = (triton.cdiv(height * width, BLOCK), count)
    resample_kernel[grid](
        pixels.flat,
        out,
        pixels.start,
        pixels.row,
        pixels.channel,
        pixels.column,
        rows.starts,
        rows.values,
        rows.last,
        columns.starts,
        columns.values,
        columns.last,
        first,
        height,
        width,
        rows.values.shape[2],
        columns.values.shape[2],
        BLOCK=BLOCK,
        enable_fp_fusion=False,  # integers only; without it Triton warns of its default
    )
    return out
