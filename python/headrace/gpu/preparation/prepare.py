"""The last steps of a batch on its device, in one pass: flip, values, RandomErasing, and MixUp or CutMix.

`prepare` runs one Triton kernel where Triton runs, and the torch twin elsewhere. Values come from the CPU kernel's table, so a
batch is bit for bit the CPU's on every device. MixUp's arithmetic is torchvision's: each product and the sum are rounded to the
batch's dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.gpu.preparation.batch_steps import Erase, Mix
from headrace.gpu.preparation.triton_present import runs_triton

if TYPE_CHECKING:
    import torch

__all__ = ["prepare", "prepare_torch"]


def prepare(
    images: torch.Tensor,
    table: torch.Tensor | None,
    *,
    flips: torch.Tensor | None = None,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> torch.Tensor:
    """Return a batch ready for training, [N, 3, H, W] over channels-last memory.

    images: uint8 [N, H, W, 3], contiguous. table: [3, 256] of the output's dtype, the value of each byte for R, G and B; None
    leaves uint8. flips: bool [N], images to flip from left to right. erase, mix: as drawn.

    Example: `prepare(images, table, mix=Mix(0.7))`.
    """
    if runs_triton(images.device):
        from headrace.gpu.preparation.prepare_kernel import prepare_triton

        return prepare_triton(images, table, flips, erase, mix)
    return prepare_torch(images, table, flips, erase, mix)


def prepare_torch(
    images: torch.Tensor,
    table: torch.Tensor | None,
    flips: torch.Tensor | None = None,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> torch.Tensor:
    """Prepare a batch in torch, with the same arguments and values as `prepare`. `images` stay unchanged."""
    import torch

    if flips is not None:
        images = torch.where(flips.view(-1, 1, 1, 1), images.flip(2), images)
    if table is not None:
        out = torch.empty(images.shape, dtype=table.dtype, device=images.device)
        for channel in range(3):
            out[..., channel] = table[channel][images[..., channel].int()]
    else:
        out = images.clone() if erase is not None or mix is not None else images
    if erase is not None:
        filling = torch.tensor(erase.values, device=out.device).to(out.dtype)
        for image, box in zip(out, erase.boxes, strict=True):
            if box is not None:
                top, left, height, width = box
                image[top : top + height, left : left + width] = filling
    if mix is not None and mix.rectangle is None:
        out = out.roll(1, 0).mul_(1.0 - mix.share).add_(out.mul(mix.share))
    elif mix is not None and mix.rectangle is not None:
        top, bottom, left, right = mix.rectangle
        out[:, top:bottom, left:right] = out[:, top:bottom, left:right].roll(1, 0)
    return out.permute(0, 3, 1, 2)
