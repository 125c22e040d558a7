"""What an encoded image says about itself: format, size, and for JPEG how it was encoded. No pixel is decoded.

Markers and fields: ITU-T T.81 annex B (JPEG), RFC 2083 (PNG). Other formats are read through Pillow, where installed.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_left
from dataclasses import dataclass

from headrace._native import image_size
from headrace.errors import DecodeError, MissingDependencyError

__all__ = ["EXTENSIONS", "ImageHeader", "JpegHeader", "format_of", "read_header"]

# By signature: what the bytes are, whatever the file is called.
_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
EXTENSIONS = {"jpeg": "jpg", "png": "png", "gif": "gif", "bmp": "bmp", "tiff": "tif", "webp": "webp"}
EXTENSIONS |= {name: name for name in ("pbm", "pgm", "ppm")}
# Netpbm's: plain ones, then binary ones.
_PORTABLE = {b"1": "pbm", b"2": "pgm", b"3": "ppm", b"4": "pbm", b"5": "pgm", b"6": "ppm"}

_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame, all processes
_SOI, _EOI, _SOS, _DQT, _DRI, _APP1 = 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1
_ALONE = frozenset([0x01, *range(0xD0, 0xD8)])  # markers without a length: TEM, RST0 to RST7
_SUBSAMPLING = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1", (4, 2): "4:1:0"}
# The values of T.81 table K.1 (luminance), which IJG's quality 50 uses as they are; their order does not matter here.
_K1 = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)


def _table_sum(quality: int) -> int:
    """Sum of the luminance table at an IJG quality (libjpeg, `jpeg_quality_scaling` and `jpeg_add_quant_table`)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return sum(min(255, max(1, (value * scale + 50) // 100)) for value in _K1)


_SUMS = [_table_sum(quality) for quality in range(100, 0, -1)]  # ascending


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """How a JPEG was encoded."""

    components: int  # 1 grey, 3 colour, 4 CMYK
    bits: int  # a sample
    subsampling: str  # "4:2:0", …; "grey"; else the factors, "2x1,1x2,1x1"
    process: str  # "baseline", "extended", "progressive", "other"
    restart_interval: int  # MCUs between restart markers, 0 = none
    quality: int | None  # IJG quality that the luminance table's sum corresponds to


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format, size in pixels as stored (EXIF orientation not applied), and the JPEG part where it is one."""

    format: str
    width: int
    height: int
    jpeg: JpegHeader | None = None


def format_of(data: bytes) -> str | None:
    """`jpeg`, `png`, `gif`, `bmp`, `tiff`, `webp`, `pbm`, `pgm` or `ppm` by the first bytes; None when unknown."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:1] == b"P" and data[2:3].isspace():
        return _PORTABLE.get(data[1:2])
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def read_header(data: bytes) -> ImageHeader:
    """Reads the header of an encoded image.

    Raises DecodeError when it is not an image, its header is damaged, or it is a JPEG or PNG without its end.
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
    at, size, frame, interval, quality = 2, len(data), None, 0, None
    while True:
        if at + 4 > size:
            raise DecodeError(f"JPEG ends in its header, at byte {size}")
        if data[at] != 0xFF:
            raise DecodeError(f"JPEG marker expected at byte {at}, found {data[at]:#04x}")
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker == _EOI:
            raise DecodeError("JPEG holds no image data")
        length = data[at + 2] << 8 | data[at + 3]
        body = at + 4
        if length < 2 or at + 2 + length > size:
            raise DecodeError(f"JPEG segment {marker:#04x} at byte {at} runs past the end of the file")
        if marker in _SOF:
            frame = _frame(data[body : at + 2 + length], marker)
        elif marker == _DRI and length >= 4:
            interval = data[body] << 8 | data[body + 1]
        elif marker == _DQT and quality is None:
            quality = _quality(data[body : at + 2 + length])
        elif marker == _SOS:
            break
        at += 2 + length
    if frame is None:
        raise DecodeError("JPEG scan before the frame header")
    if data.rfind(b"\xff\xd9", at) < 0:
        raise DecodeError(f"JPEG is truncated: no end marker in {size} bytes")
    width, height, components, bits, subsampling, process = frame
    return ImageHeader("jpeg", width, height, JpegHeader(components, bits, subsampling, process, interval, quality))


def _frame(body: bytes, marker: int) -> tuple[int, int, int, int, str, str]:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise DecodeError("JPEG frame header is too short")
    bits, height, width, components = struct.unpack_from(">BHHB", body)
    if not width or not height or not components:
        raise DecodeError(f"JPEG of {width} x {height} pixels with {components} components")
    factors = [(body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(components)]
    process = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive"}.get(marker, "other")
    return width, height, components, bits, _subsampling(factors), process


def _subsampling(factors: list[tuple[int, int]]) -> str:
    if len(factors) == 1:
        return "grey"
    first, rest = factors[0], factors[1:3]
    if all(chroma == rest[0] and 0 not in chroma for chroma in rest):
        ratio = (first[0] / rest[0][0], first[1] / rest[0][1])
        if ratio in _SUBSAMPLING:
            return _SUBSAMPLING[ratio]  # type: ignore[index]
    return ",".join(f"{x}x{y}" for x, y in factors)


def _quality(body: bytes) -> int | None:
    """The IJG quality whose table has the sum nearest to this one's; encoders with other tables get the like of it."""
    if len(body) < 65 or body[0] >> 4:
        return None
    total = sum(body[1:65])
    at = bisect_left(_SUMS, total)
    if at == len(_SUMS) or (at and total - _SUMS[at - 1] < _SUMS[at] - total):
        at -= 1
    return 100 - at


def _png(data: bytes) -> ImageHeader:
    if len(data) < 24 or data[12:16] != b"IHDR":
        raise DecodeError("PNG header is damaged")
    if data.rfind(b"IEND") < 0:
        raise DecodeError(f"PNG is truncated: no IEND chunk in {len(data)} bytes")
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height:
        raise DecodeError(f"PNG of {width} x {height} pixels")
    return ImageHeader("png", width, height)


def _portable(data: bytes, kind: str) -> ImageHeader:
    try:
        width, height = image_size(data)
    except ValueError as error:
        raise DecodeError(f"{kind.upper()}: {error}") from error
    return ImageHeader(kind, width, height)


def _other(data: bytes, kind: str | None) -> ImageHeader:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError(
            "Pillow is needed for images that are neither JPEG nor PNG", hint="pip install pillow"
        ) from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            return ImageHeader(kind or (image.format or "unknown").lower(), *image.size)
    except Exception as error:  # Pillow's plugins raise many kinds; each means that this is no image it can open
        raise DecodeError(f"not an image: it begins with {data[:8]!r}") from error
