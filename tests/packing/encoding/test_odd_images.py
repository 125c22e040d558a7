"""Packing of odd images: each is packed, kept as it is, or listed with a reason; none ends the pack."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import DecodeError
from headrace.images.decode import decode_into
from headrace.images.with_pillow import converted, library_reason
from headrace.inspection.inspect import inspect_dataset
from headrace.inspection.verify import verify
from headrace.packing.encoding import reencode
from PIL import Image
from sample_images import jpeg, pixels
from tiff_files import BLACK_IS_ZERO, TiffLayout, directory_entries, sample_values, tiff_file, with_directory

ASSOCIATED_ALPHA = 1


def gray_with_associated_alpha() -> bytes:
    """Return a TIFF that Pillow opens in mode La."""
    layout = TiffLayout(BLACK_IS_ZERO, samples=2, extra=(ASSOCIATED_ALPHA,))
    alpha = np.full((40, 30, 1), 128)
    alpha[:, :5] = 0
    return tiff_file(layout, np.concatenate([sample_values(layout, 40, 30)[:, :, :1] // 2, alpha], axis=2).astype(np.uint8))


def without_huffman_tables(data: bytes) -> bytes:
    """Return a JPEG as a frame of motion JPEG: its tables are those of the standard, which readers know."""
    at, kept = 2, data[:2]
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += data[at:end] if data[at + 1] != 0xC4 else b""
        at = end
    return kept + data[at:]


def folder_of(tmp_path: Path, **files: bytes) -> Path:
    folder = tmp_path / "in/x"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder.parent


def listed(folder: Path) -> dict[str, str]:
    lines = map(json.loads, (folder / "errors.jsonl").read_text().splitlines())
    return {line["file"]: line["detail"] for line in lines}


@pytest.mark.parametrize(
    "options",
    [{"max_side": 20}, {"quality": 90}, {"resize": 15}, {"short_side": 15}, {"transform": "Resize(10), CenterCrop(8)"}],
)
def test_gray_with_associated_alpha_becomes_a_gray_jpeg(tmp_path: Path, options: dict[str, object]) -> None:
    source = folder_of(tmp_path, odd_tif=gray_with_associated_alpha(), plain_jpg=jpeg(30, 20))
    with Image.open(source / "x/odd.tif") as image:
        assert image.mode == "La"
        expected = np.asarray(image.convert("LA").convert("L"), dtype=float)
    result = headrace.pack(source, tmp_path / "out", **options)
    assert (result.records, result.errors) == (2, 0)
    assert verify(tmp_path / "out", decode=True).ok
    packed = headrace.open(tmp_path / "out")
    with Image.open(io.BytesIO(packed.read(list(packed.table.keys).index("x/odd")))) as image:
        assert image.mode == "L"
        if "quality" in options:
            assert np.abs(np.asarray(image, dtype=float) - expected).mean() < 20


def test_what_a_plain_pack_recommends_for_an_image_works(tmp_path: Path) -> None:
    source = folder_of(tmp_path, odd_tif=gray_with_associated_alpha(), plain_jpg=jpeg(30, 20))
    assert headrace.pack(source, tmp_path / "out").errors == 1
    assert "--quality 95 packs it as a JPEG, --keep-bytes as it is" in listed(tmp_path / "out")["x/odd.tif"]
    assert headrace.pack(source, tmp_path / "lossy", quality=95).errors == 0
    assert headrace.pack(source, tmp_path / "kept", keep_bytes=True).errors == 0


def test_facts_and_pictures_of_a_folder_with_an_odd_mode(tmp_path: Path) -> None:
    source = folder_of(tmp_path, odd_tif=gray_with_associated_alpha(), plain_jpg=jpeg(30, 20))
    assert inspect_dataset(source, sheet=tmp_path / "sheet.png").unreadable == {}
    assert headrace.open(source)[0][0].mode == "RGB"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX",
                                  "RGBa", "La", "I;16", "I;16L", "I;16B", "I;16N"])  # fmt: skip
def test_every_mode_of_pillow_is_converted(mode: str) -> None:
    assert converted(Image.new(mode, (3, 2)), "RGB").mode == "RGB"


def test_a_mode_that_is_not_converted_is_named() -> None:
    with pytest.raises(DecodeError, match="an image of mode LAB cannot become L: conversion from LAB to"):
        converted(Image.new("LAB", (3, 2)), "L")


def test_an_exception_of_a_library_is_that_of_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("L", (30, 20), 7).save(file, "PNG")
    source = folder_of(tmp_path, odd_png=file.getvalue(), plain_jpg=jpeg(30, 20))
    ours = reencode.encode_jpeg

    def failing(*arguments: object, gray: bool, turned_as: bytes | None) -> bytes:
        if gray:
            raise KeyError("a library's fault")
        return bytes(ours(*arguments, gray=gray, turned_as=turned_as))

    monkeypatch.setattr(reencode, "encode_jpeg", failing)
    result = headrace.pack(source, tmp_path / "out", max_side=10)
    assert (result.records, result.errors) == (1, 1)
    assert listed(tmp_path / "out") == {"x/odd.png": 'cannot be packed: KeyError: "a library\'s fault"'}


def test_reasons_hold_no_addresses() -> None:
    """They differ from run to run, and with them the bytes of two packs of one source."""
    assert library_reason(OSError("cannot read <_io.BytesIO object at 0x7fb4528ac810>")) == "cannot read <_io.BytesIO object>"


def test_jpegs_that_take_no_restart_markers_are_kept_and_counted(tmp_path: Path) -> None:
    odd = without_huffman_tables(jpeg(60, 40, 3))
    with pytest.raises(DecodeError, match="table is missing"):
        headrace.restart_markers(odd)
    source = folder_of(tmp_path, odd_jpg=odd, plain_jpg=jpeg(30, 20))
    first, again = (headrace.pack(source, tmp_path / "out") for _ in range(2))
    assert [(result.records, result.errors, result.unmarked) for result in (first, again)] == [(2, 0, 1)] * 2
    packed = headrace.open(tmp_path / "out")
    assert packed.read(list(packed.table.keys).index("x/odd")) == odd
    np.testing.assert_array_equal(np.asarray(packed[list(packed.table.keys).index("x/odd")][0]), pixels(odd))
    assert verify(tmp_path / "out", decode=True).ok
    assert headrace.pack(source, tmp_path / "copy", layout="folder").errors == 0
    assert (tmp_path / "copy/x/odd.jpg").read_bytes() == odd


def test_a_pack_in_which_all_take_restart_markers_says_nothing_of_them(tmp_path: Path) -> None:
    assert headrace.pack(folder_of(tmp_path, plain_jpg=jpeg(30, 20)), tmp_path / "out").unmarked == 0
    assert b"unmarked" not in (tmp_path / "out/headrace.json").read_bytes()


def test_a_damaged_jpeg_keeps_the_reason_of_its_refusal(tmp_path: Path) -> None:
    sound = jpeg(60, 40, restart_marker_blocks=2)
    damaged = sound.replace(b"\xff\xd1", b"\xff\xd5", 1)
    assert headrace.pack(folder_of(tmp_path, odd_jpg=damaged, plain_jpg=sound), tmp_path / "out").errors == 1
    assert listed(tmp_path / "out") == {"x/odd.jpg": "restart markers are missing or out of order"}


def big_endian_bigtiff(width: int, height: int) -> bytes:
    """Return a gray BigTIFF file."""
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (277, 1), (278, height), (279, width * height)]
    at = 16 + 8 + 20 * (len(tags) + 1) + 8
    entries = sorted([(tag, 4, struct.pack(">I4x", value)) for tag, value in tags] + [(273, 16, struct.pack(">Q", at))])
    body = b"".join(struct.pack(">HHQ", tag, kind, 1) + value for tag, kind, value in entries)
    samples = bytes(number % 251 for number in range(width * height))
    return b"MM\0+\0\x08\0\0" + struct.pack(">Q", 16) + struct.pack(">Q", len(entries)) + body + bytes(8) + samples


def test_what_a_loader_reads_is_packed_though_pillow_does_not_open_it(tmp_path: Path) -> None:
    data = big_endian_bigtiff(30, 20)
    out = np.zeros((1, 20, 30, 3), np.uint8)
    assert int(decode_into([data], out)[0]) == 0 and out[0, 1, 2].tolist() == [32] * 3
    source = folder_of(tmp_path, odd_tif=data, plain_jpg=jpeg(30, 20))
    assert headrace.pack(source, tmp_path / "out").errors == 0
    packed = headrace.open(tmp_path / "out")
    assert packed.read(list(packed.table.keys).index("x/odd")) == data
    assert verify(tmp_path / "out", decode=True).ok


def test_portable_bitmaps_are_listed_and_other_files_counted(tmp_path: Path) -> None:
    source = folder_of(tmp_path, odd_pbm=b"P1 2 1 0 1", picture=jpeg(30, 20), notes_txt=b"-", plain_jpg=jpeg(30, 20))
    result = headrace.pack(source, tmp_path / "out")
    assert (result.records, result.errors, result.other_files) == (1, 1, 2)
    assert "x/odd.pbm" in listed(tmp_path / "out")


def test_the_libraries_of_pillow_write_nothing_to_the_terminal(tmp_path: Path) -> None:
    layout = TiffLayout(BLACK_IS_ZERO, 1, 8, rows_per_strip=100, compression="packbits")
    data = tiff_file(layout, sample_values(layout, 40, 30))
    strange = [(4899, 44_931, 3_784_260_732, b"abcd"), (40_965, 2, 1 << 20, b"\xff\xff\xff\x7f")]
    large = struct.pack("<I", 2_068_642_666)
    found = [(*entry[:3], large) if entry[0] == 279 else entry for entry in directory_entries(data)]
    source = folder_of(tmp_path, odd_tif=with_directory(data, [*found, *strange]), plain_jpg=jpeg(30, 20))
    script = "import io, sys; from PIL import Image; Image.open(sys.argv[1]).load()"
    plain = subprocess.run([sys.executable, "-c", script, source / "x/odd.tif"], capture_output=True, text=True, check=False)
    assert "TIFF" in plain.stderr  # Pillow itself is not silent
    words = ["pack", source, tmp_path / "out", "--max-side", "20"]
    ours = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True, check=False)
    assert ours.returncode == 0, ours.stderr
    assert "TIFF" not in ours.stderr and "Warning" not in ours.stderr
