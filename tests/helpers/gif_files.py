"""GIF files of every layout, written byte by byte: what no library writes must be read or refused too."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

WIDTH, HEIGHT = 19, 13
Place = Literal["whole", "inside", "beyond"]
_PLACES: dict[Place, tuple[int, int, int, int]] = {
    "whole": (0, 0, WIDTH, HEIGHT),
    "inside": (3, 2, 11, 7),
    "beyond": (9, 8, 14, 9),
}
"""Left edge, top edge, width and height of the frame on a screen of WIDTH × HEIGHT."""
Pixels = Literal["noise", "flat", "beyond the palette"]


@dataclass(frozen=True)
class GifLayout:
    """How the first frame is stored."""

    screen_bits: int  # of the palette of the screen; 0: none
    frame_bits: int  # of the palette of the frame; 0: none
    interlaced: bool = False
    transparent: int | None = None
    place: Place = "whole"
    pixels: Pixels = "noise"
    clear_often: bool = False  # codes never grow
    disposal: int = 0
    background: int = 0
    frames: int = 1
    early: bool = False  # GIF87a
    height: int = HEIGHT  # of the screen, and of a frame that fills it

    @property
    def kind(self) -> str:
        """The row of the table in docs/reference/exactness-files.md."""
        if self.pixels == "beyond the palette":
            return "colour numbers beyond the palette"
        palette = {(0, 0): "no palette", (0, 1): "palette of the frame", (1, 0): "palette of the screen"}
        palettes = palette.get((int(self.screen_bits > 0), int(self.frame_bits > 0)), "both palettes")
        where = {"whole": "", "inside": ", frame smaller than the screen", "beyond": ", frame beyond the screen"}[self.place]
        return palettes + where

    @property
    def name(self) -> str:
        """The layout in words, for messages of tests."""
        return f"{self.kind}: {self}"


def gif_layouts() -> Iterator[GifLayout]:
    """Every combination; fields that change no pixel take turns."""
    kinds: tuple[Pixels, ...] = ("noise", "flat", "beyond the palette")
    combinations = itertools.product(
        (0, 1, 2, 4, 8), (0, 1, 3, 8), (False, True), (None, 0, 1, 200), _PLACES, kinds, (False, True)
    )
    for number, (screen, frame, interlaced, transparent, place, pixels, clear_often) in enumerate(combinations):
        if pixels == "beyond the palette" and (frame or screen) in (0, 8):
            continue
        early = transparent is None and number % 3 == 0
        yield GifLayout(
            screen, frame, interlaced, transparent, place, pixels, clear_often, number % 4, number % 2, 1 + number % 2, early
        )


def gif_file(layout: GifLayout) -> bytes:
    """Return a file whose screen has WIDTH × `layout.height` pixels."""
    random = np.random.default_rng(3)

    def palette(bits: int) -> bytes:
        return random.integers(0, 256, 3 << bits).astype(np.uint8).tobytes() if bits else b""

    def flags(bits: int) -> int:
        return 0x80 | bits - 1 if bits else 0

    file = b"GIF87a" if layout.early else b"GIF89a"
    file += struct.pack("<HHBBB", WIDTH, layout.height, flags(layout.screen_bits), layout.background, 0) + palette(
        layout.screen_bits
    )
    if not layout.early:
        file += b"\x21\xfe\x05hello\x00"
    x, y, width, height = _PLACES[layout.place] if layout.place != "whole" else (0, 0, WIDTH, layout.height)
    for frame in range(layout.frames):
        if not layout.early:
            control = layout.disposal << 2 | (layout.transparent is not None)
            file += struct.pack("<BBBBHBB", 0x21, 0xF9, 4, control, 4, layout.transparent or 0, 0)
        file += struct.pack("<BHHHHB", 0x2C, x, y, width, height, flags(layout.frame_bits) | layout.interlaced << 6)
        file += palette(layout.frame_bits)
        bits = max(2, layout.frame_bits or layout.screen_bits or 8)
        colours = 1 << ((layout.frame_bits or layout.screen_bits or 8) if layout.pixels != "beyond the palette" else bits + 1)
        bits = max(bits, (colours - 1).bit_length())
        rows = random.integers(0, colours, (height, width)) if layout.pixels != "flat" else np.full((height, width), frame % 2)
        if layout.interlaced:
            rows = np.concatenate([rows[0::8], rows[4::8], rows[2::4], rows[1::2]])
        file += _compressed(rows.ravel().tolist(), bits, layout.clear_often)
    return file + b"\x3b"


def _compressed(values: list[int], bits: int, clear_often: bool) -> bytes:
    """Return the values in LZW codes (GIF89a, appendix F), in blocks."""
    clear, end = 1 << bits, (1 << bits) + 1
    text, size, since = "", bits + 1, 0

    def emit(code: int) -> None:
        nonlocal text
        text += f"{code:0{size}b}"[::-1]

    emit(clear)
    table: dict[tuple[int, ...], int] = {(value,): value for value in range(clear)}
    next_code, word = end + 1, ()
    for value in values:
        if (*word, value) in table:
            word = (*word, value)
            continue
        emit(table[word])
        since += 1
        if next_code < 4096:
            table[(*word, value)] = next_code
            next_code += 1
            if next_code - 1 == 1 << size and size < 12:
                size += 1
        if clear_often and since == 3:
            emit(clear)
            table = {(value,): value for value in range(clear)}
            next_code, size, since = end + 1, bits + 1, 0
        word = (value,)
    emit(table[word])
    # The reader adds an entry for this code too.
    if next_code == 1 << size and size < 12:
        size += 1
    emit(end)
    text += "0" * (-len(text) % 8)
    data = bytes(int(text[at : at + 8][::-1], 2) for at in range(0, len(text), 8))
    blocks = [data[at : at + 255] for at in range(0, len(data), 255)]
    return bytes([bits]) + b"".join(bytes([len(block)]) + block for block in blocks) + b"\x00"
