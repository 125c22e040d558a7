"""A lazy image is not told from an ordinary one: pixels, attributes, exceptions, files and threads."""

from __future__ import annotations

import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from headrace.accelerate.lazy import affine_transform
from headrace.accelerate.lazy.opening import lazy_images
from headrace.accelerate.lazy.pillow import LazyImage, LoadedJpeg, OpenedJpeg
from lazy_chains import compare_chain, jpeg_kinds
from PIL import Image, ImageFile

#: The number of random chains. `HEADRACE_LAZY_CHAINS=10000` makes the long run.
CHAINS = int(os.environ.get("HEADRACE_LAZY_CHAINS", "800"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("load_truncated", [False, True])
def test_random_chains_of_operations_equal_pillows(
    part: int, load_truncated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", load_truncated)
    monkeypatch.setattr(affine_transform, "FEWEST_PIXELS", 1)
    rng = random.Random(part * 2 + load_truncated)
    warnings.simplefilter("ignore")
    count = CHAINS // (PARTS * 2)
    files = jpeg_kinds(rng, max(10, count // 4))
    for number in range(count):
        data = rng.choice(files)
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        difference = compare_chain(rng, data, path)
        path.unlink()
        assert difference is None, difference


def test_classes_have_the_names_of_pillows(image_folder: Any) -> None:
    path = next(image_folder().rglob("*.jpg"))
    with lazy_images():
        opened = Image.open(path)
        loaded = Image.open(path)
        loaded.load()
        converted = opened.convert("RGB").crop((1, 1, 9, 9))
    assert [type(loaded), type(converted)] == [LoadedJpeg, LazyImage]
    plain = Image.open(path)
    plain.load()
    assert type(loaded) is not type(plain)
    assert str(type(loaded)) == str(OpenedJpeg) == str(type(plain)) == "<class 'PIL.JpegImagePlugin.JpegImageFile'>"
    assert str(type(converted)) == str(type(plain.convert("RGB"))) == "<class 'PIL.Image.Image'>"
    assert pickle.loads(pickle.dumps(converted)) == plain.convert("RGB").crop((1, 1, 9, 9))
