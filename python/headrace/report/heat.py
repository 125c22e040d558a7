"""The core × time map as a small PNG within the page: exact cells, a few kilobytes even for 192 cores."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

__all__ = ["ABSENT", "data_uri", "png"]

ABSENT = 255
"""Palette index of a cell that was not measured: fully transparent, so that the hatching behind it shows."""

LEVELS = 101  # busy in whole per cent


def data_uri(rows: Sequence[Sequence[float | None]], colour: tuple[int, int, int]) -> str:
    """The map as a `data:` address. `rows[r][t]` 0..1 or None; `colour` (red, green, blue) is that of 100 %."""
    return "data:image/png;base64," + base64.b64encode(png(rows, colour)).decode("ascii")


def png(rows: Sequence[Sequence[float | None]], colour: tuple[int, int, int]) -> bytes:
    """An indexed PNG, one pixel per cell; the share of `colour` grows with the value (PNG specification, 3rd edition)."""
    width = max((len(row) for row in rows), default=0)
    if not width:
        raise ValueError("a heat map needs at least one cell")
    lines = b"".join(b"\0" + bytes(_index(value) for value in row).ljust(width, bytes([ABSENT])) for row in rows)
    palette = bytes(colour) * 256
    # Opacity carries the value, so one picture suits a light and a dark page.
    alpha = bytes(round(255 * (0.04 + 0.96 * level / (LEVELS - 1))) if level < LEVELS else 0 for level in range(256))
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"tRNS", alpha), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _index(value: float | None) -> int:
    return ABSENT if value is None else round(100 * min(1.0, max(0.0, value)))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
