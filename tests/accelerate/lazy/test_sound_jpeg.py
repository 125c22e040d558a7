"""A JPEG that is decoded later gives Pillow's pixels, and raises nothing that Pillow would have raised earlier."""

from __future__ import annotations

import io
import os
import random
import warnings

import numpy as np
import pytest
from headrace._native import sound_jpeg
from headrace.accelerate.lazy.image_description import ImageDescription, pixels
from headrace.errors import DecodeError
from lazy_chains import damaged, jpeg_kinds
from PIL import Image

#: The number of damaged files. `HEADRACE_DAMAGED_FILES=60000` makes the long run.
FILES = int(os.environ.get("HEADRACE_DAMAGED_FILES", "1500"))


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (40, 24)) -> bytearray:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG", quality=50, subsampling=0)
    return bytearray(file.getvalue())


def by_pillow(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def natively(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return pixels(ImageDescription(data, box, box[2:], "bilinear", (0, 0, *box[2:])))


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (255, 0, 255), (200, 90, 0)])
@pytest.mark.parametrize("factor", [1, 90, 137, 200, 255])
def test_coefficients_beyond_the_range_of_images_wrap_as_in_libjpeg_turbo(colour: tuple[int, int, int], factor: int) -> None:
    data = jpeg(colour)
    for table in (data.index(b"\xff\xdb") + 5, data.rindex(b"\xff\xdb") + 5):
        data[table] = factor  # the factor of the DC coefficients; all others are zero
    assert sound_jpeg(bytes(data)) == (40, 24, 3, len(data))
    assert np.array_equal(natively(bytes(data), (0, 0, 40, 24)), by_pillow(bytes(data)))


def test_what_libjpeg_turbo_refuses_is_not_sound() -> None:
    data = jpeg((90, 80, 10))
    unknown = data.copy()
    unknown[3] = 0xF0  # the first segment's marker
    higher = data.copy()
    frame = data.index(b"\xff\xc0") + 5
    higher[frame : frame + 2] = b"\xff\xfd"
    second = data[:-2] + data[data.index(b"\xff\xc0") : data.index(b"\xff\xc4")] + data[-2:]
    assert sound_jpeg(bytes(data)) is not None
    for changed in (unknown, higher, second, data[:-2], data[: frame + 30], bytearray()):
        assert sound_jpeg(bytes(changed)) is None
    for changed in (unknown, second):
        with pytest.raises(OSError, match="broken data stream"):
            by_pillow(bytes(changed))


@pytest.mark.parametrize("part", range(3))
def test_damaged_files_that_are_sound_give_pillows_pixels(part: int) -> None:
    warnings.simplefilter("ignore")
    rng, compared = random.Random(part), 0
    files = jpeg_kinds(rng, 40)
    for _ in range(FILES // 3):
        data = damaged(rng.choice(files), rng)
        facts = sound_jpeg(data)
        if facts is None:
            continue
        width, height = facts[:2]
        expected = by_pillow(data)
        assert expected.shape[:2] == (height, width)
        x, y = rng.randrange(width), rng.randrange(height)
        box = (x, y, rng.randint(1, width - x), rng.randint(1, height - y))
        try:
            found = natively(data, box)
        except DecodeError:
            continue  # damage inside the scan: Pillow decodes it from the same bytes
        assert np.array_equal(found, expected[y : y + box[3], x : x + box[2]])
        compared += 1
    assert compared > FILES // 15
