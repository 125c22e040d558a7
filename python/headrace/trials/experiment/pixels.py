"""Compare the pixels that two loaders give for the same operations."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.system.files.regular_file import read_regular
from headrace.system.text.foreign_errors import first_line

__all__ = ["EQUAL_LEVELS", "compare_pixels"]

EQUAL_LEVELS = 1.0
"""Mean absolute difference in levels (0 to 255) up to which pixels count as equal. Other decoders round the inverse DCT
and the interpolation in another way, which gives differences below this; another operation gives several levels."""


MOST_BYTES = 64 << 20
"""Refuse larger files of pixels: those that are compared have 4 MB."""


def compare_pixels(reference: Path, other: Path) -> dict[str, Any]:
    """Return `{equal, mean_levels, greatest_levels, words}`: how far two .npy files of uint8 pixels (N, 3, H, W) differ.

    Raises `HeadraceError` for a file that holds no pixels: a run continues in a folder that may come from anybody.
    """
    import numpy as np

    one, two = _pixels(reference), _pixels(other)
    if one.shape != two.shape:
        return {"equal": False, "mean_levels": None, "greatest_levels": None, "words": f"shapes {two.shape} and {one.shape}"}
    difference = np.abs(one - two)
    mean, greatest = float(difference.mean()), int(difference.max())
    if greatest == 0:
        words = "the same pixels, bit for bit"
    else:
        words = f"pixels differ by {mean:.2g} levels of 255 on average, {greatest} at most"
    return {"equal": mean <= EQUAL_LEVELS, "mean_levels": mean, "greatest_levels": greatest, "words": words}


def _pixels(file: Path) -> Any:
    import numpy as np

    try:
        found = np.load(io.BytesIO(read_regular(file, limit=MOST_BYTES)), allow_pickle=False)
        if found.dtype != np.uint8:
            raise ValueError(f"numbers of type {found.dtype}")
    except OSError as error:
        raise HeadraceError(f"cannot read {file}: {error.strerror or error}") from error
    except (AttributeError, EOFError, MemoryError, ValueError) as error:
        raise HeadraceError(f"{file} holds no pixels: {first_line(error)}", hint="remove it, and repeat the command") from error
    return found.astype(np.int16)
