"""`headrace.verify` finds every kind of damage; opening refuses a packed dataset that contradicts itself."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.datasets.records.keys import Keys
from headrace.datasets.shards.index import read_columns, serialized
from headrace.datasets.shards.manifest import INDEX, MANIFEST, FileFacts, ShardFacts, read_manifest
from headrace.errors import FormatError, HeadraceError, SourceError
from headrace.inspection.verify import verify
from headrace.packing import pack
from sample_images import photograph

CHANGED = "its CRC-32C is not the index's: the bytes have changed"


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    pack(image_folder(classes=2, per_class=4), tmp_path / "out", shard_size=70_000)
    return tmp_path / "out"


def change_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewrite(folder: Path, **columns: object) -> None:
    """Replace columns of the index, and make the manifest agree with the new file."""
    index = serialized(replace(read_columns(folder / INDEX), **columns))
    manifest = replace(read_manifest(folder), index=FileFacts(INDEX, len(index), hashlib.sha256(index).hexdigest()))
    (folder / INDEX).write_bytes(index)
    (folder / MANIFEST).write_bytes(manifest.serialized())


def test_an_image_beyond_the_limit_is_named_and_not_read(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was copied into memory whole, and a sparse shard has images of any size."""
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "4KiB")
    problems = verify(packed).problems
    assert len(problems) == 8 and all("more than the limit of 4.0 KiB" in problem.detail for problem in problems)


def test_a_shard_that_is_cut_off_while_it_is_read_is_a_problem(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was mapped, and whoever cut it off ended the process with SIGBUS."""
    shard = min(packed.glob("*.tar"))

    def cut_off(keys: Keys, row: int) -> str:
        os.truncate(shard, 0)
        return key_of(keys, row)

    key_of = Keys.__getitem__
    monkeypatch.setattr(Keys, "__getitem__", cut_off)
    problems = verify(packed, workers=1).problems
    assert problems
    assert all((one.file, one.detail) == (shard.name, CHANGED) for one in problems)


@pytest.mark.parametrize("decode", [False, True])
def test_an_intact_dataset_has_no_problems(packed: Path, decode: bool) -> None:
    seen: list[int] = []
    result = verify(packed, decode=decode, workers=2, on_progress=seen.append)
    assert (result.ok, result.problems, result.records) == (True, (), 8)
    assert sum(seen) == result.bytes == sum(path.stat().st_size for path in packed.glob("*.tar"))


def test_a_changed_image_byte_names_the_record(packed: Path) -> None:
    columns = read_columns(packed / INDEX)
    change_byte(packed / "shard-000000.tar", int(columns.offset[0]) + 700)
    result = verify(packed)
    assert not result.ok
    assert {(problem.file, problem.key) for problem in result.problems} == {
        ("shard-000000.tar", ""),
        ("shard-000000.tar", "class_0/image_000"),
    }


@pytest.mark.parametrize("at", [0, 130, 511])
def test_a_damaged_header_of_an_image_is_found_under_a_matching_digest(packed: Path, at: int) -> None:
    """Loaders find images by the index, but tar does not read such a shard."""
    shard = packed / "shard-000000.tar"
    change_byte(shard, at)
    manifest = read_manifest(packed)
    digest = hashlib.sha256(shard.read_bytes()).hexdigest()
    resealed = [replace(facts, sha256=digest) if facts.file == shard.name else facts for facts in manifest.shards]
    (packed / MANIFEST).write_bytes(replace(manifest, shards=tuple(resealed)).serialized())
    (problem,) = verify(packed).problems
    assert (problem.file, problem.key) == (shard.name, "class_0/image_000")
    assert "tar header" in problem.detail


@pytest.mark.parametrize("name", ["ü" * 3, "n" * 120, "a.b"])
def test_headers_of_long_and_foreign_names_are_known(tmp_path: Path, name: str) -> None:
    (tmp_path / "in/x").mkdir(parents=True)
    for extension in ("jpg", "PNG"):
        file = io.BytesIO()
        photograph(20, 10).save(file, extension.replace("jpg", "JPEG"))
        (tmp_path / f"in/x/{name}.{extension}").write_bytes(file.getvalue())
    pack(tmp_path / "in", tmp_path / "out")
    assert verify(tmp_path / "out").problems == ()


def test_a_wrong_label_in_the_shard_is_found(packed: Path) -> None:
    columns = read_columns(packed / INDEX)
    behind = int(columns.offset[0] + -(-columns.size[0] // 512) * 512)
    change_byte(packed / "shard-000000.tar", behind + 512)  # the digit in the .cls member
    assert any("not its label" in problem.detail for problem in verify(packed).problems)


def test_missing_resized_and_foreign_files(packed: Path) -> None:
    (packed / "shard-000000.tar").unlink()
    with open(packed / "shard-000001.tar", "ab") as file:
        file.write(bytes(512))
    (packed / "notes.txt").write_text("")
    found = {problem.file: problem.detail for problem in verify(packed).problems}
    assert set(found) == {"shard-000000.tar", "shard-000001.tar", "notes.txt"}
    assert "No such file" in found["shard-000000.tar"] and "the manifest says" in found["shard-000001.tar"]


def test_a_damaged_image_with_a_matching_checksum_is_found_by_decoding(packed: Path) -> None:
    columns = read_columns(packed / INDEX)
    crc = columns.crc32c.copy()
    path = packed / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    begin, size = int(columns.offset[0]), int(columns.size[0])
    data[begin + size // 2 : begin + size - 2] = bytes(size - 2 - size // 2)
    path.write_bytes(data)
    crc[0] = headrace._native.crc32c(bytes(data[begin : begin + size]))
    rewrite(packed, crc32c=crc)
    assert [problem.key for problem in verify(packed).problems] == [""]  # only the shard's digest differs
    assert "class_0/image_000" in [problem.key for problem in verify(packed, decode=True).problems]


def test_a_changed_index_is_found(packed: Path) -> None:
    change_byte(packed / INDEX, (packed / INDEX).stat().st_size - 1)
    assert verify(packed).problems[0].file == INDEX


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", -1),
        ("offset", 2**63 - 1),
        ("size", 2**62),
        ("size", -5),
        ("shard", 99),
        ("shard", -1),
        ("label", 7),
        ("label", -1),
    ],
)
def test_an_index_with_values_out_of_range_is_refused(packed: Path, column: str, value: int) -> None:
    values = getattr(read_columns(packed / INDEX), column).copy()
    values[3] = value
    rewrite(packed, **{column: values})
    with pytest.raises(FormatError, match="index"):
        headrace.open(packed)
    assert not verify(packed).ok


def test_a_manifest_with_wrong_counts_is_found(packed: Path) -> None:
    document = json.loads((packed / MANIFEST).read_text())
    for path, value in [(("counts", "image_bytes"), 1), (("counts", "per_class"), [5, 3]), (("counts", "records"), 9)]:
        changed = json.loads(json.dumps(document))
        changed[path[0]][path[1]] = value
        (packed / MANIFEST).write_text(json.dumps(changed))
        assert not verify(packed).ok, path
    changed = json.loads(json.dumps(document))
    changed["shards"][0]["file"] = "../elsewhere.tar"
    (packed / MANIFEST).write_text(json.dumps(changed))
    assert "plain name" in verify(packed).problems[0].detail
    with pytest.raises(FormatError, match="plain name"):
        headrace.open(packed)


def test_every_truncation_of_every_file_is_found(packed: Path, tmp_path: Path) -> None:
    for name in (MANIFEST, INDEX, "shard-000001.tar"):
        whole = (packed / name).read_bytes()
        for cut in {0, 1, len(whole) // 2, len(whole) - 2}:  # the last byte of JSON is a line feed
            (packed / name).write_bytes(whole[:cut])
            with pytest.raises(HeadraceError):
                headrace.open(packed)
            assert not verify(packed).ok
        (packed / name).write_bytes(whole)
    assert verify(packed).ok


def test_no_dataset_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"headrace\.json is missing"):
        verify(tmp_path)


def test_open_reads_the_same_records_as_the_folder(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=3, per_class=5)
    pack(source, tmp_path / "out", keep_bytes=True, shard_size=70_000)
    folder, shards = headrace.open(source), headrace.open(tmp_path / "out")
    assert (shards.kind, shards.classes, len(shards)) == ("shards", folder.classes, len(folder))
    assert np.array_equal(shards.table.label, folder.table.label)
    assert [key + ".jpg" for key in shards.table.keys] == list(folder.table.keys)
    assert all(shards.read(i) == folder.read(i) for i in range(15))
    assert headrace.open(tmp_path / "out" / ".").fingerprint == shards.fingerprint


def test_repacking_a_pack_keeps_keys_and_bytes(packed: Path, tmp_path: Path) -> None:
    pack(packed, tmp_path / "again", shard_size=70_000)
    first, second = headrace.open(packed), headrace.open(tmp_path / "again")
    assert list(first.table.keys) == list(second.table.keys)
    assert all(first.read(i) == second.read(i) for i in range(8))


def test_a_loader_over_shards_gives_the_folders_pixels(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=8)
    pack(source, tmp_path / "out", shard_size=70_000)
    batches = []
    for path in (source, tmp_path / "out"):
        loader = headrace.Loader(
            headrace.open(path),
            batch_size=4,
            transform=headrace.transforms.imagenet_train(64),
            seed=3,
            shuffle=True,
            drop_last=True,
            threads=2,
            output="numpy",
        )
        batches.append([(images.copy(), labels.copy()) for images, labels in loader])
    assert len(batches[0]) == 4
    for (left, one), (right, two) in zip(*batches, strict=True):
        assert np.array_equal(left, right) and np.array_equal(one, two)


def test_opening_an_unfinished_or_split_pack_is_an_error(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "part", unit=(0, 2), shard_size=70_000)
    with pytest.raises(SourceError, match="unfinished"):
        headrace.open(tmp_path / "part")
    pack(source, tmp_path / "split", train_ratio=0.5)
    with pytest.raises(SourceError, match="train, val"):
        headrace.open(tmp_path / "split")
    assert len(headrace.open(tmp_path / "split" / "val")) == 6


def test_a_moved_dataset_still_opens(packed: Path, tmp_path: Path) -> None:
    shutil.move(packed, tmp_path / "moved")
    assert headrace.open(tmp_path / "moved").read(0).startswith(b"\xff\xd8")


def test_a_missing_shard_does_not_hide_other_problems(packed: Path, tmp_path: Path) -> None:
    """The folder is named `index`, which must not be mistaken for the faulty file."""
    folder = tmp_path / "index"
    shutil.move(packed, folder)
    (folder / "shard-000000.tar").unlink()
    result = verify(folder)
    assert [problem.file for problem in result.problems] == ["shard-000000.tar"]
    rewrite(folder, label=np.full(8, -1, dtype=np.int64))
    assert [problem.detail for problem in verify(folder).problems] == [f"the index of {folder} holds a label without a class"]


def test_an_empty_shard_is_a_problem_even_if_the_manifest_agrees(packed: Path) -> None:
    manifest = read_manifest(packed)
    extra = ShardFacts("extra.tar", 0, "0" * 64, 0)
    (packed / "extra.tar").touch()
    (packed / MANIFEST).write_bytes(replace(manifest, shards=(*manifest.shards, extra)).serialized())
    assert [(problem.file, problem.key) for problem in verify(packed).problems] == [("extra.tar", "")]


def test_keys_that_are_not_utf8_are_a_problem(packed: Path) -> None:
    keys = read_columns(packed / INDEX).keys.copy()
    keys[:2] = (0xFF, 0x80)
    rewrite(packed, keys=keys)
    (problem,) = verify(packed).problems
    assert (problem.file, problem.key[:2]) == ("shard-000000.tar", "\udcff\udc80") and "not valid Unicode" in problem.detail


def test_the_list_of_rejected_records_is_checked(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source, out = image_folder(), tmp_path / "out"
    for name in ("one", "two"):
        (source / f"class_0/{name}.jpg").write_text("no image")
    pack(source, out)
    assert verify(out).ok
    whole = (out / "errors.jsonl").read_bytes()
    (out / "errors.jsonl").write_bytes(whole[:-20])
    assert verify(out).problems[0].detail == "lists 1 rejected records, the manifest counts 2"
    (out / "errors.jsonl").unlink()
    assert [problem.file for problem in verify(out).problems] == ["errors.jsonl"]


def test_verifying_an_unfinished_or_split_pack_is_an_error(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "part", unit=(0, 2), shard_size=70_000)
    with pytest.raises(SourceError, match="unfinished"):
        verify(tmp_path / "part")
    pack(source, tmp_path / "split", train_ratio=0.5)
    with pytest.raises(SourceError, match="holds 2 datasets: train, val"):
        verify(tmp_path / "split")
