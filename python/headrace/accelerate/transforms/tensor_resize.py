"""Check on this machine that the native resize of uint8 tensors equals torchvision's.

torchvision's v2 gives uint8 tensors to torch where torch has a kernel with weights of 16 bits for this processor; elsewhere it
computes in float32 and rounds. The native filters whose names end in "-int16" are those kernels.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Iterator

import numpy as np
import torch

from headrace._native import decode_into

__all__ = ["resizes_tensors_alike"]

FILTERS = ("bilinear", "bicubic")

#: Sizes (width, height) before and after the compared resizes: smaller, larger, by whole and odd factors, one side only.
COMPARED_SIZES = (
    ((97, 61), (32, 32)),
    ((64, 48), (32, 24)),
    ((40, 33), (41, 90)),
    ((150, 31), (20, 31)),
    ((31, 260), (31, 24)),
    ((200, 90), (7, 60)),
)


@functools.cache
def resizes_tensors_alike(interpolation: object) -> bool:
    """Return whether the native resize equals torchvision's `resize` of uint8 tensors with antialiasing.

    `interpolation`: "bilinear" or "bicubic". False for any other.
    """
    functional = sys.modules.get("torchvision.transforms.v2.functional")
    if interpolation not in FILTERS or functional is None:
        return False
    mode = sys.modules["torchvision.transforms"].InterpolationMode(interpolation)
    for pixels, (width, height) in _examples():
        image = torch.from_numpy(pixels).permute(2, 0, 1)  # with the strides of an image that comes from Pillow
        theirs = functional.resize(image, [height, width], interpolation=mode, antialias=True)
        ours = _resized(pixels, width, height, f"{interpolation}-int16")
        if theirs.dtype != torch.uint8 or not np.array_equal(theirs.permute(1, 2, 0).numpy(), ours):
            return False
    return True


def _examples() -> Iterator[tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], tuple[int, int]]]:
    """Yield images [H, W, 3] of random values, and the (width, height) to which they are resized."""
    generator = np.random.default_rng(20_23)
    for (width, height), after in COMPARED_SIZES:
        yield generator.integers(0, 256, (height, width, 3), dtype=np.uint8), after


def _resized(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], width: int, height: int, resample: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return an image [H, W, 3] resized by the native engine, which reads it as a PPM file."""
    file = io.BytesIO()
    file.write(b"P6 %d %d 255\n" % (pixels.shape[1], pixels.shape[0]))
    file.write(pixels.tobytes())
    out = np.zeros((1, height, width, 3), dtype=np.uint8)
    statuses = decode_into([file.getvalue()], out, height, width, None, None, 1, resample)
    return out[0] if statuses == [0] else np.zeros(0, dtype=np.uint8)
