"""The description of an image that is not decoded yet: a JPEG, and what Pillow's operations take from it.

A lazy image (`lazy_pillow`) is such a description until its pixels are needed. A description is small and can be pickled, so a
worker process can pass it on in place of pixels.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import IndexStore, Store, fill_items
from headrace.accelerate.data_map import mapped
from headrace.accelerate.unheard_warnings import unheard_warnings
from headrace.errors import DecodeError, SourceError
from headrace.images.decode import reason

__all__ = [
    "Box",
    "ImageDescription",
    "JpegSource",
    "file_identity",
    "pixels",
    "pixels_by_pillow",
    "plain_pixels",
    "plain_source",
    "ppm_head",
    "whole_image",
]

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""

_HWC = Store("hwc")

COMMUTE_WITH_FLIPS = frozenset({"bilinear", "hamming", "bicubic", "lanczos"})
"""Filters that give the same pixels whether the image is flipped before or after the resize. The others round to one side."""

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes and time of modification in ns of a file."""


def file_identity(stat: os.stat_result) -> Identity:
    """Return what tells a file and its contents from others."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


class JpegSource:
    """The bytes of a JPEG file, read once; or pixels that are decoded already, as the bytes of a PPM file (`plain_source`).

    `data`: the bytes. `path`, `identity`: absolute path and identity of the file that they come from, if a file holds nothing
    else. A pickled source names the file if it is still the same one, and holds the bytes otherwise.
    """

    __slots__ = ("_data", "identity", "path")

    def __init__(self, data: bytes | None, path: str | None = None, identity: Identity | None = None) -> None:
        self._data = data
        self.path = path
        self.identity = identity

    @property
    def data(self) -> bytes:
        """The bytes. Raises `SourceError` if they must be read and the file has changed or is gone."""
        if self._data is None:
            self._data = self._read()
        return self._data

    @property
    def is_loaded(self) -> bool:
        """Whether the bytes are in memory."""
        return self._data is not None

    def is_file(self) -> bool:
        """Whether the path names the file, unchanged."""
        if self.path is None:
            return False
        try:
            return file_identity(os.stat(self.path)) == self.identity  # noqa: PTH116 (runs for every image)
        except OSError:
            return False

    def _read(self) -> bytes:
        assert self.path is not None
        hint = "do not change the images of a dataset while a script reads them, or set HEADRACE=off"
        try:
            with open(self.path, "rb", buffering=0) as file:
                same = file_identity(os.fstat(file.fileno())) == self.identity
                data = file.read()
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read any more: {error}", hint=hint) from error
        if not same:
            raise SourceError(f"{self.path}: has changed since the script opened it", hint=hint)
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_file():
            return (JpegSource, (None, self.path, self.identity))
        return (JpegSource, (self.data,))


class ImageDescription(NamedTuple):
    """The pixels of `Image.open(source).convert("RGB").crop(box).resize(size, resample).crop(window)`, then flipped.

    source: the JPEG.
    box: the crop (left, top, width, height) before the resize, in pixels of the JPEG. It lies in the image.
    size: width and height that the box is resized to. Equal to the box's: nothing is resized.
    resample: Pillow's filter in lower case ("bilinear").
    window: the crop after the resize, in pixels of `size`. It lies in `size`.
    flip_x, flip_y: whether the window is flipped left to right, top to bottom, after all else.
    """

    source: JpegSource
    box: Box
    size: tuple[int, int]
    resample: str
    window: Box
    flip_x: bool = False
    flip_y: bool = False

    @property
    def width(self) -> int:
        """Width of the pixels described."""
        return self.window[2]

    @property
    def height(self) -> int:
        """Height of the pixels described."""
        return self.window[3]

    @property
    def is_resized(self) -> bool:
        """Whether the box is resized."""
        return self.size != self.box[2:]

    def item(self) -> tuple[bytes | str, Box, tuple[int, int] | None, str, Box | None, bool, bool]:
        """Return the item of the native `fill_items` that fills these pixels. A file whose bytes are not in memory is named.

        Raises `SourceError` if the file has changed or is gone.
        """
        source, box, size, resample, window, flip_x, flip_y = self
        encoded = mapped(source.path) if not source.is_loaded and source.path and source.is_file() else source.data
        if size != box[2:]:
            return encoded, box, size, resample, window, flip_x, flip_y
        inside = (box[0] + window[0], box[1] + window[1], window[2], window[3])
        return encoded, inside, None, resample, None, flip_x, flip_y

    def cropped(self, left: int, top: int, width: int, height: int) -> ImageDescription:
        """Describe a crop of the described pixels. It lies inside them."""
        source, box, size, resample, window, flip_x, flip_y = self
        left = window[0] + (window[2] - left - width if flip_x else left)
        top = window[1] + (window[3] - top - height if flip_y else top)
        if size != box[2:]:
            return ImageDescription(source, box, size, resample, (left, top, width, height), flip_x, flip_y)
        box = (box[0] + left, box[1] + top, width, height)
        return ImageDescription(source, box, (width, height), resample, (0, 0, width, height), flip_x, flip_y)

    def resized(self, width: int, height: int, resample: str) -> ImageDescription | None:
        """Describe a resize to a size that differs. None where one decode and one resize do not give the same pixels."""
        if self.is_resized or ((self.flip_x or self.flip_y) and resample not in COMMUTE_WITH_FLIPS):
            return None
        size = (width, height)
        return ImageDescription(self.source, self.box, size, resample, (0, 0, width, height), self.flip_x, self.flip_y)

    def flipped(self, *, left_right: bool, top_bottom: bool) -> ImageDescription:
        """Describe the pixels flipped."""
        return self._replace(flip_x=self.flip_x != left_right, flip_y=self.flip_y != top_bottom)


def whole_image(source: JpegSource, width: int, height: int) -> ImageDescription:
    """Describe all pixels of a JPEG of a size."""
    return ImageDescription(source, (0, 0, width, height), (width, height), "bilinear", (0, 0, width, height))


def plain_source(image: Any) -> JpegSource:
    """Return a source that holds a copy of the pixels of an RGB image of Pillow's. It needs no decoding."""
    return JpegSource(ppm_head(*image.size) + image.tobytes())


def ppm_head(width: int, height: int) -> bytes:
    """Return the bytes before the pixels in a PPM file of a size."""
    return b"P6\n%d %d\n255\n" % (width, height)


def plain_pixels(description: ImageDescription) -> memoryview | None:
    """Return the bytes of the pixels if they are all those of a PPM file as they are. None for every other description."""
    source, box, size, _, window, flip_x, flip_y = description
    if flip_x or flip_y or not box[:2] == window[:2] == (0, 0) or not box[2:] == size == window[2:] or not source.is_loaded:
        return None
    head = ppm_head(*size)
    if not source.data.startswith(head) or len(source.data) != len(head) + 3 * size[0] * size[1]:
        return None
    return memoryview(source.data)[len(head) :]


def pixels(description: ImageDescription, indexes: IndexStore | None = None) -> npt.NDArray[np.uint8]:
    """Return the pixels, uint8 [height, width, 3], bit for bit those of Pillow.

    `indexes`: JPEG indexes that are used and added to (default: none).

    Raises `DecodeError` where the image is not decoded natively, and `SourceError` where its file cannot be read again.

        pixels(ImageDescription(JpegSource(data), (0, 0, 60, 40), (30, 20), "bilinear", (0, 0, 30, 20)))
    """
    out = np.empty((description.height, description.width, 3), dtype=np.uint8)
    (status,) = fill_items([description.item()], [(_HWC, out)], indexes=indexes)
    if status:
        key = description.source.path or ""
        raise DecodeError(f"the image is not decoded natively: {reason(status)}", key=key, status=status)
    return out


def pixels_by_pillow(description: ImageDescription) -> npt.NDArray[np.uint8]:
    """Return the pixels as Pillow makes them, step by step. Raises what Pillow raises."""
    import io

    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PpmImagePlugin import PpmImageFile

    source, (left, top, width, height), size, resample, window, flip_x, flip_y = description
    kind = PpmImageFile if bytes(source.data[:2]) == b"P6" else JpegImageFile
    with unheard_warnings():  # Pillow has given them when the script opened the image
        image: Any = kind(io.BytesIO(source.data)).convert("RGB").crop((left, top, left + width, top + height))
    if description.is_resized:
        image = image.resize(size, Image.Resampling[resample.upper()])
    left, top, width, height = window
    image = image.crop((left, top, left + width, top + height))
    if flip_x:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if flip_y:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return np.array(image)
