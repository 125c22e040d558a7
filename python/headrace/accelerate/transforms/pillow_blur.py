"""Check on this machine that the native Gaussian blur equals Pillow's.

Pillow computes the sizes of its boxes in single precision, which a compiler may round in two ways; the rest are integers.
"""

from __future__ import annotations

import functools

import numpy as np

from headrace._native import pillow_blur

__all__ = ["blurs_alike"]

#: Number of radii, from the smallest to the largest, for which the native blur is compared with Pillow's.
COMPARED_RADII = 33

MOST_RADIUS = 1000.0
"""Largest radius of the native blur, in pixels."""


@functools.lru_cache(maxsize=64)
def blurs_alike(least: float, most: float) -> bool:
    """Return whether the native blur equals Pillow's `GaussianBlur` for radii from `least` to `most` pixels."""
    from PIL import Image, ImageFilter  # the script's own blur is Pillow's, so it is there

    if not 0 <= least <= most <= MOST_RADIUS:
        return False
    pixels = np.random.default_rng(20_24).integers(0, 256, (19, 23, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    return all(
        image.filter(ImageFilter.GaussianBlur(float(radius))).tobytes() == pillow_blur(pixels.tobytes(), 23, float(radius))
        for radius in np.linspace(least, most, COMPARED_RADII)
    )
