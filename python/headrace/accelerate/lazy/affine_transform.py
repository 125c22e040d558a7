"""Native replacement of Pillow's affine transform of RGB images (`Image.transform(size, AFFINE, …)`, `Image.rotate`).

Augmentations shear, shift and rotate by it: timm's, torchvision's, and scripts' own. The result is a lazy image over the new
pixels, so that its tensor can be deferred. The native sampler follows Pillow's arithmetic, double by double. Its results are
compared with Pillow's on a test image, and on the first images of each process with each filter.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace._native import pillow_affine
from headrace.accelerate.lazy.image_description import ppm_head, whole_image
from headrace.accelerate.lazy.pillow import derived, description_of, pixel_source
from headrace.accelerate.runtime.first_results import FirstResults

__all__ = ["compare_first_transforms", "pillows_transform", "transformed", "transforms_alike"]

pillows_transform: Callable[..., Any] = Image.Image.transform
"""Pillow's original method."""

COMPARED_TRANSFORMS = 2
"""Number of first images per process and filter that Pillow transforms too. If one differs, the process uses only Pillow."""

MOST_SIDE = 1 << 13
"""Longest side in pixels that is transformed natively. Larger images are left to Pillow, which reports when memory is short."""

MACHINES = frozenset({"x86_64", "AMD64"})
"""Processors on which native code is used: Pillow is compiled there without fused multiply-add, which rounds differently."""

FEWEST_PIXELS = 4096
"""Smallest result in pixels that is transformed natively. Pillow is as fast for smaller ones."""

_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_OWN_CLASSES = (Image.Image, JpegImageFile)


_first_images = FirstResults(COMPARED_TRANSFORMS, "an affine transform came out different; this process transforms with Pillow")
"""The comparison runs separately for each filter."""


def compare_first_transforms() -> None:
    """Compare the next transformed images of this process with Pillow's again."""
    _first_images.compare_again()


def transformed(image: Any, size: Any, method: Any, data: Any, resample: Any, fillcolor: Any) -> Any:
    """Return the result of Pillow's `transform` as a lazy image. None where Pillow's own method must compute it."""
    if type(method) not in (int, Image.Transform) or method != Image.Transform.AFFINE or not _first_images.equal:
        return None
    name = _FILTERS.get(resample) if isinstance(resample, int) else None
    numbers, colour = _matrix(data), _colour(fillcolor)
    if name is None or numbers is None or colour is None or not (_is_size(size) and _is_size(image.size)):
        return None
    if size[0] * size[1] < FEWEST_PIXELS or (name == "nearest" and numbers[1] == numbers[3] == 0):
        return None  # Pillow is as fast
    if image.mode != "RGB" or not (type(image) in _OWN_CLASSES or description_of(image) is not None):
        return None
    source = pixel_source(image)
    head = ppm_head(*size)
    made = pillow_affine(source, image.size, tuple(size), numbers, name, colour, head)
    if _first_images.wants(name):
        expected = pillows_transform(image, size, method, data, resample, fillcolor=fillcolor)
        _first_images.note(expected.tobytes() == made[len(head) :], name, numbers)
        return expected
    return derived(image, whole_image(made, *size))


def _is_size(size: Any) -> bool:
    return type(size) in (tuple, list) and len(size) == 2 and all(type(side) is int and 0 < side <= MOST_SIDE for side in size)


def _matrix(data: Any) -> list[float] | None:
    if type(data) not in (tuple, list) or len(data) < 6 or not all(isinstance(number, int | float) for number in data[:6]):
        return None
    try:
        numbers = [float(number) for number in data[:6]]
    except OverflowError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _colour(fillcolor: Any) -> tuple[int, ...] | None:
    if fillcolor is None:
        return (0, 0, 0)
    if type(fillcolor) is not tuple or len(fillcolor) != 3:
        return None
    return fillcolor if all(type(value) is int and 0 <= value <= 255 for value in fillcolor) else None


@functools.cache
def transforms_alike() -> bool:
    """Return whether `Image.transform` is Pillow's own, and a test image comes out equal with each filter."""
    if platform.machine() not in MACHINES or getattr(pillows_transform, "__module__", "") != "PIL.Image":
        return False
    pixels = np.random.default_rng(15).integers(0, 256, (21, 34, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    maps = ([0.9, 0.31, -2.5, -0.2, 1.1, 3.25], [1.0, 0.3, 0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0, -2.7])
    return all(
        pillows_transform(image, (30, 25), Image.Transform.AFFINE, data, number, fillcolor=(1, 2, 3)).tobytes()
        == pillow_affine(pixels.tobytes(), image.size, (30, 25), data, name, (1, 2, 3), b"")
        for number, name in _FILTERS.items()
        for data in maps
    )
