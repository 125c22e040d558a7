"""`headrace.pack`: content and determinism of the shards, options, and rejected records."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from file_digests import file_digests
from headrace import transforms
from headrace.datasets.records import table as table_module
from headrace.datasets.records.keys import Keys
from headrace.datasets.shards.index import Columns, read_columns
from headrace.datasets.shards.manifest import INDEX, read_manifest
from headrace.errors import DecodeError, HeadraceError, SourceError, UsageError
from headrace.images.header import read_header
from headrace.inspection.verify import verify
from headrace.loading.loader import Loader
from headrace.packing import pack
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.engines import unit
from headrace.packing.planning.options import PackOptions
from PIL import Image
from sample_images import jpeg, photograph, pixels, with_junk


def records(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return image bytes and label of each key, read with Python's tarfile."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            for image, label in zip(members[::2], members[1::2], strict=True):
                key, dot, end = label.name.rpartition(".")
                assert dot and end == "cls" and image.name.startswith(key + ".")
                data, number = (archive.extractfile(member) for member in (image, label))
                assert data is not None and number is not None
                assert key not in found
                found[key] = (data.read(), int(number.read()))
    return found


def columns(folder: Path) -> tuple[list[str], Columns]:
    read = read_columns(folder / INDEX)
    return list(Keys(read.keys, read.key_start)), read


def test_packing_keeps_every_pixel(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=3, per_class=5)
    result = pack(source, tmp_path / "out")
    assert (result.records, result.errors, result.complete) == (15, 0, True)
    found = records(tmp_path / "out")
    assert len(found) == 15
    for path in source.rglob("*.jpg"):
        data, label = found[str(path.relative_to(source).with_suffix(""))]
        assert label == int(path.parent.name[-1])
        assert read_header(data).jpeg.restart_interval > 0
        assert np.array_equal(pixels(data), pixels(path.read_bytes()))


def test_packing_keeps_every_pixel_of_real_photographs(sample_images: list[Path], tmp_path: Path) -> None:
    for number, path in enumerate(sample_images[::3]):
        target = tmp_path / "in" / f"class_{number % 5}" / f"{path.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    result = pack(tmp_path / "in", tmp_path / "out")
    assert (result.records, result.errors) == (len(sample_images[::3]), 0)
    found = records(tmp_path / "out")
    for path in (tmp_path / "in").rglob("*.jpg"):
        data, _ = found[str(path.relative_to(tmp_path / "in").with_suffix(""))]
        assert np.array_equal(pixels(data), pixels(path.read_bytes())), path.name


@pytest.mark.parametrize("keep_bytes", [False, True])
def test_jpegs_with_bytes_between_the_segments_of_the_header_are_packed(tmp_path: Path, keep_bytes: bool) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    junk = with_junk(jpeg(200, 150))
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(junk)
    result = pack(tmp_path / "in", tmp_path / "out", keep_bytes=keep_bytes)
    assert (result.records, result.errors) == (1, 0)
    assert verify(tmp_path / "out", decode=True).ok
    ((data, _),) = records(tmp_path / "out").values()
    assert np.array_equal(pixels(data), pixels(junk))
    assert (data == junk) == keep_bytes


def test_keep_bytes_stores_files_byte_for_byte(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "out", keep_bytes=True)
    found = records(tmp_path / "out")
    assert {key: data for key, (data, _) in found.items()} == {
        str(path.relative_to(source).with_suffix("")): path.read_bytes() for path in source.rglob("*.jpg")
    }


def test_index_and_manifest_describe_the_shards(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=6)
    out = tmp_path / "out"
    result = pack(source, out, shard_size=65536)
    manifest = read_manifest(out)
    keys, index = columns(out)
    found = records(out)
    assert result.shards == len(manifest.shards) > 1
    assert manifest.per_class == (6, 6) and manifest.classes == ("class_0", "class_1")
    for i, key in enumerate(keys):
        shard = (out / manifest.shards[index.shard[i]].file).read_bytes()
        data = shard[index.offset[i] : index.offset[i] + index.size[i]]
        assert (data, int(index.label[i])) == found[key]
        assert (int(index.width[i]), int(index.height[i])) == Image.open(io.BytesIO(data)).size
    for shard in manifest.shards:
        raw = (out / shard.file).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (shard.size, shard.sha256)
        assert len(raw) <= 65536
    assert sorted(file_digests(out)) == sorted(["headrace.json", INDEX, *(shard.file for shard in manifest.shards)])


def test_the_bytes_depend_on_source_and_options_alone(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=8)
    pack(source, tmp_path / "a", workers=1, shard_size=70000)
    moved = tmp_path / "elsewhere"
    source.rename(moved)
    for path in moved.rglob("*.jpg"):
        os.utime(path, (1e9, 1e9))
    pack(moved, tmp_path / "b", workers=5, shard_size=70000)
    assert file_digests(tmp_path / "a") == file_digests(tmp_path / "b")
    assert str(tmp_path) not in (tmp_path / "a" / "headrace.json").read_text()


@pytest.mark.parametrize("first", [0, 1])
def test_units_of_an_array_job_give_the_same_bytes(image_folder: Callable[..., Path], tmp_path: Path, first: int) -> None:
    source = image_folder(classes=2, per_class=8)
    pack(source, tmp_path / "whole", shard_size=70000)
    jobs = [pack(source, tmp_path / "units", shard_size=70000, unit=(first + i, 3)) for i in (2, 0, 1)]
    assert [job.complete for job in jobs] == [False, False, True]
    assert file_digests(tmp_path / "whole") == file_digests(tmp_path / "units")


def test_packing_again_changes_nothing(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "out")
    before = file_digests(tmp_path / "out")
    again = pack(source, tmp_path / "out")
    assert (again.records, again.img_s) == (12, None)
    assert file_digests(tmp_path / "out") == before
    with pytest.raises(UsageError, match="quality"):
        pack(source, tmp_path / "out", quality=80)


def test_a_destination_with_other_files_is_refused(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("")
    with pytest.raises(UsageError, match=r"thesis\.txt"):
        pack(source, tmp_path / "out")


def test_a_destination_inside_the_source_is_refused(image_folder: Callable[..., Path]) -> None:
    source = image_folder()
    with pytest.raises(UsageError, match="inside the source"):
        pack(source, source / "packed")
    assert not (source / "packed").exists()
    with pytest.raises(UsageError, match="is the source itself"):
        pack(source, source)
    (source.parent / "link").symlink_to(source)
    with pytest.raises(UsageError, match="inside the source"):
        pack(source.parent / "link", source / "packed")


def test_a_pack_does_not_resume_with_a_changed_source(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "out", unit=(0, 2), shard_size=70000)
    (source / "class_0" / "new.jpg").write_bytes(jpeg(64, 48))
    with pytest.raises(UsageError, match="source has changed"):
        pack(source, tmp_path / "out", shard_size=70000)


def test_bad_files_are_listed_and_the_rest_is_packed(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=3)
    whole = (source / "class_0" / "image_000.jpg").read_bytes()
    (source / "class_0" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (source / "class_0" / "text.jpg").write_text("not an image")
    (source / "class_1" / "empty.jpg").write_bytes(b"")
    (source / "stray.jpg").write_bytes(whole)
    result = pack(source, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    assert (result.records, result.errors) == (6, 4)
    assert {line["file"]: line["reason"] for line in lines} == {
        "stray.jpg": "unlabeled",
        "class_0/cut.jpg": "undecodable",
        "class_0/text.jpg": "undecodable",
        "class_1/empty.jpg": "undecodable",
    }
    assert all(line["detail"] for line in lines)
    assert str(tmp_path) not in (tmp_path / "out" / "errors.jsonl").read_text()
    with pytest.raises(DecodeError, match=r"cut\.jpg"):
        pack(source, tmp_path / "strict", undecodable="stop")
    with pytest.raises(SourceError, match="without a label"):
        pack(source, tmp_path / "strict2", unlabeled="stop")


def test_keep_bytes_finds_truncated_files_too(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=1, per_class=2)
    whole = (source / "class_0" / "image_000.jpg").read_bytes()
    (source / "class_0" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    result = pack(source, tmp_path / "out", keep_bytes=True)
    assert (result.records, result.errors) == (2, 1)


def test_a_source_without_a_packable_image_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.jpg").write_text("no")
    with pytest.raises(SourceError, match=r"x\.jpg"):
        pack(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out" / "headrace.json").exists()


def test_file_names_with_dots_get_escaped_keys(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "v1.0"
    folder.mkdir(parents=True)
    names = ["a.b.jpg", "a.jpg", "twin.jpg", "twin.png", "ü%=.jpeg"]
    for seed, name in enumerate(names):
        data = jpeg(40, 30, seed)
        if name.endswith("png"):
            file = io.BytesIO()
            Image.open(io.BytesIO(data)).save(file, "PNG")
            data = file.getvalue()
        (folder / name).write_bytes(data)
    pack(tmp_path / "in", tmp_path / "out", keep_bytes=True)
    keys, _ = columns(tmp_path / "out")
    assert keys == ["v1%2E0/a%2Eb", "v1%2E0/a", "v1%2E0/twin=jpg", "v1%2E0/twin=png", "v1%2E0/ü%25%3D"]
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as archive:
        assert "v1%2E0/twin=png.png" in archive.getnames()


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "in") + b"/cl\xe9"
    os.makedirs(folder)  # noqa: PTH103 (a path of bytes)
    for name, data in ((b"caf\xe9.jpg", jpeg(40, 30)), (b"bad\xff.jpg", b"no image")):
        with open(folder + b"/" + name, "wb") as file:
            file.write(data)
    result = pack(tmp_path / "in", tmp_path / "out", shuffle=1)
    assert (result.records, result.errors) == (1, 1)
    assert columns(tmp_path / "out")[0] == ["cl%E9/caf%E9"]
    assert read_manifest(tmp_path / "out").classes == ("cl%E9",)
    assert json.loads((tmp_path / "out" / "errors.jsonl").read_text())["file"] == "cl%E9/bad%FF.jpg"


def test_splits_hold_every_record_once(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=10)
    result = pack(source, tmp_path / "out", train_ratio=0.7, test_ratio=0.1)
    parts = {name: set(records(tmp_path / "out" / name)) for name in ("train", "val", "test")}
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "val": 4, "test": 2}
    assert len(set.union(*parts.values())) == 20
    assert result.records == 20
    assert read_manifest(tmp_path / "out" / "val").classes == ("class_0", "class_1")


def test_shuffle_gives_the_same_order_for_the_same_seed(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=10)
    orders = []
    for number, shuffle in enumerate((None, 1, 1, 2)):
        pack(source, tmp_path / str(number), shuffle=shuffle)
        orders.append(columns(tmp_path / str(number))[0])
    assert orders[0] == sorted(orders[0]) == sorted(orders[1])
    assert orders[1] == orders[2]
    assert orders[0] != orders[1] != orders[3]

    def drawn(key: str) -> int:
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, salt=b"order 2").digest(), "little")

    assert orders[3] == sorted(orders[0], key=drawn), "the order of the next versions, too"


def test_classes_are_filtered_and_renumbered(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=3, per_class=2)
    pack(source, tmp_path / "out", classes=("class_2", "class_0"))
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.classes, manifest.per_class) == (("class_2", "class_0"), (2, 2))
    assert records(tmp_path / "out")["class_0/image_000"][1] == 1
    with pytest.raises(UsageError, match="class_9"):
        pack(source, tmp_path / "other", classes=("class_9",))


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"max_side": 100}, (100, 75)),
        ({"short_side": 60}, (80, 60)),
        ({"resize": 300}, (400, 300)),
        ({"transform": "Resize(80), CenterCrop((64, 48))"}, (48, 64)),
    ],
)
def test_sizes_of_reencoded_images(tmp_path: Path, options: dict[str, object], size: tuple[int, int]) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(jpeg(200, 150))
    pack(tmp_path / "in", tmp_path / "out", quality=85, **options)
    ((data, _),) = records(tmp_path / "out").values()
    header = read_header(data)
    assert (header.width, header.height) == size
    assert header.jpeg.quality == 85


def test_small_images_keep_their_coefficients(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    original = jpeg(200, 150, quality=70)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(original)
    pack(tmp_path / "in", tmp_path / "out", max_side=200, quality=95)
    ((data, _),) = records(tmp_path / "out").values()
    assert np.array_equal(pixels(data), pixels(original))


def test_grayscale_images_are_stored_with_one_component(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(jpeg(64, 48))
    pack(tmp_path / "in", tmp_path / "out", transform="Grayscale()")
    ((data, _),) = records(tmp_path / "out").values()
    assert read_header(data).jpeg.components == 1


def test_the_estimate_comes_before_the_work(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    seen = []
    pack(image_folder(), tmp_path / "out", max_side=64, on_estimate=seen.append)
    (expected,) = seen
    assert expected.images == 12
    assert 0 < expected.packed_bytes < expected.source_bytes


def test_progress_callbacks_add_up_to_the_result(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    totals: list[int] = []
    result = pack(image_folder(), tmp_path / "out", on_start=totals.append, on_progress=lambda *one: reports.append(one))
    assert totals == [12]
    count, size = (sum(column) for column in zip(*reports, strict=True))
    assert (count, size + 1024) == (12, result.bytes)  # the two blocks that end the archive


def test_a_split_is_estimated_once(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    seen = []
    pack(image_folder(), tmp_path / "out", max_side=64, train_ratio=0.5, on_estimate=seen.append)
    assert [expected.images for expected in seen] == [12]


def test_a_pipe_or_device_in_the_source_does_not_hang(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=1, per_class=2)
    (source / "class_0" / "endless.jpg").symlink_to("/dev/zero")
    (source / "a.lst").write_text("0\t0\tclass_0/image_000.jpg\n1\t0\tclass_0/endless.jpg\n")
    with pytest.raises(SourceError, match=r"endless\.jpg"):
        pack(source, tmp_path / "strict", undecodable="stop")
    assert pack(source, tmp_path / "listed").records == 2
    line = json.loads((tmp_path / "listed" / "errors.jsonl").read_text())
    assert (line["file"], line["reason"], line["detail"]) == ("class_0/endless.jpg", "unreadable", "a device, not a file")
    assert pack(source / "a.lst", tmp_path / "out").records == 1
    assert json.loads((tmp_path / "out" / "errors.jsonl").read_text())["reason"] == "unreadable"
    with pytest.raises(SourceError, match=r"endless\.jpg"):
        pack(source / "a.lst", tmp_path / "strict", undecodable="stop")


def test_equal_member_names_in_a_tar_are_two_records(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in (("a.jpg", jpeg(40, 30, 1)), ("a.cls", b"0"), ("a.jpg", jpeg(40, 30, 2)), ("a.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(SourceError, match="two records have the key 'a'"):
        pack(tmp_path / "a.tar", tmp_path / "out")
    result = pack(tmp_path / "a.tar", tmp_path / "out", duplicates="rename")
    assert (result.records, result.renamed) == (2, 1)
    assert columns(tmp_path / "out")[0] == ["a", "a~2"]


def test_keys_of_absolute_paths_are_relative(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=1, per_class=3)
    names = [str(path) for path in sorted(source.rglob("*.jpg"))]
    outside = f"../{source.name}/class_0/image_000.jpg"
    lines = [f"{number}\t0\t{name}\n" for number, name in enumerate([*names, outside])]
    (source / "all.lst").write_text("".join(lines))
    pack(source / "all.lst", tmp_path / "out")
    keys, _ = columns(tmp_path / "out")
    assert keys == [*(name.removeprefix("/").removesuffix(".jpg") for name in names), f"%2E%2E/{outside[3:-4]}"]
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as archive:
        assert not any(name.startswith("/") or ".." in name.split("/") for name in archive.getnames())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_side": 0}, "max_side is 0"),
        ({"max_side": 10, "short_side": 10}, "exclude each other"),
        ({"quality": 101}, "quality is 101"),
        ({"keep_bytes": True, "quality": 90}, "keep_bytes"),
        ({"train_ratio": 0.9, "test_ratio": 0.2}, "at most 1"),
        ({"shard_size": 10}, "64 KiB"),
        ({"codec": "coef"}, "does not exist"),
        ({"classes": ("class_0", "class_0")}, "twice"),
        ({"colour": "red"}, "colour"),
        ({"workers": 0}, "workers is 0"),
        ({"unit": (4, 3)}, "4/3"),
        ({"transform": "RandomResizedCrop(224)"}, "not possible when packing"),
        ({"transform": "Resize('a')"}, "Resize"),
        ({"transform": "__import__('os')"}, "not possible"),
        ({"transform": "Resize(("}, "cannot be read"),
    ],
)
def test_contradicting_or_unknown_options_are_refused(
    image_folder: Callable[..., Path], tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        pack(image_folder(), tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_images_of_higher_quality_are_reencoded_when_quality_is_given(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    fine, coarse = jpeg(120, 90, quality=95), jpeg(120, 90, quality=60)
    (tmp_path / "in" / "a" / "fine.jpg").write_bytes(fine)
    (tmp_path / "in" / "a" / "coarse.jpg").write_bytes(coarse)
    pack(tmp_path / "in", tmp_path / "out", quality=80)
    found = records(tmp_path / "out")
    assert read_header(found["a/fine"][0]).jpeg.quality == 80
    assert read_header(found["a/fine"][0]).jpeg.restart_interval == 2
    assert np.array_equal(pixels(found["a/coarse"][0]), pixels(coarse))


@pytest.mark.parametrize("restart_markers", [False, True])
def test_a_jpeg_that_would_only_get_worse_keeps_its_coefficients(tmp_path: Path, restart_markers: bool) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    file = io.BytesIO()
    image = Image.open(io.BytesIO(jpeg(640, 480, quality=100)))
    image.save(file, "JPEG", quality=91, progressive=True)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(file.getvalue())
    pack(tmp_path / "in", tmp_path / "out", quality=90, restart_markers=restart_markers)
    ((data, _),) = records(tmp_path / "out").values()
    assert np.array_equal(pixels(data), pixels(file.getvalue()))
    assert (read_header(data).jpeg.restart_interval > 0) == restart_markers


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P", "1", "I;16"])
def test_images_of_every_mode_can_be_resized(tmp_path: Path, mode: str) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    image = Image.open(io.BytesIO(jpeg(120, 90))).convert(mode if mode != "I;16" else "L")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 256)
    end = "jpg" if mode in ("L", "CMYK") else "png"
    image.save(tmp_path / "in" / "a" / f"x.{end}")
    pack(tmp_path / "in", tmp_path / "out", max_side=60)
    ((data, _),) = records(tmp_path / "out").values()
    header = read_header(data)
    assert (header.format, header.width, header.height) == ("jpeg", 60, 45)
    assert header.jpeg.components == (1 if mode in ("L", "1", "I;16") else 3)


def test_an_orientation_survives_reencoding(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(jpeg(120, 90))).save(tmp_path / "in" / "a" / "x.jpg", exif=exif)
    pack(tmp_path / "in", tmp_path / "out", max_side=60)
    ((data, _),) = records(tmp_path / "out").values()
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == 6


def test_a_split_needs_an_empty_folder(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"
    pack(source, out)
    with pytest.raises(UsageError, match="not empty"):
        pack(source, out, train_ratio=0.5)
    assert not (out / "train").exists()
    pack(source, tmp_path / "split", train_ratio=0.5)
    assert pack(source, tmp_path / "split", train_ratio=0.5).records == 12


def test_an_unwritable_destination_is_an_error_of_ours(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadraceError, match=r"cannot write to .*file/out: Not a directory"):
        pack(image_folder(), tmp_path / "file" / "out")
    with pytest.raises(UsageError, match="is a file; the destination is a folder"):
        pack(tmp_path / "images", tmp_path / "file")


@pytest.mark.parametrize("options", [{"resize": 700}, {"transform": "Resize(700)"}])
def test_an_image_whose_resized_side_is_too_long_is_rejected(tmp_path: Path, options: dict[str, object]) -> None:
    (tmp_path / "in/cat").mkdir(parents=True)
    (tmp_path / "in/cat/a.jpg").write_bytes(jpeg(60, 50, 1))
    for end in ("jpg", "png"):
        Image.new("RGB", (4, 400)).save(tmp_path / f"in/cat/narrow.{end}")
    result = pack(tmp_path / "in", tmp_path / "out", **options)
    assert (result.records, result.errors) == (1, 2)
    assert "would become 700 x 70,000 pixels" in (tmp_path / "out/errors.jsonl").read_text()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_enlargement_beyond_the_pixel_limit_is_refused(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, kind)
    with pytest.raises(DecodeError, match="would become 14,000 x 14,000 pixels; Loaders decode at most 178,956,970"):
        image_encoder(PackOptions(resize=14_000)).encode(file.getvalue())


def test_an_unusual_format_keeps_its_extension(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3)).save(buffer, "PCX")
    (tmp_path / "in/v1.2").mkdir(parents=True)
    (tmp_path / "in/v1.2/a.PGM").write_bytes(buffer.getvalue())
    pack(tmp_path / "in", tmp_path / "out", keep_bytes=True)
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        archive.add(tmp_path / "in/v1.2/a.PGM", "v1.2/a.ppm")
    pack(tmp_path / "in.tar", tmp_path / "again", keep_bytes=True)
    for name, member in (("out", "v1%2E2/a.pgm"), ("again", "v1%2E2/a.pcx")):
        with tarfile.open(tmp_path / name / "shard-000000.tar") as archive:
            assert archive.getnames()[0] == member


def test_a_loader_reads_packed_images_of_every_format(tmp_path: Path) -> None:
    """The pixels of packed images are those that Pillow decodes from the originals, for every format of a folder."""
    (tmp_path / "in/x").mkdir(parents=True)
    saved = [("a.pgm", "L", {}), ("b.ppm", "RGB", {}), ("c.pgm", "I;16", {}), ("d.ppm", "1", {}), ("e.bmp", "RGB", {})]
    saved += [("f.tif", "P", {}), ("g.tif", "RGB", {"compression": "tiff_lzw"}), ("h.webp", "RGB", {}), ("i.png", "LA", {})]
    for number, (name, mode, how) in enumerate(saved):
        image = photograph(40, 30, seed=number)
        (image.convert("L") if mode == "I;16" else image).convert(mode).save(tmp_path / "in/x" / name, **how)
    expected = [np.asarray(Image.open(path).convert("RGB")) for path in sorted((tmp_path / "in/x").iterdir())]
    result = pack(tmp_path / "in", tmp_path / "out")
    assert (result.records, result.errors) == (len(saved), 0)
    with tarfile.open(tmp_path / "out/shard-000000.tar") as archive:
        assert {"x/c.pgm", "x/d.pbm"} < set(archive.getnames()), "the ending says what the bytes are"
    assert verify(tmp_path / "out", decode=True).ok
    whole = transforms.CenterCrop((30, 40))
    loader = Loader(tmp_path / "out", batch_size=len(saved), transform=whole, shuffle=False, output="numpy", depth="clip")
    images, _ = next(iter(loader))
    np.testing.assert_array_equal(images, expected)


def test_wrong_sizes_in_headers_allocate_no_memory(tmp_path: Path) -> None:
    (tmp_path / "in/x").mkdir(parents=True)
    whole = jpeg(30, 20)
    frame = whole.index(b"\xff\xc0")
    (tmp_path / "in/x/a.jpg").write_bytes(whole)
    (tmp_path / "in/x/b.jpg").write_bytes(whole[: frame + 5] + b"\xff\x00\xff\x00" + whole[frame + 9 :])
    (tmp_path / "in/x/c.ppm").write_bytes(b"P6 65000 65000 255\n")
    (tmp_path / "in/x/d.pgm").write_bytes(b"P5 13000 13000 255\n")  # the largest allowed size, without data
    tracemalloc.start()
    result = pack(tmp_path / "in", tmp_path / "out", restart_markers=False, workers=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    details = [json.loads(line)["detail"] for line in (tmp_path / "out/errors.jsonl").read_text().splitlines()]
    too_large = "the image is larger than the pixel limit, its bytes or the memory allow"
    assert (result.records, details) == (1, [too_large, f"PPM: {too_large}", "the image data ends too early (truncated file)"])
    assert peak < 64 << 20


def test_reencoding_a_jpeg_with_a_wrong_size_allocates_no_memory(tmp_path: Path) -> None:
    (tmp_path / "in/x").mkdir(parents=True)
    whole = jpeg(30, 20, quality=95)
    frame = whole.index(b"\xff\xc0")
    (tmp_path / "in/x/a.jpg").write_bytes(whole)
    (tmp_path / "in/x/b.jpg").write_bytes(whole[: frame + 5] + b"\x40\x00\x40\x00" + whole[frame + 9 :])
    tracemalloc.start()
    result = pack(tmp_path / "in", tmp_path / "out", quality=80, workers=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.records, result.errors) == (1, 1)
    assert "larger than the pixel limit" in (tmp_path / "out/errors.jsonl").read_text()
    assert peak < 64 << 20


def test_images_that_no_loader_decodes_are_rejected_or_reencoded(tmp_path: Path) -> None:
    """An image that only Pillow decodes is rejected with a hint; --quality re-encodes it, --keep-bytes keeps it."""
    (tmp_path / "in/x").mkdir(parents=True)
    (tmp_path / "in/x/good.jpg").write_bytes(jpeg(30, 20))
    Image.fromarray(np.linspace(0, 255, 600, dtype=np.float32).reshape(20, 30)).save(tmp_path / "in/x/float.tif")
    Image.new("RGB", (4, 3)).save(tmp_path / "in/x/a.bmp", "PCX")
    result = pack(tmp_path / "in", tmp_path / "out")
    lines = (tmp_path / "out/errors.jsonl").read_text().splitlines()
    assert (result.records, result.errors) == (1, 2)
    assert [line["file"] for line in map(json.loads, lines)] == ["x/a.bmp", "x/float.tif"]
    for line, kind in zip(lines, ("pcx", "tiff"), strict=True):
        assert f"{kind}: a valid image of a kind that headrace does not decode; --quality 95 packs it as a JPEG" in line
    assert "of its floating-point values, those above 255 become white in a JPEG" in lines[1]
    with pytest.raises(DecodeError, match="--keep-bytes as it is"):
        pack(tmp_path / "in", tmp_path / "strict", undecodable="stop")

    assert pack(tmp_path / "in", tmp_path / "lossy", quality=95).errors == 0
    assert verify(tmp_path / "lossy", decode=True).ok
    for number, smaller in enumerate(
        ({"max_side": 500}, {"short_side": 500}, {"max_side": 10})
    ):  # smaller than the bound, or larger
        assert pack(tmp_path / "in", tmp_path / f"smaller{number}", **smaller).errors == 0
        assert verify(tmp_path / f"smaller{number}", decode=True).ok
    kinds = {key: read_header(data) for key, (data, _) in records(tmp_path / "smaller0").items()}
    assert {(key, one.format, one.width, one.height) for key, one in kinds.items()} == {
        ("x/good", "jpeg", 30, 20),
        ("x/float", "jpeg", 30, 20),
        ("x/a", "jpeg", 4, 3),
    }
    assert pack(tmp_path / "in", tmp_path / "kept", keep_bytes=True).errors == 0
    assert [problem.key for problem in verify(tmp_path / "kept", decode=True).problems] == ["x/a", "x/float"]
    (tmp_path / "in/x/a.bmp").unlink()
    with pytest.raises(DecodeError, match=r"x/float.*headrace does not decode") as caught:
        list(Loader(tmp_path / "in", batch_size=1, transform=transforms.Resize((8, 8)), shuffle=False))
    assert "headrace pack --quality 95" in (caught.value.hint or "")


def test_a_pack_of_a_list_does_not_resume_with_changed_images(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    names = [path.relative_to(source) for path in sorted(source.rglob("*.jpg"))]
    (tmp_path / "a.lst").write_text("".join(f"{i}\t0\t{name}\n" for i, name in enumerate(names)))
    assert not pack(tmp_path / "a.lst", tmp_path / "out", root=source, shard_size=65536, unit=(0, 2)).complete
    (source / names[-1]).write_bytes(jpeg(20, 20, 3))
    with pytest.raises(UsageError, match="the source has changed"):
        pack(tmp_path / "a.lst", tmp_path / "out", root=source, shard_size=65536)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_error_of_the_system_ends_the_pack_and_rejects_no_image(
    code: int, image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that this process could not open just then was left out of the dataset for good."""
    source = image_folder(classes=2, per_class=2)
    opened = table_module.regular_opener

    def fails(path: str, flags: int) -> int:
        if path.endswith("image_001.jpg"):
            raise OSError(code, os.strerror(code))
        return opened(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(table_module, "regular_opener", fails)
        patch.setattr(unit, "pack_records", lambda encoder, records: [])
        with pytest.raises(SourceError, match=os.strerror(code)):
            pack(source, tmp_path / "out", workers=1)
    pack(source, tmp_path / "out", workers=1)
    assert read_manifest(tmp_path / "out").records == 4
