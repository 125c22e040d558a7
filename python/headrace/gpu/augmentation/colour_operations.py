"""Colour operations on uint8 images of one size, on any device, bit for bit as the CPU kernel and Pillow do them.

Each takes images [N, H, W, 3] and `numbers`: the operation's parameters, one row per image, float64 [N, k] on the host. Each
returns new images, uint8 of the same shape; an operation without parameters ignores `numbers`. The arithmetic
is that of `crates/headrace-core/src/colour`, step by step: torch rounds after every operation, and nothing here is a call that
may join two of them. Numbers are never divided by a Python number, which CUDA turns into a multiplication by the reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = [
    "OPERATIONS",
    "Numbers",
    "autocontrast",
    "blend",
    "brightness",
    "contrast",
    "each",
    "equalize",
    "factor_of",
    "grayscale",
    "hue",
    "hue_tables",
    "invert",
    "posterize",
    "saturation",
    "solarize",
]

Numbers = npt.NDArray[np.float64]  # [N, k]: the k parameters of an operation, one row per image


def each(numbers: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array with one value or row per image to `device`, without waiting for the copy."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)


def factor_of(numbers: Numbers, device: torch.device) -> torch.Tensor:
    """Return the first parameter of each image, the factor of `blend`, on `device` as float32 [N, 1, 1, 1]."""
    return each(numbers[:, 0].astype(np.float32), device).view(-1, 1, 1, 1)


def blend(degenerate: torch.Tensor, images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return `degenerate + factor * (images - degenerate)` in single precision, truncated and clipped (Pillow's Image.blend).

    degenerate: float32 that can be broadcast to `images`. factor: float32 [N, 1, 1, 1].
    """
    import torch

    values = (images.float() - degenerate).mul_(factor).add_(degenerate)
    return values.clamp_(0.0, 255.0).to(torch.uint8)


def brightness(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with brightness scaled by the factor `numbers[:, 0]`: 0 gives black, 1 the same image."""
    factor = factor_of(numbers, images.device)
    return blend(factor.new_zeros(()), images, factor)


def contrast(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with contrast scaled by the factor `numbers[:, 0]`: 0 gives the image's mean luma, 1 the same image."""
    import torch

    pixels = images.shape[1] * images.shape[2]
    total = _luma(images).sum((1, 2, 3), dtype=torch.int64)
    mean = (2 * total + pixels).div(2 * pixels, rounding_mode="floor")
    return blend(mean.float().view(-1, 1, 1, 1), images, factor_of(numbers, images.device))


def saturation(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with saturation scaled by the factor `numbers[:, 0]`: 0 gives the grey image, 1 the same image."""
    return blend(_luma(images).float(), images, factor_of(numbers, images.device))


def grayscale(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return grey images: all three channels hold the pixel's luma."""
    return _luma(images).to(images.dtype).expand(images.shape)


def _luma(images: torch.Tensor) -> torch.Tensor:
    """Return the ITU-R 601 luma in 16-bit fixed point (Pillow's `L24`), int32 [N, H, W, 1]."""
    red, green, blue = images.int().split(1, -1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def invert(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return inverted images: each value v becomes 255 - v."""
    return 255 - images


def posterize(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images in which each value keeps its `numbers[:, 0]` highest bits; the other bits are 0."""
    masks = 256 - (1 << (8 - numbers[:, 0].astype(np.int64)))
    return images & each(masks.astype(np.uint8), images.device).view(-1, 1, 1, 1)


def solarize(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images in which each value v of at least the threshold `numbers[:, 0]` (0 to 256) becomes 255 - v."""
    import torch

    threshold = each(numbers[:, 0].astype(np.int16), images.device).view(-1, 1, 1, 1)
    return torch.where(images < threshold, images, 255 - images)


def autocontrast(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images whose channels are stretched so that their darkest and lightest values become 0 and 255 (Pillow's
    ImageOps.autocontrast)."""
    import torch

    counts = _histograms(images)
    values = torch.arange(256, device=images.device)
    darkest = torch.where(counts > 0, values, 255).amin(-1, keepdim=True)
    lightest = torch.where(counts > 0, values, 0).amax(-1, keepdim=True)
    span = (lightest - darkest).double()
    scale = torch.full_like(span, 255.0) / span.clamp(min=1.0)
    stretched = values.double() * scale + (-darkest.double()) * scale
    tables = torch.where(span > 0, stretched.clamp_(0.0, 255.0).to(torch.uint8), values.to(torch.uint8))
    return _mapped(images, tables)


def equalize(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with the histogram of each channel equalized (Pillow's ImageOps.equalize)."""
    import torch

    counts = _histograms(images)
    values = torch.arange(256, device=images.device)
    lightest = torch.where(counts > 0, values, 0).amax(-1, keepdim=True)
    total = images.shape[1] * images.shape[2]
    step = (total - counts.gather(-1, lightest)).div(255, rounding_mode="floor")
    before = counts.cumsum(-1) - counts + step.div(2, rounding_mode="floor")
    spread = before.div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return _mapped(images, torch.where(step > 0, spread, values).to(torch.uint8))


def _places(images: torch.Tensor) -> torch.Tensor:
    """Return where each value stands in tables [N, 3, 256] laid flat, int32 [N, H, W, 3]."""
    import torch

    count, device = len(images), images.device
    first = 256 * torch.arange(3 * count, dtype=torch.int32, device=device).view(count, 1, 1, 3)
    return images.int() + first


def _histograms(images: torch.Tensor) -> torch.Tensor:
    """Return how often each value occurs, int64 [N, 3, 256]."""
    count = len(images)
    return _places(images).reshape(-1).bincount(minlength=768 * count).view(count, 3, 256)


def _mapped(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return each value's entry in its channel's table, uint8 [N, 3, 256]."""
    return tables.reshape(-1)[_places(images)]


def hue(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return images with the hue rotated by `numbers[:, 0]` in Pillow's 8-bit HSV, where 256 is a full turn.

    Some steps are in single precision, the others in double, as in Pillow (`Convert.c`: `rgb2hsv_row`, `hsv2rgb`).
    """
    import torch

    device = images.device
    red, green, blue = images.int().unbind(-1)
    most, least = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    angle, saturation = _to_hsv(red, green, blue, most, least)
    sectors, parts, shares = hue_tables(numbers, device)
    first = 256 * torch.arange(len(images), dtype=torch.int32, device=device).view(-1, 1, 1)
    sector, part, share = sectors[angle + first], parts[angle + first], shares[saturation]
    level = most.double()

    def rounded(kept: torch.Tensor) -> torch.Tensor:
        return (level * kept + 0.5).int()

    low = rounded(1.0 - share.double())
    falling = rounded(1.0 - (share * part).double())
    rising = rounded(1.0 - share.double() * (1.0 - part.double()))
    # Each channel runs through the same six stages, two sectors apart.
    channels = []
    for by in (0, 2, 4):
        stage = (sector - by) % 6
        lower = torch.where(stage == 4, rising, torch.where(stage == 1, falling, low))
        channels.append(torch.where((stage == 0) | (stage == 5), most, lower))
    return torch.stack(channels, -1).to(torch.uint8)


def hue_tables(numbers: Numbers, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the lookup tables of `hue`: (sectors, positions, saturations), on `device`.

    Entry 256 n + h of the first two stands for hue h (0 to 255) of image n after its rotation: the sixth of the colour circle,
    0 to 5 (int32), and the position inside that sixth, 0 to 1 (float32). saturations[s] is s / 255 (float32).
    """
    turned = (np.arange(256)[None] + numbers[:, :1].astype(np.int64)) % 256 * 6.0 / 255.0
    sextants = turned.astype(np.int64)
    sectors = each((sextants % 6).astype(np.int32).reshape(-1), device)
    parts = each((turned - sextants).astype(np.float32).reshape(-1), device)
    return sectors, parts, each((np.arange(256) / 255.0).astype(np.float32), device)


def _to_hsv(
    red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor, most: torch.Tensor, least: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hue and saturation as 8-bit values, int32."""
    import torch

    span = (most - least).float()
    divisor = torch.where(most == least, torch.ones_like(span), span)
    from_red, from_green, from_blue = ((most - value).float() / divisor for value in (red, green, blue))
    second = (2.0 + from_red.double() - from_blue.double()).float()
    third = (4.0 + from_green.double() - from_red.double()).float()
    sector = torch.where(red == most, from_blue - from_green, torch.where(green == most, second, third)).double()
    turn = sector / torch.full_like(sector, 6.0) + 1.0
    turn = turn - (turn >= 1.0).double()
    share = span / most.clamp(min=1).float()
    coloured = (most != least).int()
    return (turn.float().double() * 255.0).int() * coloured, (share.double() * 255.0).int() * coloured


OPERATIONS: dict[str, tuple[Callable[[torch.Tensor, Numbers], torch.Tensor], tuple[float, ...]]] = {
    "brightness": (brightness, (0.3, 1.7)),
    "contrast": (contrast, (0.3, 1.7)),
    "saturation": (saturation, (0.3, 1.7)),
    "hue": (hue, (31.0, 200.0)),
    "grayscale": (grayscale, ()),
    "invert": (invert, ()),
    "posterize": (posterize, (3.0, 5.0)),
    "solarize": (solarize, (100.0, 30.0)),
    "autocontrast": (autocontrast, ()),
    "equalize": (equalize, ()),
}
"""The operations by the names that `Program.split` gives them, and numbers to try each with; none if it takes none."""
