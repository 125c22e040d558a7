"""Decoding by nvJPEG through torchvision: any baseline JPEG, whole images, then crop and resize on the GPU.

nvJPEG's inverse transform and chroma upsampling are its own, so its pixels are not those of the CPU kernel (`is_exact` is
False). Crop, resize and flip are exact on what it decoded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace._native import encode_jpeg
from headrace.gpu.resampling.decoders import Decoded, Place, runtime_errors
from headrace.gpu.resampling.pixels import planar_pixels
from headrace.gpu.resampling.resample import filter_refusal, resample
from headrace.system.text.foreign_errors import first_line

if TYPE_CHECKING:
    import torch

__all__ = ["NvjpegDecoder", "available"]

MOST_BYTES = 1 << 30
"""Decode so many images at a time that their pixels take at most this much of the GPU's memory."""


def available(device: str, filters: frozenset[str]) -> str | None:
    """Return why torchvision cannot decode on a device for crops that are resized by these filters, or None."""
    if (reason := filter_refusal(filters)) is not None:
        return reason
    if importlib.util.find_spec("torchvision") is None:
        return "torchvision is not installed"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    from torchvision import io

    if not hasattr(io, "decode_jpeg"):
        return "this torchvision has no decode_jpeg"
    try:
        probe = torch.frombuffer(bytearray(encode_jpeg(bytes(192), 8, 8, 50, 8)), dtype=torch.uint8)
        io.decode_jpeg([probe], mode=io.ImageReadMode.RGB, device=device)
    except (RuntimeError, TypeError, ValueError) as error:
        return first_line(error)
    return None


class NvjpegDecoder:
    """torchvision's batch decoder on one GPU, behind the seam of `headrace.gpu.resampling.decoders`."""

    name = "nvJPEG through torchvision"
    is_exact = False

    def __init__(self, device: str, size: tuple[int, int], filters: frozenset[str]) -> None:
        """size: height and width of the output. filters: at most one name of `FILTERS`; none means bilinear."""
        self._device, self._size = device, size
        self._filter = next(iter(filters), "bilinear")

    def decode(self, files: Sequence[bytes], places: Sequence[Place]) -> Decoded:
        """Decode the files whole, then cut the crops. Raises RuntimeError for a file that nvJPEG does not decode."""
        import torch

        parts = []
        for part in _parts(places):
            with runtime_errors():
                images = self._images(files[part])
            parts.append(resample(planar_pixels(images), places[part], self._size, self._filter))
        return Decoded(parts[0] if len(parts) == 1 else torch.cat(parts), [0] * len(files))

    def _images(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        """Return the whole images, each uint8 [3, H, W] on the device."""
        import torch
        from torchvision import io

        data = [torch.from_numpy(np.frombuffer(file, dtype=np.uint8).copy()) for file in files]
        images: list[torch.Tensor] = io.decode_jpeg(data, mode=io.ImageReadMode.RGB, device=self._device)
        return images


def _parts(places: Sequence[Place]) -> Iterator[slice]:
    """Yield ranges of images whose pixels fit in MOST_BYTES, as far as the boxes tell; one image always fits."""
    first, total = 0, 0
    for number, place in enumerate(places):
        size = 3 * (place.box[0] + place.box[2]) * (place.box[1] + place.box[3])
        if total and total + size > MOST_BYTES:
            yield slice(first, number)
            first, total = number, 0
        total += size
    if first < len(places) or not places:
        yield slice(first, len(places))
