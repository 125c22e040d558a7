"""PNG files of every layout, written byte by byte: what no library writes must be read or refused too."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

WIDTH, HEIGHT = 19, 13  # the last pass of Adam7 has an odd number of rows
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGBA: (8, 16)}
NAMES = {GRAY: "gray", RGB: "RGB", PALETTE: "palette", GRAY_ALPHA: "gray with alpha", RGBA: "RGB with alpha"}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of each pass: first column, first row, and the steps between columns and rows (PNG 8.2)."""
MIXED = 5
Palette = Literal["full", "short", "too short"]


@dataclass(frozen=True)
class PngLayout:
    """How the samples of an image are stored."""

    colour_type: int
    bits: int
    interlaced: bool = False
    transparency: bool = False  # a tRNS chunk
    filter: int = 0  # 0 to 4, or MIXED
    palette: Palette = "full"  # "short": only the used entries; "too short": pixels with numbers beyond it
    pieces: int = 1  # IDAT chunks
    ancillary: bool = False  # chunks that say how to show the colours

    @property
    def kind(self) -> str:
        """The row of the table in docs/reference/exactness-files.md."""
        beyond = ", colour numbers beyond the palette" if self.palette == "too short" else ""
        return f"{NAMES[self.colour_type]}, {self.bits} {'bit' if self.bits == 1 else 'bits'}{beyond}"

    @property
    def name(self) -> str:
        """The layout in words, for messages of tests."""
        return f"{self.kind}: {self}"


def png_layouts() -> Iterator[PngLayout]:
    """Every combination that the format allows, and palettes that are too short."""
    for colour_type, depths in DEPTHS.items():
        palettes: tuple[Palette, ...] = ("full", "short", "too short") if colour_type == PALETTE else ("full",)
        transparencies = (False, True) if colour_type not in (GRAY_ALPHA, RGBA) else (False,)
        for bits, interlaced, transparency, filter, palette, pieces, ancillary in itertools.product(
            depths, (False, True), transparencies, range(6), palettes, (1, 3), (False, True)
        ):
            yield PngLayout(colour_type, bits, interlaced, transparency, filter, palette, pieces, ancillary)


def png_file(layout: PngLayout) -> bytes:
    """Return a file of WIDTH × HEIGHT pixels."""
    channels = CHANNELS[layout.colour_type]
    random = np.random.default_rng(layout.bits)
    values = random.integers(0, 1 << layout.bits, (HEIGHT, WIDTH, channels))
    if layout.bits == 16:
        values[:4] //= 200  # gray of 16 bits is cut off at 255
    entries = 1 << layout.bits
    if layout.palette != "full":
        entries = max(1, entries * 5 // 8)
        if layout.palette == "short":
            values %= entries
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, layout.bits, layout.colour_type, 0, 0, int(layout.interlaced))
    chunks = [_chunk(b"IHDR", header)]
    if layout.ancillary:
        chunks += [_chunk(b"gAMA", struct.pack(">I", 220000)), _chunk(b"cHRM", struct.pack(">8I", *range(30000, 38000, 1000)))]
        chunks.append(_chunk(b"sBIT", bytes([1] * (3 if layout.colour_type == PALETTE else channels))))
    if layout.colour_type == PALETTE:
        chunks.append(_chunk(b"PLTE", random.integers(0, 256, 3 * entries).astype(np.uint8).tobytes()))
    if layout.transparency:
        chunks.append(_chunk(b"tRNS", _transparency(layout, values, entries)))
    if layout.ancillary:
        chunks.append(_chunk(b"pHYs", struct.pack(">IIB", 3000, 1000, 1)))
    passes = ADAM7 if layout.interlaced else ((0, 0, 1, 1),)
    rows = b"".join(_filtered(layout, values[y::down, x::across]) for x, y, across, down in passes)
    stream = zlib.compress(rows)
    size = -(-len(stream) // layout.pieces)
    chunks += [_chunk(b"IDAT", stream[at : at + size]) for at in range(0, len(stream), size)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + _chunk(b"IEND", b"")


def _transparency(layout: PngLayout, values: np.ndarray, entries: int) -> bytes:
    if layout.colour_type == PALETTE:
        return bytes(number * 37 % 256 for number in range(max(1, entries // 2)))
    return values[7, 5].astype(">u2").tobytes()  # the colour of a pixel


def _filtered(layout: PngLayout, values: np.ndarray) -> bytes:
    """Return the rows of a pass, each with the number of its filter before it (PNG 9.2)."""
    if values.size == 0:
        return b""
    if layout.bits < 8:
        bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=3)[..., 8 - layout.bits :]
        packed = np.packbits(bits.reshape(len(values), -1), axis=1)
    else:
        packed = values.reshape(len(values), -1).astype(">u2" if layout.bits == 16 else np.uint8)
    rows = np.ascontiguousarray(packed).view(np.uint8).reshape(len(values), -1).astype(np.int64)
    step = max(1, CHANNELS[layout.colour_type] * layout.bits // 8)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    left = np.pad(rows, ((0, 0), (step, 0)))[:, : rows.shape[1]]
    corner = np.pad(above, ((0, 0), (step, 0)))[:, : rows.shape[1]]
    estimate = left + above - corner
    distances = np.stack([abs(estimate - left), abs(estimate - above), abs(estimate - corner)])
    nearest = np.choose(distances.argmin(axis=0), [left, above, corner])
    predictions = [np.zeros_like(rows), left, above, (left + above) // 2, nearest]
    out = b""
    for number, row in enumerate(rows):
        filter = number % 5 if layout.filter == MIXED else layout.filter
        out += bytes([filter]) + ((row - predictions[filter][number]) % 256).astype(np.uint8).tobytes()
    return out


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
