"""`headrace inspect`: the facts about datasets of known content."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace.cli.main import main
from headrace.errors import UsageError
from headrace.inspection.inspect import inspect_dataset
from headrace.packing import pack
from PIL import Image
from sample_images import jpeg


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three classes of 1, 2 and 3 images of known kinds."""
    root = tmp_path / "mixed"
    made = {
        "a/0.jpg": jpeg(100, 80, quality=90, subsampling="4:4:4"),
        "b/0.jpg": jpeg(200, 80, quality=50, subsampling="4:2:0"),
        "b/1.jpg": jpeg(60, 50, quality=90, subsampling="4:2:0", progressive=True),
        "c/0.jpg": jpeg(60, 50, quality=90, subsampling="4:2:0", restart_marker_blocks=2),
        "c/1.jpg": b"no image at all",
    }
    file = io.BytesIO()
    Image.new("RGB", (33, 22)).save(file, "PNG")
    made["c/2.png"] = file.getvalue()
    for name, data in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_inspect_reports_the_facts_of_known_images(mixed: Path) -> None:
    found = inspect_dataset(mixed)
    assert (found.kind, found.records, found.classes, found.sampled) == ("folder", 6, 3, 6)
    assert found.formats == {"jpeg": 4, "png": 1}
    assert found.subsampling == {"4:2:0": 3, "4:4:4": 1}
    assert found.processes == {"baseline": 3, "progressive": 1}
    assert found.restart_markers == 0.25
    assert found.smallest_classes["a"] == 1 and found.largest_classes["c"] == 3
    assert found.per_class is not None and (found.per_class.mean, found.per_class.max) == (2, 3)
    assert found.width is not None and (found.width.min, found.width.max) == (33, 200)
    assert found.quality is not None and (found.quality.min, found.quality.max) == (50, 90)
    assert list(found.unreadable) == ["c/1.jpg"]
    assert found.decode_ms is not None and found.decode_ms > 0


def test_a_sample_is_spread_over_the_dataset(image_folder: Callable[..., Path]) -> None:
    found = inspect_dataset(image_folder(classes=4, per_class=5), sample=4)
    assert (found.sampled, found.records, found.bytes) == (4, 20, None)
    with pytest.raises(UsageError, match="sample is 0"):
        inspect_dataset(image_folder(name="other"), sample=0)


@pytest.mark.slow
def test_the_cost_is_that_of_a_crop_and_a_pack_is_cheaper_than_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(8):
        (tmp_path / "in" / "a" / f"{number}.jpg").write_bytes(jpeg(1200, 900, number, subsampling="4:4:4"))
    pack(tmp_path / "in", tmp_path / "out")
    folder, packed = inspect_dataset(tmp_path / "in"), inspect_dataset(tmp_path / "out")
    assert folder.crop_ms is not None and folder.decode_ms is not None and packed.crop_ms is not None
    assert folder.crop_ms < folder.decode_ms and packed.crop_ms < folder.crop_ms
    assert folder.indexed_crop_ms is not None and folder.indexed_crop_ms < folder.crop_ms
    assert packed.indexed_crop_ms is None  # restart markers take its place
    for name, later in (("in", True), ("out", False)):
        assert main(["inspect", str(tmp_path / name)]) == 0
        printed = capsys.readouterr().out
        assert "a crop decodes in " in printed and ("from the second epoch on" in printed) == later


def test_inspect_finds_restart_markers_in_a_pack(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    pack(image_folder(), tmp_path / "out")
    found = inspect_dataset(tmp_path / "out")
    assert (found.kind, found.restart_markers) == ("shards", 1.0)
    assert found.bytes == int(headrace.open(tmp_path / "out").table.size.sum())


def test_contact_sheet_shows_the_images(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name, colour in (("0", (250, 0, 0)), ("1", (0, 0, 250))):
        Image.new("RGB", (90, 60), colour).save(tmp_path / "in" / "a" / f"{name}.png")
    (tmp_path / "in" / "a" / "2.jpg").write_text("no image")
    inspect_dataset(tmp_path / "in", sheet=tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = [sheet.getpixel((4 + 132 * i + 64, 68)) for i in range(3)]
    assert pixels == [(250, 0, 0), (0, 0, 250), (200, 200, 200)]


def test_the_html_contact_sheet_is_complete_and_self_contained(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mixed / "c").rename(mixed / "c <b>&")
    target = tmp_path / "sheet.html"
    assert main(["inspect", str(mixed), "--contact-sheet", str(target)]) == 1  # an image cannot be read
    assert str(target) in capsys.readouterr().out
    page = target.read_text(encoding="utf-8")
    assert page.count("<figure") == 6 and page.count("data:image/jpeg;base64,") == 5
    assert "c &lt;b&gt;&amp;" in page and "<b>&" not in page
    for words in ("4:2:0 3 (75 %)", "Cannot be read: 1 of 6", "not an image", "Class balance", "25 %"):
        assert words in page.replace("\u00a0", " "), words
    assert "http://" not in page and "https://" not in page and "<script" not in page
    first = page.partition("data:image/jpeg;base64,")[2].partition('"')[0]
    with Image.open(io.BytesIO(base64.b64decode(first))) as image:
        assert image.size == (100, 80)


def test_an_unwritable_contact_sheet_is_an_error(mixed: Path, tmp_path: Path) -> None:
    for name in ("sheet.png", "sheet.html"):
        assert main(["inspect", str(mixed), "--contact-sheet", str(tmp_path / "missing" / name)]) == 1
    assert main(["inspect", str(mixed), "--contact-sheet", str(tmp_path / "sheet.gif")]) == 2


def test_pack_verify_and_inspect_print_one_json_document(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(mixed), str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"records": 5, "shards": 1, "errors": 1}.items() <= document.items()
    assert document["bytes"] > 0 and document["img_s"] > 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "5 records in 1 shard, intact" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 5
    assert main(["verify", str(tmp_path / "out"), "--decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    shard = tmp_path / "out" / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 255
    shard.write_bytes(data)
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "CRC-32C" in capsys.readouterr().out
    assert main(["inspect", str(mixed)]) == 1
    assert "c/1.jpg" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--quality", "0"], ["--shard-size", "many"], ["--unit", "three"], ["--codec", "coef"]])
def test_wrong_usage_is_exit_code_2(image_folder: Callable[..., Path], tmp_path: Path, words: list[str]) -> None:
    assert main(["pack", str(image_folder()), str(tmp_path / "out"), *words]) == 2


def test_class_names_that_are_not_utf8_are_valid_json(image_folder: Callable[..., Path]) -> None:
    root = image_folder(classes=2)
    (root / "class_1").rename(os.fsdecode(bytes(root) + b"/caf\xe9"))
    command = [sys.executable, "-m", "headrace", "inspect", str(root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["records_per_class"] == {"caf%E9": 4, "class_0": 4}
