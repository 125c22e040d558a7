"""Windows bitmaps of every layout, written byte by byte: what no library writes must be read or refused too."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

WIDTH, HEIGHT = 19, 6
RAW, RLE8, RLE4, BITFIELDS = 0, 1, 2, 3
Masks = tuple[int, int, int, int]
NO_MASKS: Masks = (0, 0, 0, 0)
MASKS: dict[int, tuple[Masks, ...]] = {
    16: (
        (0xF800, 0x7E0, 0x1F, 0),
        (0x7C00, 0x3E0, 0x1F, 0),
        (0x7C00, 0x3E0, 0x1F, 0x8000),
        (0xF00, 0xF0, 0xF, 0xF000),
        (0x1F, 0x7E0, 0xF800, 0),
        NO_MASKS,
    ),
    24: ((0xFF0000, 0xFF00, 0xFF, 0),),
    32: (
        (0xFF0000, 0xFF00, 0xFF, 0),
        (0xFF000000, 0xFF0000, 0xFF00, 0),
        (0xFF000000, 0xFF00, 0xFF, 0),
        (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
        (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
        (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
        (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
        (0xFF, 0xFF00, 0xFF0000, 0),
        (0x3FF00000, 0xFFC00, 0x3FF, 0),
        (0xFF0000, 0xFF00, 0, 0),
        NO_MASKS,
    ),
}
Colours = Literal["all", "few", "gray ramp"]
Codes = Literal["runs", "stored", "jumps", "empty rows"]


@dataclass(frozen=True)
class BitmapLayout:
    """How the pixels are stored."""

    header_bytes: int
    bits: int
    compression: int = RAW
    masks: Masks = NO_MASKS
    colours: Colours = "all"
    codes: Codes = "runs"  # with RLE8 and RLE4
    top_down: bool = False
    gap: int = 0  # bytes before the pixels

    @property
    def kind(self) -> str:
        """The row of the table in docs/reference/exactness-files.md."""
        if self.compression in (RLE8, RLE4):
            return f"run lengths of {self.bits} bits: {self.codes}" + ", top row first" * self.top_down
        masks = ", masks" * (self.compression == BITFIELDS)
        return f"{self.bits} {'bit' if self.bits == 1 else 'bits'}{masks}"

    @property
    def name(self) -> str:
        """The layout in words, for messages of tests."""
        return f"{self.kind}: {self}, masks {[hex(mask) for mask in self.masks]}"


def bitmap_layouts() -> Iterator[BitmapLayout]:
    """Every combination that the format allows, and masks that no program writes."""
    common = itertools.product((12, 40, 52, 56, 64, 108, 124), (False, True), (0, 6))
    for header_bytes, top_down, gap in common:
        if header_bytes == 12 and top_down:
            continue  # its height has no sign
        for bits in (1, 4, 8, 16, 24, 32):
            tables: tuple[Colours, ...] = ("all", "few", "gray ramp") if bits <= 8 else ("all",)
            for colours in tables if header_bytes > 12 else tables[:1]:
                yield BitmapLayout(header_bytes, bits, colours=colours, top_down=top_down, gap=gap)
                if bits in (4, 8) and header_bytes > 12:
                    codes: tuple[Codes, ...] = ("runs", "stored", "jumps", "empty rows")
                    for code in codes:
                        compression = RLE8 if bits == 8 else RLE4
                        yield BitmapLayout(header_bytes, bits, compression, NO_MASKS, colours, code, top_down, gap)
            if header_bytes > 12:
                for masks in MASKS.get(bits, ()):
                    yield BitmapLayout(header_bytes, bits, BITFIELDS, masks, top_down=top_down, gap=gap)


def bitmap_file(layout: BitmapLayout) -> bytes:
    """Return a file of WIDTH × HEIGHT pixels."""
    random = np.random.default_rng(layout.bits)
    entries = {"all": 1 << layout.bits, "few": max(2, (1 << layout.bits) * 5 // 8), "gray ramp": 1 << layout.bits}[
        layout.colours
    ]
    if layout.bits <= 8:
        values = random.integers(0, entries, (HEIGHT, WIDTH))
        colours = random.integers(0, 256, (entries, 4)).astype(np.uint8)
        if layout.colours == "gray ramp":
            colours = np.linspace(0, 255, entries).astype(np.uint8)[:, None].repeat(4, axis=1)
        palette = colours[:, : 3 if layout.header_bytes == 12 else 4].tobytes()
    else:
        palette = b""
        values = random.integers(0, 256, (HEIGHT, WIDTH * layout.bits // 8))
    pixels = _runs(layout, values) if layout.compression in (RLE8, RLE4) else _rows(layout, values)
    height = -HEIGHT if layout.top_down else HEIGHT
    if layout.header_bytes == 12:
        header = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, layout.bits)
    else:
        stated = 0 if layout.colours == "all" else entries
        facts = (layout.header_bytes, WIDTH, height, 1, layout.bits, layout.compression, len(pixels), 0, 0, stated, 0)
        header = struct.pack("<IiiHHIIiiII", *facts)
        if layout.compression == BITFIELDS:
            header += struct.pack("<4I", *layout.masks)[: 12 if layout.header_bytes < 56 else 16]
        header = header.ljust(layout.header_bytes, b"\0")
    at = 14 + len(header) + len(palette) + layout.gap
    file = b"BM" + struct.pack("<IHHI", at + len(pixels), 0, 0, at) + header + palette
    return file.ljust(at, b"\0") + pixels


def _rows(layout: BitmapLayout, values: np.ndarray) -> bytes:
    if layout.bits <= 8:
        bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=2)[..., 8 - layout.bits :]
        values = np.packbits(bits.reshape(HEIGHT, -1), axis=1)
    stored = values.astype(np.uint8)
    return np.pad(stored, ((0, 0), (0, -stored.shape[1] % 4))).tobytes()


def _runs(layout: BitmapLayout, values: np.ndarray) -> bytes:
    """Return codes for each row. "jumps" passes over pixels, also of whole rows; "empty rows" leaves out the second row."""
    out = b""
    rle4 = layout.compression == RLE4
    for number, row in enumerate(values.tolist()):
        if layout.codes == "empty rows" and number == 1:
            out += b"\0\0"
        elif layout.codes == "jumps" and number in (1, 2):
            out += bytes([0, 2, 3, 1]) if number == 1 else b"".join(_run(value, rle4) for value in row[3:]) + b"\0\0"
        elif layout.codes == "stored":
            padded = [*row[:7], 0]
            first = bytes(a << 4 | b for a, b in zip(padded[::2], padded[1::2], strict=True)) if rle4 else bytes(padded)
            out += bytes([0, 7]) + first + b"".join(_run(value, rle4) for value in row[7:]) + b"\0\0"
        elif layout.codes == "jumps" and number == 4:
            out += b"".join(_run(value, rle4) for value in row[:5]) + bytes([0, 2, 9, 0])
            out += b"".join(_run(value, rle4) for value in row[14:]) + b"\0\0"
        else:
            out += bytes([5, row[0] << 4 | row[1] if rle4 else row[0]])
            out += b"".join(_run(value, rle4) for value in row[5:12]) + b"\0\0"  # the row ends early
    return out + b"\0\1"


def _run(value: int, rle4: bool) -> bytes:
    return bytes([1, value << 4 if rle4 else value])
