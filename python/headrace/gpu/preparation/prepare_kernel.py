"""The Triton kernel of `headrace.gpu.preparation.prepare`: one read of the bytes, one write of the batch."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from headrace.gpu.preparation.batch_steps import Erase, Mix

__all__ = ["prepare_kernel", "prepare_triton"]

BLOCK = 1024
"""Values of one Triton program, a power of two: eight for each thread of four warps."""


@triton.jit  # type: ignore[untyped-decorator]
def _value(  # type: ignore[no-untyped-def]
    images, table, flips, boxes, filling, image, element, height, width, mask, FLIP: tl.constexpr, ERASE: tl.constexpr
):
    """Return the values of some elements of an image: looked up, flipped, erased."""
    channel = element % 3
    pixel = element // 3
    y = pixel // width
    x = pixel - y * width
    at = x
    if FLIP:
        at = tl.where(tl.load(flips + image) != 0, width - 1 - x, x)
    byte = tl.load(images + image * height * width * 3 + (y * width + at) * 3 + channel, mask=mask, other=0)
    value = tl.load(table + channel * 256 + byte.to(tl.int32), mask=mask, other=0)
    if ERASE:
        top = tl.load(boxes + image * 4)
        left = tl.load(boxes + image * 4 + 1)
        inside = (y >= top) & (y < top + tl.load(boxes + image * 4 + 2))
        inside = inside & (x >= left) & (x < left + tl.load(boxes + image * 4 + 3))
        value = tl.where(inside, tl.load(filling + channel), value)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def prepare_kernel(  # type: ignore[no-untyped-def]
    images,
    out,
    table,
    flips,
    boxes,
    filling,
    share,
    other_share,
    top,
    bottom,
    left,
    right,
    count,
    height,
    width,
    FLIP: tl.constexpr,
    ERASE: tl.constexpr,
    MIX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write BLOCK values of one image. MIX: 0 neither, 1 MixUp, 2 CutMix."""
    image = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = element < height * width * 3
    value = _value(images, table, flips, boxes, filling, image, element, height, width, mask, FLIP, ERASE)
    if MIX != 0:
        partner = (image + count - 1) % count
        other = _value(images, table, flips, boxes, filling, partner, element, height, width, mask, FLIP, ERASE)
        if MIX == 1:
            kind = value.dtype
            first = (other.to(tl.float32) * other_share).to(kind).to(tl.float32)
            second = (value.to(tl.float32) * share).to(kind).to(tl.float32)
            value = (first + second).to(kind)
        else:
            y = element // 3 // width
            x = element // 3 - y * width
            value = tl.where((y >= top) & (y < bottom) & (x >= left) & (x < right), other, value)
    tl.store(out + image * height * width * 3 + element, value, mask=mask)


def prepare_triton(
    images: torch.Tensor,
    table: torch.Tensor | None,
    flips: torch.Tensor | None,
    erase: Erase | None,
    mix: Mix | None,
) -> torch.Tensor:
    """Prepare a batch by one Triton kernel, with the same arguments and values as `prepare`."""
    count, height, width, _ = images.shape
    device = images.device
    if table is None:
        table = torch.arange(256, dtype=torch.uint8, device=device).repeat(3, 1)
    out = torch.empty(images.shape, dtype=table.dtype, device=device)
    boxes = filling = images  # not read
    if erase is not None:
        drawn = torch.tensor([box or (0, 0, 0, 0) for box in erase.boxes], dtype=torch.int32)
        boxes = drawn.to(device, non_blocking=True)
        filling = torch.tensor(erase.values).to(table.dtype).to(device, non_blocking=True)
    kind = 0 if mix is None else (1 if mix.rectangle is None else 2)
    share = 1.0 if mix is None else mix.share
    rectangle = (0, 0, 0, 0) if mix is None or mix.rectangle is None else mix.rectangle
    grid: Any = (triton.cdiv(height * width * 3, BLOCK), count)
    prepare_kernel[grid](
        images,
        out,
        table,
        images if flips is None else flips.to(torch.uint8),
        boxes,
        filling,
        share,
        1.0 - share,
        *rectangle,
        count,
        height,
        width,
        FLIP=flips is not None,
        ERASE=erase is not None,
        MIX=kind,
        BLOCK=BLOCK,
        enable_fp_fusion=False,  # MixUp's products are rounded before they are added, as torch does
    )
    return out.permute(0, 3, 1, 2)
