"""Datasets in notebooks and REPLs: what they print, and their records by number."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError, MissingDependencyError, RecordIndexError, SourceError, UsageError
from PIL import Image
from sample_images import jpeg


class Checker(HTMLParser):
    """Fails for an element that is not closed; collects texts and the sources of pictures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.sources.append(dict(attrs)["src"] or "")
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_dataset_prints_its_counts_and_classes(image_folder: Callable[..., Path]) -> None:
    data = headrace.open(image_folder(classes=5, per_class=2))
    assert repr(data) == (
        f"Dataset({data.root!r}, kind='folder', records=10, classes=5 ('class_0', 'class_1', 'class_2' and 2 more))"
    )


def test_records_and_labels_are_those_of_torchvision(image_folder: Callable[..., Path]) -> None:
    torchvision = pytest.importorskip("torchvision")
    root = image_folder()
    data, other = headrace.open(root), torchvision.datasets.ImageFolder(root)
    assert (list(data.classes), data.class_to_idx, data.targets) == (other.classes, other.class_to_idx, other.targets)
    for (image, label), (other_image, other_label) in zip(data, other, strict=True):
        assert type(label) is int and label == other_label
        assert image.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(other_image))
    assert np.array_equal(np.asarray(data[-1][0]), np.asarray(other[len(other) - 1][0]))
    assert data[np.int64(2)][1] == other[2][1]


def test_pack_keeps_what_a_dataset_shows(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder()
    headrace.pack(root, tmp_path / "packed")
    data, packed = headrace.open(root), headrace.open(tmp_path / "packed")
    assert sorted(packed.targets) == sorted(data.targets) and packed.class_to_idx == data.class_to_idx
    assert Checker(packed._repr_html_()).texts[1:] != []


@pytest.mark.parametrize("wrong", [12, -13])
def test_a_record_outside_the_dataset_is_an_index_error(image_folder: Callable[..., Path], wrong: int) -> None:
    data = headrace.open(image_folder())
    with pytest.raises(IndexError, match=f"has 12 records: there is no record {wrong}") as caught:
        data[wrong]
    assert isinstance(caught.value, RecordIndexError)


@pytest.mark.parametrize("wrong", ["class_0", 1.0, (0, 1)])
def test_a_name_a_float_and_two_numbers_are_no_record(image_folder: Callable[..., Path], wrong: object) -> None:
    with pytest.raises(UsageError, match="the number of one record"):
        headrace.open(image_folder())[wrong]  # type: ignore[index]


def test_a_damaged_record_names_its_key(image_folder: Callable[..., Path]) -> None:
    root = image_folder()
    (root / "class_1" / "image_002.jpg").write_bytes(jpeg(60, 40)[:-200])
    with pytest.raises(DecodeError, match=r"record 'class_1/image_002\.jpg' of ") as caught:
        headrace.open(root)[6]
    assert caught.value.key == "class_1/image_002.jpg"


def test_formats_that_only_pillow_reads_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG2000", irreversible=False)
    (tmp_path / "a" / "0.jpg").write_bytes(file.getvalue())
    image, label = headrace.open(tmp_path)[0]
    assert (np.asarray(image) == pixels).all() and label == 0


def test_a_notebook_shows_facts_and_a_strip_of_pictures(image_folder: Callable[..., Path]) -> None:
    root = image_folder(classes=3, per_class=5)
    (root / "class_1" / "image_003.jpg").unlink()
    shown = Checker(headrace.open(root)._repr_html_())
    facts = " · ".join(shown.texts)
    assert f"Dataset {root}" in facts and "records · 14" in facts and "records per class · 4 to 5" in facts
    assert "classes · 3: 'class_0', 'class_1', 'class_2'" in facts
    assert len(shown.sources) == 8
    for source in shown.sources:
        prefix, _, encoded = source.partition(",")
        assert prefix == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
            assert max(picture.size) == 128


def test_names_from_the_data_are_escaped_and_damage_is_shown_in_words(tmp_path: Path) -> None:
    hostile = tmp_path / "<script>alert(1)<" / "\udcff&'\".jpg"
    hostile.parent.mkdir()
    hostile.write_bytes(b"no image")
    page = headrace.open(tmp_path)._repr_html_()
    assert "<script" not in page and "&lt;script&gt;" in page and "not an image" in " ".join(Checker(page).texts)
    page.encode("utf-8")  # a notebook file is UTF-8


def test_a_stream_prints_but_has_no_records_by_number(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train_0")
    data = headrace.open(tmp_path / "train")
    assert "a stream" in repr(data) and "a stream" in data._repr_html_()
    for use in (lambda: data[0], lambda: data.targets):
        with pytest.raises(SourceError, match="is a stream"):
            use()


def test_printing_a_dataset_in_an_object_store_fetches_no_image(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    class Absent:
        def read(self, record: int, offset: int, size: int) -> bytes:
            raise AssertionError("an image was fetched")

    data = replace(headrace.open(image_folder()), fetcher=Absent())  # type: ignore[arg-type]
    assert "show_batch" in data._repr_html_() and "records=12" in repr(data)


def test_without_pillow_a_record_says_what_to_install(
    image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    data = headrace.open(root)
    with pytest.raises(MissingDependencyError, match="Pillow") as caught:
        data[0]
    assert re.search("pip install", caught.value.hint or "")
    assert len(Checker(data._repr_html_()).sources) == 8  # the strip needs no Pillow
