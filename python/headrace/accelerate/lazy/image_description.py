"""Descriptions of undecoded images: an encoded JPEG, and the crop, resize and flip to apply to it.

A lazy image (`lazy.pillow`) is such a description until its pixels are needed. A worker process can pass it on, with the bytes
that it has read, in place of pixels: no file is read a second time.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import IndexStore, Store, fill_items
from headrace.accelerate.workers.unheard_warnings import unheard_warnings
from headrace.errors import DecodeError
from headrace.images.decode import reason

__all__ = [
    "Box",
    "Encoded",
    "ImageDescription",
    "begin_batch",
    "current_batch",
    "pixels",
    "pixels_by_pillow",
    "plain_pixels",
    "plain_source",
    "ppm_head",
    "whole_image",
]

Box = tuple[int, int, int, int]
"""A rectangle: left, top, width and height in pixels."""

_HWC = Store("hwc")

COMMUTE_WITH_FLIPS = frozenset({"bilinear", "hamming", "bicubic", "lanczos"})
"""Resize filters whose result is the same whether the image is flipped before or after. The others round to one side."""

Encoded = bytes | memoryview
"""The bytes of a JPEG file, or decoded pixels as the bytes of a PPM file (`plain_source`)."""


class _Current(threading.local):
    """The number of the batch that this thread makes, or has made last."""

    batch = 0


_current = _Current()
_numbers = itertools.count(1)


def begin_batch() -> None:
    """Count a new batch with lazy images. What a dataset keeps of an earlier one is decoded, once, when it is used again."""
    _current.batch = next(_numbers)


def current_batch() -> int:
    """Return the number of the batch that this thread makes, or has made last."""
    return _current.batch


class ImageDescription(NamedTuple):
    """The undecoded image `Image.open(source).convert("RGB").crop(box).resize(size, resample).crop(window)`, then flipped.

    source: the bytes of the JPEG. Descriptions of one image hold the same object.
    box: the crop (left, top, width, height) before the resize, in pixels of the JPEG. It lies in the image.
    size: width and height that the box is resized to. Equal to the box's: nothing is resized.
    resample: Pillow's filter in lower case ("bilinear").
    window: the crop after the resize, in pixels of `size`. It lies in `size`.
    flip_x, flip_y: whether the window is flipped left to right, top to bottom, after all else.
    """

    source: Encoded
    box: Box
    size: tuple[int, int]
    resample: str
    window: Box
    flip_x: bool = False
    flip_y: bool = False

    @property
    def width(self) -> int:
        """Width of the image in pixels, after all steps."""
        return self.window[2]

    @property
    def height(self) -> int:
        """Height of the image in pixels, after all steps."""
        return self.window[3]

    @property
    def is_resized(self) -> bool:
        """Whether the image is resized."""
        return self.size != self.box[2:]

    def item(self) -> tuple[Encoded, Box, tuple[int, int] | None, str, Box | None, bool, bool]:
        """Return this description as a tuple for the native function `fill_items`, which decodes the image."""
        source, box, size, resample, window, flip_x, flip_y = self
        if size != box[2:]:
            return source, box, size, resample, window, flip_x, flip_y
        inside = (box[0] + window[0], box[1] + window[1], window[2], window[3])
        return source, inside, None, resample, None, flip_x, flip_y

    def cropped(self, left: int, top: int, width: int, height: int) -> ImageDescription:
        """Return the description of a crop of this image. The crop must lie inside the image."""
        source, box, size, resample, window, flip_x, flip_y = self
        left = window[0] + (window[2] - left - width if flip_x else left)
        top = window[1] + (window[3] - top - height if flip_y else top)
        if size != box[2:]:
            return ImageDescription(source, box, size, resample, (left, top, width, height), flip_x, flip_y)
        box = (box[0] + left, box[1] + top, width, height)
        return ImageDescription(source, box, (width, height), resample, (0, 0, width, height), flip_x, flip_y)

    def resized(self, width: int, height: int, resample: str) -> ImageDescription | None:
        """Return the description of this image resized. None if one decode and one resize do not give Pillow's pixels."""
        if self.is_resized or ((self.flip_x or self.flip_y) and resample not in COMMUTE_WITH_FLIPS):
            return None
        size = (width, height)
        return ImageDescription(self.source, self.box, size, resample, (0, 0, width, height), self.flip_x, self.flip_y)

    def flipped(self, *, left_right: bool, top_bottom: bool) -> ImageDescription:
        """Return the description of this image flipped."""
        return self._replace(flip_x=self.flip_x != left_right, flip_y=self.flip_y != top_bottom)


def whole_image(source: Encoded, width: int, height: int) -> ImageDescription:
    """Return the description of a whole JPEG of this width and height."""
    return ImageDescription(source, (0, 0, width, height), (width, height), "bilinear", (0, 0, width, height))


def plain_source(image: Any) -> bytes:
    """Return a copy of the pixels of an RGB Pillow image as the bytes of a PPM file, which need no decoding."""
    return ppm_head(*image.size) + image.tobytes()  # type: ignore[no-any-return]


def ppm_head(width: int, height: int) -> bytes:
    """Return the header of a PPM file of this width and height."""
    return b"P6\n%d %d\n255\n" % (width, height)


def plain_pixels(description: ImageDescription) -> memoryview | None:
    """Return a view of the pixels of a whole, unchanged PPM source. None for every other description."""
    source, box, size, _, window, flip_x, flip_y = description
    if flip_x or flip_y or not box[:2] == window[:2] == (0, 0) or not box[2:] == size == window[2:]:
        return None
    head = ppm_head(*size)
    if len(source) != len(head) + 3 * size[0] * size[1] or source[: len(head)] != head:
        return None
    return memoryview(source)[len(head) :]


def pixels(description: ImageDescription, indexes: IndexStore | None = None) -> npt.NDArray[np.uint8]:
    """Decode the described image natively: uint8 [height, width, 3], bit for bit the pixels of Pillow.

    `indexes`: JPEG indexes that are used and added to (default: none).

    Raises `DecodeError` where the image is not decoded natively.

        pixels(ImageDescription(data, (0, 0, 60, 40), (30, 20), "bilinear", (0, 0, 30, 20)))
    """
    out = np.empty((description.height, description.width, 3), dtype=np.uint8)
    (status,) = fill_items([description.item()], [(_HWC, out)], indexes=indexes)
    if status:
        raise DecodeError(f"the image is not decoded natively: {reason(status)}", status=status)
    return out


def pixels_by_pillow(description: ImageDescription) -> npt.NDArray[np.uint8]:
    """Decode the described image with Pillow, step by step. Raises what Pillow raises."""
    import io

    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PpmImagePlugin import PpmImageFile

    source, (left, top, width, height), size, resample, window, flip_x, flip_y = description
    kind = PpmImageFile if source[:2] == b"P6" else JpegImageFile
    with unheard_warnings():  # Pillow has given them when the script opened the image
        image: Any = kind(io.BytesIO(source)).convert("RGB").crop((left, top, left + width, top + height))
    if description.is_resized:
        image = image.resize(size, Image.Resampling[resample.upper()])
    left, top, width, height = window
    image = image.crop((left, top, left + width, top + height))
    if flip_x:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if flip_y:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return np.array(image)
