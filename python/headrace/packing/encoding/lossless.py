"""Lossless packing of an image: byte for byte, or with restart markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headrace._native import restart_markers
from headrace.errors import DecodeError
from headrace.images.decode import NOT_DECODED, TOO_LARGE, UNSUPPORTED, decode_into, reason
from headrace.images.header import EIGHT_BITS, EXTENSIONS, ImageHeader, read_header
from headrace.images.with_pillow import converted, decode_with_pillow
from headrace.packing.planning.options import DEFAULT_QUALITY, RESTART_TILE, PackOptions
from headrace.system.text.size_limits import max_pixels

__all__ = ["MAX_SIDE", "Encode", "EncodedImage", "check_pixels", "lossless_encoder"]

MAX_SIDE = 65500
"""The largest width and height of a JPEG in pixels (libjpeg's JPEG_MAX_DIMENSION)."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as it is stored in a shard."""

    data: bytes
    format: str  # as in ImageHeader
    extension: str | None  # None: the format has no extension of its own
    width: int
    height: int
    is_unmarked: bool = False  # a JPEG that keeps its bytes because restart markers cannot be written


Encode = Callable[[bytes], EncodedImage]


def lossless_encoder(options: PackOptions) -> Encode:
    """Return the function that packs an image without loss, as `options.keep_bytes` and `options.restart_markers` say.

    It raises DecodeError for an image that cannot be packed, and is safe to call from several threads.
    """
    if options.keep_bytes:
        return _keep_bytes
    return _with_restart_markers if options.restart_markers else _checked


def _keep_bytes(data: bytes) -> EncodedImage:
    return _unchanged(data, read_header(data))


def _checked(data: bytes) -> EncodedImage:
    header = read_header(data)
    _check_for_loaders(data, header)
    return _unchanged(data, header)


def _check_for_loaders(data: bytes, header: ImageHeader) -> None:
    """Raise DecodeError for an image that a Loader cannot decode; for a valid image of another kind, say what to do."""
    try:
        check_pixels(data, header)
    except DecodeError as error:
        if error.status not in NOT_DECODED:
            raise
        converted(decode_with_pillow(data), "RGB")  # raises its own reason if Pillow cannot decode the image either
        as_jpeg = f"--quality {DEFAULT_QUALITY} packs it as a JPEG, " if max(header.width, header.height) <= MAX_SIDE else ""
        deep = (
            "" if header.samples == EIGHT_BITS else f"; of its {header.samples} values, those above 255 become white in a JPEG"
        )
        raise DecodeError(
            f"{header.format}: {reason(UNSUPPORTED)}; {as_jpeg}--keep-bytes {'' if as_jpeg else 'packs it '}as it is{deep}",
            status=error.status,
        ) from error


def check_pixels(data: bytes, header: ImageHeader) -> None:
    """Decode a whole image as a Loader does. Raise DecodeError if that fails or the Loader does not support its kind."""
    if header.jpeg is None:  # such an image is decoded as a whole for any box
        status = int(decode_into([data], np.empty((1, 1, 1, 3), dtype=np.uint8), boxes=[(0, 0, 1, 1)])[0])
    elif header.width * header.height > max_pixels():
        status = TOO_LARGE  # refuse before allocating
    else:
        status = int(decode_into([data], np.empty((1, header.height, header.width, 3), dtype=np.uint8))[0])
    if status:
        raise DecodeError(reason(status), status=status)


def _with_restart_markers(data: bytes) -> EncodedImage:
    header = read_header(data)
    if header.jpeg is None:
        _check_for_loaders(data, header)  # no markers are inserted, but a damaged file must be found now
        return _unchanged(data, header)
    try:
        marked = restart_markers(data, RESTART_TILE)
    except DecodeError as error:
        return _unmarked(data, error)
    return _unchanged(marked, header)


def _unmarked(data: bytes, refusal: DecodeError) -> EncodedImage:
    """Return a JPEG unchanged. Loaders decode it, but restart markers cannot be written into it.

    Such are files of 12 bits, files without Huffman tables (MJPEG), and files with deviations that libjpeg-turbo overlooks.
    """
    try:
        return replace(_checked(data), is_unmarked=True)
    except DecodeError as error:
        raise (error if refusal.status == UNSUPPORTED else refusal) from None


def _unchanged(data: bytes, header: ImageHeader) -> EncodedImage:
    return EncodedImage(data, header.format, EXTENSIONS.get(header.format), header.width, header.height)
