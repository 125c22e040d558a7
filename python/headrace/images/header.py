"""Headers of encoded images: format, size, and for JPEG how it was encoded. No pixel is decoded.

JPEG and Netpbm headers are read by the native core, PNG (RFC 2083) here, others by Pillow where it is installed (`raster`).
"""

from __future__ import annotations

import contextlib
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._native import image_size, jpeg_facts
from headrace.errors import DecodeError, MissingDependencyError
from headrace.images.raster import open_raster

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["EIGHT_BITS", "EXTENSIONS", "ImageHeader", "JpegHeader", "format_of", "read_header"]

# Signatures and formats: the first bytes decide, not the file's name.
_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),  # BigTIFF
    (b"MM\0+", "tiff"),
)
EXTENSIONS = {"jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "tiff": "tif", "webp": "webp"}
EXTENSIONS |= {name: name for name in ("pbm", "pgm", "ppm")}
# Netpbm: the digit after "P" in the first bytes → format; 1 to 3 are plain text, 4 to 6 binary.
_PORTABLE = {b"1": "pbm", b"2": "pgm", b"3": "ppm", b"4": "pbm", b"5": "pgm", b"6": "ppm"}


EIGHT_BITS = "8-bit"
"""The kind of the values of almost every image; those of fewer bits count as such."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """How a JPEG was encoded."""

    components: int  # 1: grey, 3: colour, 4: CMYK
    bits: int  # bits per sample (8, or 12)
    subsampling: str  # "4:2:0", …, or "grey"; for unusual factors their list, such as "2x1,1x2,1x1"
    process: str  # "baseline", "extended", "progressive" or "other"
    restart_interval: int  # MCUs between restart markers; 0: no markers
    quality: int | None  # IJG quality whose luminance table has the same sum as this file's


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format, size in pixels as stored (without EXIF orientation), and the encoding of a JPEG."""

    format: str
    width: int
    height: int
    jpeg: JpegHeader | None = None
    samples: str = EIGHT_BITS  # kind of the values: "8-bit", "16-bit", "32-bit", "floating-point", …


def format_of(data: bytes) -> str | None:
    """Return the format, by the first bytes: `jpeg`, `png`, `gif`, `bmp`, `tiff`, `webp`, `pbm`, `pgm`, `ppm`, or None."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:1] == b"P" and data[2:3].isspace():
        return _PORTABLE.get(data[1:2])
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an encoded image.

    Raise `DecodeError` if it is not an image, its header is damaged, or the end of a JPEG or PNG is missing. Raise
    `MissingDependencyError` if Pillow is needed and not installed.
    """
    kind = format_of(data)
    if kind == "jpeg":
        return _jpeg(data)
    if kind == "png":
        return _png(data)
    if kind in ("pbm", "pgm", "ppm"):
        return _portable(data, kind)
    if not data:
        raise DecodeError("the file is empty")
    return _other(data, kind)


def _jpeg(data: bytes) -> ImageHeader:
    try:
        width, height, components, bits, subsampling, process, restart_interval, quality = jpeg_facts(data)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    encoding = JpegHeader(components, bits, subsampling, process, restart_interval, quality)
    return ImageHeader("jpeg", width, height, encoding, _samples(bits))


def _png(data: bytes) -> ImageHeader:
    if len(data) < 24 or data[12:16] != b"IHDR":
        raise DecodeError("the PNG header is damaged")
    if data.rfind(b"IEND") < 0:
        raise DecodeError(f"the PNG is truncated: no IEND chunk in {len(data)} bytes")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height:
        raise DecodeError(f"the PNG has no pixels: its size is {width} x {height}")
    return ImageHeader("png", width, height, samples=_samples(data[24] if len(data) > 24 else 8))


def _samples(bits: int) -> str:
    return EIGHT_BITS if bits <= 8 else f"{bits}-bit"


def _portable(data: bytes, kind: str) -> ImageHeader:
    try:
        width, height = image_size(data)
    except ValueError as error:
        raise DecodeError(f"{kind.upper()}: {error}") from error
    white = re.match(rb"P[2356](?:\s+(?:#[^\n]*\n)?\s*\d+){2}\s+(?:#[^\n]*\n)?\s*(\d{1,6})", data[:1000])
    return ImageHeader(kind, width, height, samples=_samples(16 if white and int(white[1]) > 255 else 8))


_BITS_PER_SAMPLE, _SAMPLE_FORMAT, _FLOATING = 258, 339, 3  # TIFF 6.0, sections 8 and 19


def _tiff_samples(image: Image.Image) -> str:
    tags = getattr(image, "tag_v2", {})
    bits, kind = (tags.get(number, (usual,)) for number, usual in ((_BITS_PER_SAMPLE, 1), (_SAMPLE_FORMAT, 1)))
    floating = _FLOATING in (kind if isinstance(kind, tuple) else (kind,))
    return "floating-point" if floating else _samples(max(bits if isinstance(bits, tuple) else (bits,)))


def _other(data: bytes, kind: str | None) -> ImageHeader:
    try:
        import PIL.Image  # noqa: F401 (`open_raster` needs it)
    except ImportError as error:
        raise MissingDependencyError(
            "Pillow is needed to read images that are neither JPEG nor PNG", hint="pip install pillow"
        ) from error
    try:
        with open_raster(data) as image:
            samples = _tiff_samples(image) if kind == "tiff" else EIGHT_BITS
            width, height = image.size
            return ImageHeader(kind or (image.format or "unknown").lower(), width, height, samples=samples)
    except Exception as error:  # Pillow's plugins raise many kinds of errors: each means that Pillow cannot open the image
        if data.startswith(b"MM\0+"):  # big-endian BigTIFF, which Pillow does not open
            with contextlib.suppress(ValueError):
                return ImageHeader("tiff", *image_size(data))
        raise DecodeError(f"not an image: it begins with {data[:8]!r}") from error
