"""The demo's photographs: real, like ImageNet's in size and detail, the same every time."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
from headrace.errors import MissingDependencyError, SourceError
from headrace.images import photographs
from PIL import Image, JpegImagePlugin

PER_CLASS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "images"
    counted: list[int] = []
    assert photographs.make(path, per_class=PER_CLASS, advance=counted.append) == PER_CLASS * len(photographs.CLASSES)
    assert sum(counted) == PER_CLASS * len(photographs.CLASSES)
    return path


def test_there_are_ten_classes_and_a_thousand_images() -> None:
    assert len(photographs.CLASSES) >= 10
    assert len(photographs.CLASSES) * photographs.IMAGES_PER_CLASS >= 1000


def test_sizes_bits_and_subsampling_are_like_imagenets(folder: Path) -> None:
    widths, heights, bits, subsamplings, digests = [], [], [], Counter(), set()
    for file in sorted(folder.glob("*/*.jpg")):
        with Image.open(file) as image:
            image.load()
            assert image.format == "JPEG" and image.mode == "RGB"
            widths.append(image.width)
            heights.append(image.height)
            bits.append(8 * file.stat().st_size / (image.width * image.height))
            subsamplings[JpegImagePlugin.get_sampling(image)] += 1
        digests.add(hashlib.sha256(file.read_bytes()).digest())
    assert min(bits) >= 3.5 and max(bits) <= 6.0
    assert 440 <= statistics.mean(widths) <= 500
    assert 360 <= statistics.mean(heights) <= 430
    assert subsamplings[0] > subsamplings[2] > 0  # 4:4:4 most, 4:2:0 some
    assert len(digests) == len(widths)


def test_images_are_cropped_and_not_enlarged(folder: Path) -> None:
    """Search each crop in its photograph by its pixels: it is a part of it at the same scale."""
    import numpy as np

    photograph = np.asarray(photographs._load()["flower"][0].image, dtype=np.int16)
    for file in sorted((folder / "flower").glob("*.jpg"))[:2]:
        with Image.open(file) as image:
            crop = np.asarray(image.convert("RGB"), dtype=np.int16)
        height, width = crop.shape[:2]
        errors = [
            np.abs(photograph[top : top + height : 16, left : left + width : 16] - crop[::16, ::16]).mean()
            for top in range(photograph.shape[0] - height + 1)
            for left in range(photograph.shape[1] - width + 1)
        ]
        assert min(errors) < 4 < statistics.median(errors)


def test_making_twice_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    photographs.make(tmp_path / "again", per_class=1)
    for name in photographs.CLASSES:
        assert (tmp_path / "again" / name / "0000.jpg").read_bytes() == (folder / name / "0000.jpg").read_bytes()


def test_an_interrupted_folder_does_not_appear_and_an_old_version_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def interrupted(count: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        photographs.make(tmp_path / "images", per_class=1, advance=interrupted)
    assert list(tmp_path.iterdir()) == []
    photographs.make(tmp_path / "images", per_class=1)
    assert photographs.is_complete(tmp_path / "images")
    monkeypatch.setattr(photographs, "VERSION", "another")
    assert not photographs.is_complete(tmp_path / "images")
    photographs.make(tmp_path / "images", per_class=1)
    assert photographs.is_complete(tmp_path / "images")


def test_a_folder_made_by_others_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "mine.txt").write_text("precious")
    with pytest.raises(SourceError, match="not made by headrace"):
        photographs.make(tmp_path / "images", per_class=1)
    assert (tmp_path / "images" / "mine.txt").read_text() == "precious"


def test_a_missing_package_is_named_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="scikit-image") as caught:
        photographs._load()
    assert "--data" in (caught.value.hint or "")
