"""`--transform`: packed images have the pixels that the same transforms give in training."""

from __future__ import annotations

import io
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace import transforms as t
from headrace.packing import pack
from headrace.packing.encoding.transform import parsed
from headrace.packing.estimate import Estimate
from PIL import Image
from sample_images import jpeg

SIZES = [(90, 70), (64, 96), (101, 101), (40, 55), (33, 31), (120, 48), (24, 24), (7, 200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "a"
    root.mkdir()
    for number, (width, height) in enumerate(SIZES):
        (root / f"{number}.jpg").write_bytes(jpeg(width, height, number))
    return root.parent


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Resize(48), CenterCrop(40)", [t.Resize(48), t.CenterCrop(40)]),
        ("Resize((30, 50))", [t.Resize((30, 50))]),
        ("CenterCrop((64, 100))", [t.CenterCrop((64, 100))]),
        ("Resize(31), CenterCrop(24), Grayscale(3)", [t.Resize(31), t.CenterCrop(24), t.Grayscale(3)]),
        ("RGB(), Resize(24), CenterCrop(size=24)", [t.Resize(24), t.CenterCrop(24)]),
    ],
)
def test_packed_transforms_give_the_pixels_of_training_transforms(folder: Path, text: str, steps: list[t.Transform]) -> None:
    prepare = parsed(text)
    loader = headrace.Loader(
        headrace.open(folder), len(SIZES), t.Compose(steps), shuffle=False, drop_last=False, output="numpy", threads=1
    )
    ((images, _),) = [(images.copy(), labels) for images, labels in loader]
    for number, found in enumerate(images):
        image = prepare(Image.open(folder / "a" / f"{number}.jpg").convert("RGB")).convert("RGB")
        assert np.array_equal(np.asarray(image), found), SIZES[number]


def test_the_estimate_is_near_the_packed_size(tmp_path: Path) -> None:
    """Small images fill whole tar blocks, and each has two headers and a label."""
    root = tmp_path / "in" / "a"
    root.mkdir(parents=True)
    for number in range(60):
        Image.fromarray(np.full((20, 20, 3), number, dtype=np.uint8)).save(root / f"{number}.png")
    estimates: list[Estimate] = []
    result = pack(tmp_path / "in", tmp_path / "out", transform="Resize(16)", on_estimate=estimates.append)
    assert estimates and 0.9 < estimates[0].total_bytes / result.bytes < 1.1
    packed = headrace.open(tmp_path / "out")
    assert all(Image.open(io.BytesIO(packed.read(i))).size == (16, 16) for i in range(60))
