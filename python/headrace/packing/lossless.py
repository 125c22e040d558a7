"""From a source image's bytes to the bytes that are packed, every pixel kept: as they are, or with restart markers."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from headrace._native import restart_markers
from headrace.errors import DecodeError, MissingDependencyError
from headrace.images.decode import MAX_PIXELS, NOT_DECODED, TOO_LARGE, UNSUPPORTED, decode_into, reason
from headrace.images.header import EXTENSIONS, ImageHeader, read_header
from headrace.packing.options import DEFAULT_QUALITY, RESTART_TILE, PackOptions

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Encode", "EncodedImage", "check_pixels", "decoded", "lossless_encoder", "pillow"]


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it goes into a shard. `extension` is None where there is none of our own for its format."""

    data: bytes
    format: str  # as in ImageHeader
    extension: str | None
    width: int
    height: int


Encode = Callable[[bytes], EncodedImage]


def lossless_encoder(options: PackOptions) -> Encode:
    """The function that keeps every pixel: as `options.keep_bytes` and `options.restart_markers` ask.

    It raises DecodeError for images that cannot be packed, and may be called from several threads.
    """
    if options.keep_bytes:
        return _without_change
    return _with_restart_markers if options.restart_markers else _checked


def _without_change(data: bytes) -> EncodedImage:
    return _unchanged(data, read_header(data))


def _checked(data: bytes) -> EncodedImage:
    header = read_header(data)
    _check_for_loaders(data, header)
    return _unchanged(data, header)


def _check_for_loaders(data: bytes, header: ImageHeader) -> None:
    """As check_pixels, and says what can be done about sound images of kinds that no Loader could decode later."""
    try:
        check_pixels(data, header)
    except DecodeError as error:
        if error.status not in NOT_DECODED:
            raise
        decoded(data)  # the reason why it cannot be decoded at all comes first
        raise DecodeError(
            f"{header.format}: {reason(UNSUPPORTED)}; --quality {DEFAULT_QUALITY} packs it as a JPEG, --keep-bytes as it is",
            status=error.status,
        ) from error


def check_pixels(data: bytes, header: ImageHeader) -> None:
    """Decodes all of an image, as a Loader does. Raises DecodeError when that fails, also for kinds that it does not decode."""
    if header.jpeg is None:  # decoded as a whole, whatever part is asked for
        status = int(decode_into([data], np.empty((1, 1, 1, 3), dtype=np.uint8), boxes=[(0, 0, 1, 1)])[0])
    elif header.width * header.height > MAX_PIXELS:
        status = TOO_LARGE  # before it takes the memory
    else:
        status = int(decode_into([data], np.empty((1, header.height, header.width, 3), dtype=np.uint8))[0])
    if status:
        raise DecodeError(reason(status), status=status)


def _with_restart_markers(data: bytes) -> EncodedImage:
    header = read_header(data)
    if header.jpeg is None:
        _check_for_loaders(data, header)  # nothing is inserted, but a damaged file must be found now
        return _unchanged(data, header)
    try:
        marked = restart_markers(data, RESTART_TILE)
    except DecodeError as error:
        if error.status != UNSUPPORTED:
            raise
        return _checked(data)  # a valid file of a kind without restart markers (12-bit, lossless): kept as it is
    return _unchanged(marked, header)


def _unchanged(data: bytes, header: ImageHeader) -> EncodedImage:
    return EncodedImage(data, header.format, EXTENSIONS.get(header.format), header.width, header.height)


def decoded(data: bytes) -> Image.Image:
    """Decodes with Pillow, all pixels. Raises DecodeError with Pillow's reason."""
    library = pillow()
    try:
        image: Image.Image = library.open(io.BytesIO(data))
        image.load()
    except Exception as error:  # Pillow's plugins raise many kinds; each means that this image cannot be decoded
        raise DecodeError(f"cannot be decoded: {error}") from error
    return image


def pillow() -> ModuleType:
    """`PIL.Image`. Raises MissingDependencyError when Pillow is not installed."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingDependencyError(
            "Pillow is needed to re-encode images, and for images that are no JPEG", hint="pip install pillow"
        ) from error
    return cast(ModuleType, PIL.Image)
