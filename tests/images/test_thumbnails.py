"""The PNG writer: what it writes, Pillow reads back pixel by pixel."""

from __future__ import annotations

import io

import numpy as np
import pytest
from headrace.images.thumbnails import png
from PIL import Image


def test_an_rgb_png_keeps_every_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(image.tobytes(), 5, 7)))), image)


def test_an_indexed_png_keeps_index_colour_and_opacity() -> None:
    indices = np.random.default_rng(1).integers(0, 4, (3, 6), dtype=np.uint8)
    colours = np.array([[9, 8, 7], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    opacity = np.array([0, 85, 170, 255], np.uint8)
    data = png(indices.tobytes(), 6, 3, palette=colours.tobytes(), alpha=opacity.tobytes(), level=9)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), indices)
        expected = np.dstack([colours[indices], opacity[indices]])
        assert np.array_equal(np.asarray(image.convert("RGBA")), expected)


@pytest.mark.parametrize(("pixels", "width", "height"), [(b"", 0, 0), (bytes(11), 2, 2), (bytes(12), 2, -2)])
def test_pixels_that_do_not_fill_the_image_are_refused(pixels: bytes, width: int, height: int) -> None:
    with pytest.raises(ValueError, match="no image of"):
        png(pixels, width, height)
