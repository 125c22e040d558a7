"""The description of an undecoded image gives Pillow's pixels, and crosses processes without them."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from headrace.accelerate.image_description import ImageDescription, JpegSource, file_identity, pixels, pixels_by_pillow
from headrace.errors import DecodeError, SourceError
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
    source = JpegSource(jpeg(90, 70))
    for number in range(40):
        box = drawn(rng, 90, 70)
        size = box[2:] if number % 4 == 0 else (rng.randint(1, 60), rng.randint(1, 60))
        window = (0, 0, *size) if number % 3 == 0 else drawn(rng, *size)
        description = ImageDescription(source, box, size, resample, window, rng.random() < 0.5, rng.random() < 0.5)
        ours = pixels(description)
        assert ours.shape == (description.height, description.width, 3) and ours.flags.c_contiguous
        assert np.array_equal(ours, pixels_by_pillow(description)), description


def whole(source: JpegSource) -> ImageDescription:
    return ImageDescription(source, (0, 0, 90, 70), (90, 70), "bilinear", (0, 0, 90, 70))


def test_a_pickled_description_names_its_file_and_reads_it_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(90, 70))
    description = whole(JpegSource(path.read_bytes(), str(path), file_identity(path.stat())))
    stored = pickle.dumps(description, protocol=pickle.HIGHEST_PROTOCOL)
    assert len(stored) < 300 + len(str(path))
    again = pickle.loads(stored)
    assert not again.source.is_loaded
    assert np.array_equal(pixels(again), pixels(description))


def test_a_file_that_changes_on_the_way_is_never_decoded_in_place_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(90, 70))
    description = whole(JpegSource(path.read_bytes(), str(path), file_identity(path.stat())))
    stored = pickle.dumps(description)
    path.write_bytes(jpeg(90, 70, seed=1))
    with pytest.raises(SourceError, match="has changed") as caught:
        pixels(pickle.loads(stored))
    assert caught.value.hint
    assert np.array_equal(pixels(pickle.loads(pickle.dumps(description))), pixels(description))  # now with its bytes
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read any more"):
        pixels(pickle.loads(stored))


def test_bytes_without_a_file_are_pickled() -> None:
    description = whole(JpegSource(jpeg(90, 70)))
    assert np.array_equal(pixels(pickle.loads(pickle.dumps(description))), pixels(description))


def test_a_file_that_is_not_decoded_natively_says_so() -> None:
    with pytest.raises(DecodeError, match="not decoded natively"):
        pixels(whole(JpegSource(jpeg(90, 70)[:500])))
