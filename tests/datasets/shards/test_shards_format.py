"""docs/reference/format.md, byte for byte: golden files, and readers of other libraries."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from headrace.datasets.records import keys as record_keys
from headrace.datasets.records import packed_keys as keys
from headrace.datasets.records.keys import Keys
from headrace.datasets.shards import index, manifest, tar
from headrace.errors import FormatError

GOLDEN = Path(__file__).parents[2] / "golden" / "packed"
RECORDS = [("cat/a", "jpg", b"\xff\xd8\xff\xd9", 0), ("dog/v1%2E2", "png", b"\x89PNG\r\n\x1a\n" + bytes(600), 1)]


def shard_bytes() -> bytes:
    members = [
        tar.member(f"{key}.{extension}", data) + tar.member(f"{key}.cls", b"%d" % label)
        for key, extension, data, label in RECORDS
    ]
    return b"".join(members) + tar.END


def columns() -> index.Columns:
    packed = Keys.of([key for key, *_ in RECORDS])
    return index.Columns(
        key_start=packed.start,
        label=np.array([0, 1]),
        offset=np.array([512, 2560]),
        size=np.array([4, 608]),
        height=np.array([3, 5], dtype=np.int32),
        shard=np.zeros(2, dtype=np.int32),
        width=np.array([4, 6], dtype=np.int32),
        crc32c=np.array([0x12345678, 0xE3069283], dtype=np.uint32),
        keys=packed.blob,
    )


def facts() -> manifest.Manifest:
    shard, table = shard_bytes(), index.serialized(columns())
    return manifest.Manifest(
        records=2,
        image_bytes=612,
        rejected=1,
        classes=("cat", "dög"),
        per_class=(1, 1),
        shards=(manifest.ShardFacts("shard-000000.tar", len(shard), hashlib.sha256(shard).hexdigest(), 2),),
        index=manifest.FileFacts(manifest.INDEX, len(table), hashlib.sha256(table).hexdigest()),
        options={"codec": "jpeg", "restart_tile": 48},
        source_kind="folder",
        source_fingerprint="0" * 32,
    )


def test_bytes_of_a_tar_header() -> None:
    expected = (
        b"cat/a.jpg".ljust(100, b"\0")
        + b"0000644\x000000000\x000000000\x0000000000004\x0000000000000\x00010670\x00 0"
        + bytes(100)
        + b"ustar\x0000"
        + bytes(64)
        + b"0000000\x000000000\x00"
        + bytes(167)
    )
    assert len(expected) == 512
    assert sum(expected[:148]) + 8 * 32 + sum(expected[156:]) == 0o010670
    assert tar.header("cat/a.jpg", 4) == expected


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("shard-000000.tar", shard_bytes),
        (manifest.INDEX, lambda: index.serialized(columns())),
        (manifest.MANIFEST, lambda: facts().serialized()),
    ],
)
def test_golden_bytes(name: str, made: object) -> None:
    """Changing one of these files changes the format: raise the version, or restore the bytes."""
    assert callable(made)
    assert made() == (GOLDEN / name).read_bytes()


def test_tarfile_reads_our_members() -> None:
    names = ["a.jpg", "x" * 100, "y" * 101 + ".jpg", "tränen/日本.jpg", "d/" * 90 + "é" * 95 + ".jpg"]
    data = b"".join(tar.member(name, name.encode()) for name in names) + tar.END
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == names
        assert all(member.isreg() and member.mode == 0o644 and member.mtime == 0 for member in members)
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            assert file.read() == member.name.encode()


def test_members_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(FormatError, match="8 GiB"):
        tar.header("a.jpg", 8**11)
    with pytest.raises(FormatError, match="escape"):
        tar.header("\udce9.jpg", 1)


def test_safetensors_reads_the_index() -> None:
    loaded = safetensors.numpy.load(index.serialized(columns()))
    assert {name: loaded[name].tolist() for name in ("label", "offset", "size", "width", "shard")} == {
        "label": [0, 1],
        "offset": [512, 2560],
        "size": [4, 608],
        "width": [4, 6],
        "shard": [0, 0],
    }
    assert loaded["crc32c"].tolist() == [0x12345678, 0xE3069283]
    assert loaded["keys"].tobytes() == b"cat/adog/v1%2E2"


def test_a_written_index_reads_back_memory_mapped() -> None:
    read = index.read_columns(GOLDEN / manifest.INDEX)
    assert list(Keys(read.keys, read.key_start)) == ["cat/a", "dog/v1%2E2"]
    assert not read.label.flags.owndata
    assert index.serialized(read) == (GOLDEN / manifest.INDEX).read_bytes()


def test_joined_indexes_have_the_rows_of_all(tmp_path: Path) -> None:
    parts = [tmp_path / "0", tmp_path / "1"]
    for path in parts:
        path.write_bytes(index.serialized(columns()))
    (tmp_path / "both").write_bytes(b"".join(index.joined_pieces(parts)))
    both = index.read_columns(tmp_path / "both")
    assert list(Keys(both.keys, both.key_start)) == [key for key, *_ in RECORDS] * 2
    assert (both.label.tolist(), both.shard.tolist()) == ([0, 1, 0, 1], [0, 0, 1, 1])
    assert index.serialized(both) == (tmp_path / "both").read_bytes()


def test_keys_behave_as_a_sequence() -> None:
    some = Keys.of(["a", "", "längs"])
    assert (len(some), some[2], some[-1], some[0:2]) == (3, "längs", "längs", ["a", ""])
    assert some == ["a", "", "längs"]
    with pytest.raises(IndexError):
        some[3]


@pytest.mark.parametrize("cut", [0, 7, 40, 300, -1])
def test_a_truncated_index_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / manifest.INDEX
    path.write_bytes((GOLDEN / manifest.INDEX).read_bytes()[:cut])
    with pytest.raises(FormatError):
        index.read_columns(path)


def test_an_inconsistent_key_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / manifest.INDEX
    path.write_bytes(index.serialized(replace(columns(), key_start=np.array([0, 99, 15]))))
    with pytest.raises(FormatError, match="key_start"):
        index.read_columns(path)
    path.write_bytes(index.serialized(replace(columns(), label=np.array([0]))))
    with pytest.raises(FormatError, match="rows"):
        index.read_columns(path)


def test_a_written_manifest_reads_back() -> None:
    assert manifest.read_manifest(GOLDEN) == facts()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "zip"}, "not a manifest"),
        ({"classes": "cat"}, "classes"),
        ({"counts": {"records": -1, "image_bytes": 0, "rejected": 0, "per_class": []}}, "records is -1"),
        ({"shards": [{"file": "../../etc/passwd", "size": 1, "sha256": "0" * 64, "records": 2}]}, "plain name"),
        ({"shards": [{"file": "a.tar", "size": 1, "sha256": "0" * 64, "records": 3}]}, "add up"),
        ({"shards": [{"file": "a.tar", "size": 1, "sha256": "xyz", "records": 2}]}, "hex digits"),
        ({"shards": [{"size": 1}]}, "'file' is missing"),
        ({"index": 3}, "subscriptable"),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    document = json.loads((GOLDEN / manifest.MANIFEST).read_text()) | change
    (tmp_path / manifest.MANIFEST).write_text(json.dumps(document))
    with pytest.raises(FormatError, match=words):
        manifest.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat/a.JPEG"], ["cat/a"]),
        (["cat/v1.2.jpg"], ["cat/v1%2E2"]),
        (["cat/b.jpg", "cat/b.png", "cat/b2.jpg"], ["cat/b=jpg", "cat/b=png", "cat/b2"]),
        (["cat/c"], ["cat/c="]),
        (["a=b%41.jpg"], ["a%3Db%2541"]),
        (["v1.0/x.jpg", ".jpg"], ["v1%2E0/x", "%2Ejpg="]),
        (["n\udce9.jpg"], ["n%E9"]),
        (["same.jpg", "same.jpg"], ["same", "same"]),
    ],
)
def test_file_names_and_keys_convert_both_ways(names: list[str], expected: list[str]) -> None:
    assert keys.keys_of(names) == expected
    extensions = [name.rpartition(".")[2] for name in names]
    back = [keys.name_of(key, end) for key, end in zip(expected, extensions, strict=True)]
    assert back == names


def test_keys_of_any_names_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    letters = ["a", ".", "/", "b", "=", "%", "\\", "\n", "é", "日", "\udce9", "\udcff", ".jpg", ".png"]
    names = ["".join(rng.choice(letters, rng.integers(1, 7))) for _ in range(3000)]
    split = [os.path.splitext(name) for name in names]  # noqa: PTH122 (as in the module)
    stems: dict[str, set[str]] = {}
    for name, (stem, _) in zip(names, split, strict=True):
        stems.setdefault(stem, set()).add(name)
    expected = [
        f"{keys.escape(stem)}={keys.escape(end[1:])}" if len(stems[stem]) > 1 or not end[1:] else keys.escape(stem)
        for stem, end in split
    ]
    assert list(keys.keys_of(names)) == expected


def test_rows_of_keys_are_selected_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_keys, "_CHUNK", 2)
    some = Keys.of(["a", "", "längs", "b", "caf\udce9"])
    assert list(some) == ["a", "", "längs", "b", "caf\udce9"]
    assert list(some.selected(np.array([4, 2, 2, 1]))) == ["caf\udce9", "längs", "längs", ""]
    assert some.are_unique() and not some.selected(np.array([0, 3, 0])).are_unique()
    assert list(some.selected(np.array([], dtype=np.int64))) == [] and Keys.of([]).are_unique()


def test_a_key_with_a_lone_percent_sign_is_refused() -> None:
    with pytest.raises(FormatError, match="percent"):
        keys.unescape("a%zz")


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / manifest.MANIFEST).write_text("[" * 200_000)
    with pytest.raises(FormatError, match="not valid JSON"):
        manifest.read_manifest(tmp_path)
