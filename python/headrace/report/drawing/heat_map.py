"""The core × time heat map as a small PNG inside the page: one pixel per cell, a few kilobytes even for 192 cores."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from headrace.images.thumbnails import png

__all__ = ["ABSENT", "CORES", "GPU", "data_uri", "heat_map_png"]

CORES = (217, 119, 37)
"""Red, green and blue of busy cores, `--decode` of page.css."""

GPU = (24, 122, 159)
"""Red, green and blue of a busy GPU, `--compute` of page.css."""

ABSENT = 255
"""Palette index of a cell that was not measured. It is fully transparent, so the hatching behind the picture shows."""

LEVELS = 101
"""Number of opacity levels: one for each whole per cent of use, 0 to 100."""


def data_uri(rows: Sequence[Sequence[float | None]], colour: tuple[int, int, int]) -> str:
    """Return the image of `heat_map_png` as a `data:` URI."""
    return "data:image/png;base64," + base64.b64encode(heat_map_png(rows, colour)).decode("ascii")


def heat_map_png(rows: Sequence[Sequence[float | None]], colour: tuple[int, int, int]) -> bytes:
    """Return an indexed PNG with one pixel per cell, more opaque where the value is larger.

    `rows[r][t]`: 0 to 1, or None where nothing was measured. `colour`: red, green and blue (0 to 255) of the value 1. Raises
    `ValueError` for no cell, and for rows of different lengths: a long one and many short ones would be a picture of any size.
    """
    width = max((len(row) for row in rows), default=0)
    if not width or any(len(row) != width for row in rows):
        raise ValueError("a heat map needs at least one cell, and rows of one length")
    pixels = b"".join(bytes(map(_index, row)) for row in rows)
    # The opacity carries the value, so that one picture suits a light and a dark page.
    alpha = bytes(round(255 * (0.04 + 0.96 * level / (LEVELS - 1))) if level < LEVELS else 0 for level in range(256))
    return png(pixels, width, len(rows), palette=bytes(colour) * 256, alpha=alpha, level=9)


def _index(value: float | None) -> int:
    return ABSENT if value is None else round(100 * min(1.0, max(0.0, value)))
