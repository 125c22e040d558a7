"""Pillow, opened for raster formats only: the one place where headrace itself opens an image with it.

Pillow also opens PostScript, by starting Ghostscript, a program that a file can instruct. The first bytes choose the format,
so a PostScript file named `.jpg` would do. What is not on the list is not an image for headrace. Where `headrace run` plays a
script's own calls of Pillow, those stay as they are.
"""

from __future__ import annotations

import functools
import io
from os import PathLike
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["RASTER_FORMATS", "open_raster"]

RASTER_FORMATS = (
    *("BMP", "GIF", "JPEG", "PPM", "PNG", "TIFF", "WEBP"),
    *("AVIF", "DIB", "HEIF", "ICO", "JPEG2000", "MPO", "PCX", "QOI", "SGI", "TGA"),
)
"""Pillow's names of the formats, in the order in which they are tried. Each is decoded by a library, none by a program."""


def open_raster(source: bytes | str | PathLike[str] | IO[bytes]) -> Image.Image:
    """Open an image with Pillow, given as its bytes, its path or a file. Raises what `PIL.Image.open` raises.

    Example: `open_raster(Path("cat.gif").read_bytes()).size`.
    """
    from PIL import Image

    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_registered())


@functools.cache
def _registered() -> tuple[str, ...]:
    """Return those of the formats that this Pillow has: HEIF comes with a plugin, AVIF with newer versions."""
    from PIL import Image

    Image.init()
    return tuple(name for name in RASTER_FORMATS if name in Image.OPEN)
