"""The description of an undecoded image gives Pillow's pixels, and can be pickled."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
from headrace.accelerate.lazy.image_description import ImageDescription, pixels, pixels_by_pillow
from headrace.errors import DecodeError
from PIL import Image

FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")


def jpeg(width: int, height: int, seed: int = 0) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def drawn(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """Draw a box inside an image."""
    box_width, box_height = rng.randint(1, width), rng.randint(1, height)
    return rng.randint(0, width - box_width), rng.randint(0, height - box_height), box_width, box_height


@pytest.mark.parametrize("resample", FILTERS)
def test_pixels_equal_pillows(resample: str) -> None:
    rng = random.Random(resample)
    source = jpeg(90, 70)
    for number in range(40):
        box = drawn(rng, 90, 70)
        size = box[2:] if number % 4 == 0 else (rng.randint(1, 60), rng.randint(1, 60))
        window = (0, 0, *size) if number % 3 == 0 else drawn(rng, *size)
        description = ImageDescription(source, box, size, resample, window, rng.random() < 0.5, rng.random() < 0.5)
        ours = pixels(description)
        assert ours.shape == (description.height, description.width, 3) and ours.flags.c_contiguous
        assert np.array_equal(ours, pixels_by_pillow(description)), description


def whole(source: bytes) -> ImageDescription:
    return ImageDescription(source, (0, 0, 90, 70), (90, 70), "bilinear", (0, 0, 90, 70))


def test_a_pickled_description_gives_the_same_pixels() -> None:
    description = whole(jpeg(90, 70))
    assert np.array_equal(pixels(pickle.loads(pickle.dumps(description))), pixels(description))


def test_a_file_that_is_not_decoded_natively_says_so() -> None:
    with pytest.raises(DecodeError, match="not decoded natively"):
        pixels(whole(jpeg(90, 70)[:500]))
