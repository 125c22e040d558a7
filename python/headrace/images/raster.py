"""Open images with Pillow, restricted to raster formats. headrace itself opens images with Pillow nowhere else.

Pillow also opens PostScript, by starting Ghostscript, a program that a file can instruct. The first bytes choose the format,
so a PostScript file named `.jpg` would do. What is not on the list is not an image for headrace. Where `headrace run` plays a
script's own calls of Pillow, those stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["RASTER_FORMATS", "keep_pillow_silent", "open_raster"]

RASTER_FORMATS = (
    *("BMP", "GIF", "JPEG", "PPM", "PNG", "TIFF", "WEBP"),
    *("AVIF", "DIB", "HEIF", "ICO", "JPEG2000", "MPO", "PCX", "QOI", "SGI", "TGA"),
)
"""Pillow's names of the formats, in the order in which they are tried. Each is decoded by a library, none by a program."""


def open_raster(source: bytes | str | PathLike[str] | IO[bytes]) -> Image.Image:
    """Open an image (bytes, path or file) with Pillow, restricted to `RASTER_FORMATS`. Raises what `PIL.Image.open` raises.

    Example: `open_raster(Path("cat.gif").read_bytes()).size`.
    """
    from PIL import Image

    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_registered())


class _Silence:
    """Whether Pillow's libtiff shall write nothing to stderr."""

    wanted = False


def keep_pillow_silent() -> None:
    """Stop Pillow and its libtiff from writing to stderr in this process. For headrace's own commands, never a user's script.

    The command reports a faulty image itself, by name.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    _Silence.wanted = True


def _silence_libtiff() -> None:
    """Take libtiff's handlers of messages away, which write to the stream, past Python. On Linux; elsewhere nothing happens."""
    import ctypes  # milliseconds, which most commands need not spend

    with contextlib.suppress(OSError, AttributeError):
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").split()
        for path in {word for word in mapped if word.rpartition("/")[2].startswith("libtiff")}:
            library = ctypes.CDLL(path)
            for handler in (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler):
                handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
                handler(None)


@functools.cache
def _registered() -> tuple[str, ...]:
    """Return those of the formats that this Pillow has: HEIF comes with a plugin, AVIF with newer versions."""
    from PIL import Image

    Image.init()
    if _Silence.wanted:
        _silence_libtiff()
    return tuple(name for name in RASTER_FORMATS if name in Image.OPEN)
