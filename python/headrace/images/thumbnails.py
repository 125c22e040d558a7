"""Small pictures as PNG files, written without Pillow (PNG specification, 3rd edition)."""

from __future__ import annotations

import struct
import zlib

__all__ = ["png"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _INDEXED = 2, 3  # colour types in a PNG header


def png(
    pixels: bytes, width: int, height: int, *, palette: bytes | None = None, alpha: bytes | None = None, level: int = 6
) -> bytes:
    """Return a PNG file of `pixels`: 3 bytes per pixel (RGB), or 1 byte per pixel if `palette` is given.

    `pixels`: uint8, row after row, without padding. `palette`: 3 bytes per colour, at most 256 colours. `alpha`: the opacity of
    each palette entry, 0 to 255 (default: opaque). `level`: zlib's, 0 to 9 (default 6). Raises `ValueError` where the number of
    bytes does not fit `width` and `height`, or where there is no pixel.

        png(bytes([255, 0, 0, 0, 0, 255]), 2, 1)  # a red pixel and a blue one
    """
    row_bytes = width if palette is not None else 3 * width
    if width <= 0 or height <= 0 or len(pixels) != row_bytes * height:
        raise ValueError(f"{len(pixels)} bytes are no image of {width} × {height} pixels")
    rows = b"".join(b"\0" + pixels[at : at + row_bytes] for at in range(0, len(pixels), row_bytes))  # filter 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if palette is None else _INDEXED, 0, 0, 0)
    colours = [(b"PLTE", palette)] if palette is not None else []
    colours += [(b"tRNS", alpha)] if alpha is not None else []
    chunks = [(b"IHDR", header), *colours, (b"IDAT", zlib.compress(rows, level)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
