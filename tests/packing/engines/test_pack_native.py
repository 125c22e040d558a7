"""Native packing gives the same bytes as packing in Python, and leaves unusual and damaged images to Python."""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace.datasets.open import open_stored
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.engines.unit import PackedRecords, pack_chunk
from headrace.packing.planning.listing import Listing, Rejection, list_records
from headrace.packing.planning.options import PackOptions
from PIL import Image
from sample_images import jpeg, with_junk

OPTIONS = [
    PackOptions(keep_bytes=True),
    PackOptions(),
    PackOptions(restart_markers=False),
    PackOptions(max_side=100, quality=90),
    PackOptions(quality=70),
    PackOptions(max_side=100),
    PackOptions(short_side=50, quality=60, restart_markers=False),
    PackOptions(resize=200, quality=75),
    PackOptions(quality=90),
]


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def zoo() -> dict[str, bytes]:
    """Return ordinary, unusual and damaged images by file name."""
    plain = jpeg(150, 113, 1)
    image = Image.open(io.BytesIO(plain))
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "plain.jpg": plain,
        "small.jpg": jpeg(40, 30, 2, quality=50),
        "fine.jpg": jpeg(90, 60, 3, quality=98),
        "marked.jpg": saved(image, "JPEG", restart_marker_blocks=3),
        "grey.jpg": saved(image.convert("L"), "JPEG"),
        "cmyk.jpg": saved(image.convert("CMYK"), "JPEG"),
        "progressive.jpg": saved(image, "JPEG", progressive=True),
        "turned.jpg": saved(image, "JPEG", exif=turned),
        "picture.png": saved(image, "PNG"),
        "turned.png": saved(image, "PNG", exif=turned),
        "float.tif": saved(Image.fromarray(np.linspace(0, 255, 600, dtype=np.float32).reshape(20, 30)), "TIFF"),
        "cut.jpg": plain[: len(plain) // 2],
        "damaged.jpg": plain[: len(plain) // 2] + bytes(50) + plain[len(plain) // 2 + 50 :],
        "rubbish.jpg": b"no image at all",
        "empty.jpg": b"",
        "hardly_finer.jpg": saved(image, "JPEG", quality=91, progressive=True),
        "junk.jpg": with_junk(plain),
        "trailing.jpg": plain + b"something behind the image",
        "long " + "ä" * 70 + ".jpg": jpeg(64, 64, 4),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zoo")
    for number, (name, data) in enumerate(zoo().items()):
        (root / f"class_{number % 2}").mkdir(exist_ok=True)
        (root / f"class_{number % 2}" / name).write_bytes(data)
    return root


def both(listing: Listing, options: PackOptions) -> tuple[list[object], list[object], int]:
    """Return the records packed natively if possible, the same packed in Python, and the number of native runs."""
    encoder = image_encoder(options)
    ways = []
    taken = 0
    for way in (encoder, replace(encoder, native=None)):
        found: list[object] = []
        for one in pack_chunk(listing, way, range(len(listing))):
            if isinstance(one, PackedRecords):
                taken += len(one.rows) > 1
                found += pieces(one)
            else:
                found.append(one)
        ways.append(found)
    return ways[0], ways[1], taken


def pieces(run: PackedRecords) -> list[object]:
    """Return members and row of each record, with offsets from the record's start."""
    members = bytes(run.members)
    with tarfile.open(fileobj=io.BytesIO(members)) as archive:
        starts = [info.offset for info in archive.getmembers() if not info.name.endswith((".cls", ".json"))]
    ends = [*starts[1:], len(members)]
    rows = [(row[0] - start, *row[1:5], row[5] and row[5] - start, row[6]) for row, start in zip(run.rows, starts, strict=True)]
    return [(members[start:end], row) for start, end, row in zip(starts, ends, rows, strict=True)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(dict(options.for_manifest())))
def test_native_and_python_packing_give_the_same_bytes(folder: Path, options: PackOptions) -> None:
    native, python, taken = both(list_records(open_stored(folder), options), options)
    assert native == python
    assert taken


@pytest.mark.parametrize("options", OPTIONS[:5], ids=lambda options: str(dict(options.for_manifest())))
def test_native_and_python_packing_agree_about_damaged_images(tmp_path: Path, options: PackOptions) -> None:
    """Bytes are changed at random, mostly in headers."""
    drawn = random.Random(7)
    (tmp_path / "a").mkdir()
    originals = [jpeg(90, 70, 1), zoo()["progressive.jpg"], zoo()["grey.jpg"], zoo()["turned.jpg"]]
    for number in range(120):
        data = bytearray(originals[number % 4])
        for _ in range(drawn.randint(1, 3)):
            data[drawn.randrange(len(data) if number % 3 == 0 else 700)] = drawn.choice((0, 255, drawn.randrange(256)))
        if number % 10 == 0:
            del data[drawn.randrange(len(data)) :]
        (tmp_path / "a" / f"{number:03d}.jpg").write_bytes(data)
    native, python, taken = both(list_records(open_stored(tmp_path), options), options)
    assert native == python
    assert taken and any(isinstance(one, Rejection) for one in native)


@pytest.mark.parametrize("options", OPTIONS[:4:3], ids=["keep_bytes", "max_side"])
def test_native_and_python_packing_agree_on_real_photographs(
    sample_images: list[Path], tmp_path: Path, options: PackOptions
) -> None:
    (tmp_path / "a").mkdir()
    for path in sample_images[:40]:
        (tmp_path / "a" / f"{path.stem}.jpg").symlink_to(path)
    native, python, _ = both(list_records(open_stored(tmp_path), options), options)
    assert native == python


def test_native_packing_of_container_records_with_json(tmp_path: Path) -> None:
    """Records lie at offsets in a file and have JSON; records that native code does not support lie between them."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, (name, data) in enumerate(zoo().items()):
            stem, _, end = name.rpartition(".")
            members = {
                f"{stem}{number}.{end}": data,
                f"{stem}{number}.cls": b"1",
                f"{stem}{number}.json": b'{"n": %d}' % number,
            }
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    for options in OPTIONS:
        native, python, _ = both(list_records(open_stored(tmp_path / "a.tar"), options), options)
        assert native == python
    whole = [one for one in native if isinstance(one, tuple)]
    assert all(row[6] for _, row in whole)


def test_a_missing_file_is_rejected_between_native_runs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(jpeg(60, 50, number))
    options = PackOptions()
    listing = list_records(open_stored(tmp_path), options)
    (tmp_path / "a" / "1.jpg").unlink()
    first, rejection, last = pack_chunk(listing, image_encoder(options), range(3))
    assert (first.first, last.first) == (0, 2)
    assert (rejection.file, rejection.reason, rejection.detail) == ("a/1.jpg", "unreadable", "No such file or directory")
