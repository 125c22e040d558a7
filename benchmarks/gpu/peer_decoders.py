"""GPU decoders of other libraries, as rows of the measurement `decoders`: files in memory to uint8 crops on the device.

Their pixels are not the CPU kernel's, nor is the rounding of the resize here: only their speed is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from headrace._native import encode_jpeg
from headrace.system.text.foreign_errors import first_line

__all__ = ["PEERS", "Crops", "peer", "resized"]

Box: TypeAlias = tuple[int, int, int, int]
Crops: TypeAlias = Callable[[Sequence[bytes], Sequence[Box]], list[torch.Tensor | None]]
"""Decodes files to the boxes (x, y, width, height) of them: uint8 [3, height, width] each, None for what it does not decode."""

TOGETHER = 32
"""Crops that are resized at a time: they are padded to the largest of them."""


def peer(name: str, device: str) -> Crops | str:
    """Return what decodes by a library of `PEERS`, or why it cannot."""
    try:
        crops = PEERS[name](device)
        [probe] = crops([encode_jpeg(bytes(192), 8, 8, 50, 8)], [(0, 0, 8, 8)])
    except ImportError as error:
        return first_line(error)
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError) as error:
        return f"it does not decode a small JPEG: {first_line(error)}"
    return "it does not decode a small JPEG" if probe is None else crops


def _nvimagecodec(device: str) -> Crops:
    from nvidia import nvimgcodec as codec

    index = torch.device(device).index
    decoder = codec.Decoder(device_id=-1 if index is None else index, options=":fancy_upsampling=1")  # as libjpeg-turbo does
    params = codec.DecodeParams(apply_exif_orientation=False)

    def crops(files: Sequence[bytes], boxes: Sequence[Box]) -> list[torch.Tensor | None]:
        regions = [
            codec.CodeStream(file).get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))
            for file, (left, top, width, height) in zip(files, boxes, strict=True)
        ]
        images = decoder.decode(regions, params=params, cuda_stream=torch.cuda.current_stream(device).cuda_stream)
        found = [None if image is None else torch.from_dlpack(image).permute(2, 0, 1) for image in images]
        return [image if image is not None and len(image) == 3 else None for image in found]

    return crops


def _torchcodec(device: str) -> Crops:
    from torchcodec.decoders import decode_jpeg

    def crops(files: Sequence[bytes], boxes: Sequence[Box]) -> list[torch.Tensor | None]:
        return _cut(decode_jpeg(_tensors(files), mode="RGB", device=device), boxes)

    return crops


def _torchvision(device: str) -> Crops:
    from torchvision.io import ImageReadMode, decode_jpeg

    def crops(files: Sequence[bytes], boxes: Sequence[Box]) -> list[torch.Tensor | None]:
        return _cut(decode_jpeg(_tensors(files), mode=ImageReadMode.RGB, device=device), boxes)

    return crops


PEERS: dict[str, Callable[[str], Crops]] = {
    "nvImageCodec": _nvimagecodec,
    "nvJPEG through torchcodec": _torchcodec,
    "nvJPEG through torchvision": _torchvision,
}
"""The libraries, each with what makes a decoder on a device."""


def _tensors(files: Sequence[bytes]) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's about memory that it must not write, and does not
        return [torch.frombuffer(file, dtype=torch.uint8) for file in files]


def _cut(images: Sequence[torch.Tensor], boxes: Sequence[Box]) -> list[torch.Tensor | None]:
    """Return the boxes of whole images, without a copy."""
    pairs = zip(images, boxes, strict=True)
    return [image[:, top : top + height, left : left + width] for image, (left, top, width, height) in pairs]


def resized(crops: Sequence[torch.Tensor], flips: Sequence[bool], size: tuple[int, int]) -> torch.Tensor:
    """Return crops, uint8 [3, h, w] each, resized by antialiased bilinear and flipped: uint8 [N, 3, H, W].

    Two products of matrices for many crops at once, as image by image the launches would take longer than the work.
    """
    device, (height, width) = crops[0].device, size
    kind = torch.float16 if device.type == "cuda" else torch.float32
    out = torch.empty((len(crops), 3, height, width), dtype=torch.uint8, device=device)
    for first in range(0, len(crops), TOGETHER):
        some = crops[first : first + TOGETHER]
        heights, widths = [crop.shape[1] for crop in some], [crop.shape[2] for crop in some]
        padded = torch.zeros((len(some), 3, max(heights), max(widths)), dtype=kind, device=device)
        for at, crop in enumerate(some):
            padded[at, :, : crop.shape[1], : crop.shape[2]] = crop
        rows = _weights(heights, height, [False] * len(some), device).to(kind)
        columns = _weights(widths, width, flips[first : first + TOGETHER], device).to(kind)
        values = rows[:, None] @ padded @ columns[:, None].mT
        out[first : first + TOGETHER] = values.round_().clamp_(0, 255)
    return out


def _weights(lengths: Sequence[int], count: int, flips: Sequence[bool], device: torch.device) -> torch.Tensor:
    """Return matrices [N, count, longest] that resize axes of these lengths to `count`, backwards where flipped."""
    source = torch.tensor(lengths, device=device)[:, None, None]
    scale = source / count
    output = torch.arange(count, device=device).expand(len(lengths), -1)
    output = torch.where(torch.tensor(flips, device=device)[:, None], count - 1 - output, output)[:, :, None]
    pixel = torch.arange(max(lengths), device=device)
    far = (pixel + 0.5 - (output + 0.5) * scale).abs() / scale.clamp(min=1.0)
    values = (1.0 - far).clamp(min=0.0) * (pixel < source)
    return values / values.sum(-1, keepdim=True)
