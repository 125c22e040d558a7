"""Compare the pixels that two loaders give for the same operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["EQUAL_LEVELS", "compare_pixels"]

EQUAL_LEVELS = 1.0
"""Mean absolute difference in levels (0 to 255) up to which pixels count as equal. Other decoders round the inverse DCT
and the interpolation in another way, which gives differences below this; another operation gives several levels."""


def compare_pixels(reference: Path, other: Path) -> dict[str, Any]:
    """Return `{equal, mean_levels, greatest_levels, words}`: how far two .npy files of uint8 pixels (N, 3, H, W) differ."""
    import numpy as np

    one, two = np.load(reference).astype(np.int16), np.load(other).astype(np.int16)
    if one.shape != two.shape:
        return {"equal": False, "mean_levels": None, "greatest_levels": None, "words": f"shapes {two.shape} and {one.shape}"}
    difference = np.abs(one - two)
    mean, greatest = float(difference.mean()), int(difference.max())
    if greatest == 0:
        words = "the same pixels, bit for bit"
    else:
        words = f"pixels differ by {mean:.2g} levels of 255 on average, {greatest} at most"
    return {"equal": mean <= EQUAL_LEVELS, "mean_levels": mean, "greatest_levels": greatest, "words": words}
