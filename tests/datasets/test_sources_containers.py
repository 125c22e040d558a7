"""Foreign containers: tar, RecordIO, TFRecord and lists, as others write them; then damaged and hostile ones."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import headrace
import numpy as np
import pytest
from containers import (
    EXPECTED,
    IMAGES,
    LABELS,
    contents,
    example,
    field,
    image_examples,
    image_record,
    recordio,
    tfrecord,
    webdataset_members,
    write_rec,
    write_tar,
)
from headrace.cli.main import main
from headrace.errors import FormatError, HeadraceError, SourceError
from headrace.packing import pack
from sample_images import data_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_webdataset_tar(tmp_path: Path, kind: int) -> None:
    dataset = headrace.open(write_tar(tmp_path / "a.tar", webdataset_members(), kind))
    assert (dataset.kind, dataset.classes) == ("tar", ("0", "1", "2"))
    assert contents(dataset) == EXPECTED
    assert list(dataset.table.keys)[:2] == ["000000", "000001"]


def test_several_tars_by_folder_and_by_pattern(tmp_path: Path) -> None:
    members = webdataset_members()
    write_tar(tmp_path / "set-0.tar", members[:6])
    write_tar(tmp_path / "set-1.tar", members[6:])
    for path in (tmp_path, tmp_path / "set-*.tar"):
        dataset = headrace.open(path)
        assert contents(dataset) == EXPECTED
        assert list(dataset.table.keys)[3] == "set-1/000003"
    with pytest.raises(SourceError, match="no file matches"):
        headrace.open(tmp_path / "other-*.tar")


def test_long_and_foreign_names(tmp_path: Path) -> None:
    names = ["x" * 150 + "/" + "y" * 120 + ".jpg", "tränen/日本.jpg", "./dot/a.jpg"]
    for number, kind in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        members = [(name, IMAGES[i]) for i, name in enumerate(names)]
        dataset = headrace.open(write_tar(tmp_path / f"{number}.tar", members, kind))
        assert list(dataset.table.keys) == [names[0][:-4], "tränen/日本", "dot/a"]
        assert [data for data, _ in contents(dataset)] == IMAGES[:3]


def test_a_plain_tar_of_class_folders(tmp_path: Path) -> None:
    members = [(f"train/{'cat' if label else 'ant'}/{i}.jpg", image) for i, (image, label) in enumerate(EXPECTED)]
    members.append(("train/cat/0.png", IMAGES[0]))
    dataset = headrace.open(write_tar(tmp_path / "a.tar", members))
    assert dataset.classes == ("ant", "cat")
    assert [label for _, label in contents(dataset)] == [min(1, label) for label in LABELS] + [1]
    assert len(set(dataset.table.keys)) == 7


def test_json_labels_names_and_sidecars_survive_packing(tmp_path: Path) -> None:
    members = []
    for i in range(3):
        sidecar = json.dumps({"label": LABELS[i], "caption": "ä" * i}).encode()
        members += [(f"{i}.json", sidecar), (f"{i}.jpg", IMAGES[i])]
    dataset = headrace.open(write_tar(tmp_path / "a.tar", members))
    assert contents(dataset) == EXPECTED[:3]
    pack(dataset, tmp_path / "out", keep_bytes=True)
    packed = headrace.open(tmp_path / "out")
    assert contents(packed) == EXPECTED[:3]
    assert [packed.read_json(i) for i in range(3)] == [members[2 * i][1] for i in range(3)]
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as archive:
        assert archive.getnames()[:3] == ["0.jpg", "0.cls", "0.json"]
    assert headrace.verify(tmp_path / "out").ok
    pack(packed, tmp_path / "again", keep_bytes=True)
    assert headrace.open(tmp_path / "again").read_json(2) == members[4][1]


def test_class_names_in_cls(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", IMAGES[i]) for i in range(2)] + [("2.jpg", IMAGES[2]), ("2.cls", b"dog\n")]
    members[1:1] = [("0.cls", b"cat")]
    dataset = headrace.open(write_tar(tmp_path / "a.tar", members))
    assert dataset.classes == ("cat", "dog")
    assert dataset.table.label.tolist() == [0, -1, 1]
    result = pack(dataset, tmp_path / "out")
    assert (result.records, result.errors) == (2, 1)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("flag", [0, 1])
def test_recordio(tmp_path: Path, index: bool, flag: int) -> None:
    records = [image_record(image, label, i, flag=flag) for i, (image, label) in enumerate(EXPECTED)]
    dataset = headrace.open(write_rec(tmp_path / "a.rec", records, index=index))
    assert (dataset.kind, dataset.classes) == ("rec", ("0", "1", "2"))
    assert contents(dataset) == EXPECTED
    assert dataset.table.keys[0] == ("00000010" if index else "00000000")


def test_recordio_data_that_holds_the_magic_number(tmp_path: Path, own_cache: Path) -> None:
    magic = struct.pack("<I", 0xCED7230A)
    odd = [IMAGES[0] + bytes(-len(IMAGES[0]) % 4) + magic * 2 + b"tail", magic + b"x", b"abc" + magic, magic]
    records = [image_record(data, 1, 0) for data in odd]
    assert sum(record.count(magic) for record in records) > len(odd)
    write_rec(tmp_path / "a.rec", records, index=False)
    for _ in range(2):  # the second time from the cache
        dataset = headrace.open(tmp_path / "a.rec")
        assert [data for data, _ in contents(dataset)] == odd
    for path in own_cache.rglob("*.bin"):
        path.unlink()
    assert [data for data, _ in contents(headrace.open(tmp_path / "a.rec"))] == odd


def test_tfrecord(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(b"".join(tfrecord(data) for data in image_examples()))
    dataset = headrace.open(path)
    assert (dataset.kind, dataset.classes) == ("tfrecord", ("0", "1", "2"))
    assert contents(dataset) == EXPECTED
    assert list(dataset.table.keys)[:2] == ["photo0", "photo1"]


def test_tfrecord_written_by_the_tfrecord_package(tmp_path: Path) -> None:
    writer_module = pytest.importorskip("tfrecord.writer")
    path = tmp_path / "a.tfrecord"
    writer = writer_module.TFRecordWriter(str(path))
    for image, label in EXPECTED:
        texts = {
            "image/encoded": (image, "byte"),
            "image/class/label": (label + 1, "int"),
            "image/class/text": (b"c%d" % label, "byte"),
        }
        writer.write(texts)
    writer.close()
    dataset = headrace.open(path)
    assert contents(dataset) == [(image, label + 1) for image, label in EXPECTED]
    assert dataset.classes == ("0", "c0", "c1", "c2")


WRITTEN_BY_TENSORFLOW = """
import pickle, sys
import tensorflow
train = tensorflow.train

def feature(value):
    if isinstance(value, bytes):
        return train.Feature(bytes_list=train.BytesList(value=[value]))
    return train.Feature(int64_list=train.Int64List(value=[value]))

for path, examples in pickle.load(sys.stdin.buffer).items():
    with tensorflow.io.TFRecordWriter(path) as writer:
        for features in examples:
            named = {name: feature(value) for name, value in features.items()}
            writer.write(train.Example(features=train.Features(feature=named)).SerializeToString())
"""
"""In a process of its own: the `tfrecord` package registers the same protocol buffers, and two of a name are an error."""


def test_tfrecord_written_by_tensorflow(tmp_path: Path) -> None:
    """Written, sharded and labelled as TensorFlow's ImageNet scripts do; damage is found by its checksums."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    examples = [
        {
            "image/encoded": image,
            "image/class/label": label + 1,
            "image/class/text": b"c%d" % label,
            "image/filename": b"photo%d.JPEG" % at,
            "image/height": 30 + at,
            "image/object/bbox/xmin": b"",
        }
        for at, (image, label) in enumerate(EXPECTED)
    ]
    shards = {str(tmp_path / f"train-{number:05d}-of-00002"): examples[number::2] for number in range(2)}
    subprocess.run([sys.executable, "-c", WRITTEN_BY_TENSORFLOW], input=pickle.dumps(shards), check=True, timeout=100)
    dataset = headrace.open(tmp_path)
    assert sorted(contents(dataset)) == sorted((image, label + 1) for image, label in EXPECTED)
    assert dataset.classes == ("0", "c0", "c1", "c2")
    assert set(dataset.table.keys) == {f"train-0000{i % 2}-of-00002/photo{i}" for i in range(6)}
    path = tmp_path / "train-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="CRC"):
        headrace.open(tmp_path)


def test_lst(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = image_folder(classes=2, per_class=2)
    names = ["class_1/image_001.jpg", "./class_0//image_000.jpg"]
    (root / "a.lst").write_text("".join(f"{i}\t{1 - i}.000000\t{name}\n" for i, name in enumerate(names)))
    assert headrace.open(root / "a.lst").table.label.tolist() == [1, 0]
    elsewhere = tmp_path / "b.lst"
    elsewhere.write_bytes((root / "a.lst").read_bytes())
    with pytest.raises(SourceError, match="does not exist"):
        headrace.open(elsewhere)
    result = pack(elsewhere, tmp_path / "out", root=root, keep_bytes=True)
    assert result.records == 2
    assert headrace.open(elsewhere, root=root).read(0) == (root / names[0]).read_bytes()
    assert main(["inspect", str(elsewhere), "--root", str(root)]) == 0
    packed = headrace.open(tmp_path / "out")
    assert list(packed.table.keys) == ["class_1/image_001", "class_0/image_000"]
    assert packed.read(0) == (root / names[0]).read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\t1\n", "line 1"),
        ("0\t1\t2\ta.jpg\n", "2 labels"),
        ("0\t1.5\ta.jpg\n", "whole number"),
        ("0\t1\ta\0.jpg\n", "line 1: the path holds a NUL"),
        ("0\tinf\ta.jpg\n", "whole number"),
        ("0\tcat\ta.jpg\n", "whole number"),
        ("\n", "lists no images"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "a.lst")


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_tables_of_paths_and_labels(image_folder: Callable[..., Path], tmp_path: Path, kind: str, named: bool) -> None:
    root = image_folder(classes=2, per_class=2)
    names = ["class_1/image_001.jpg", "class_0/image_000.jpg", "class_0/image_001.jpg"]
    labels = ["dog", "cat", ""] if named else ["1", "0", ""]
    path = tmp_path / f"list.{kind}"
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        values = [label if named else int(label) if label else None for label in labels]
        parquet.write_table(arrow.table({"n": [1, 2, 3], "Image": names, "class": values}), path)
    else:
        mark = "\t" if kind == "tsv" else ","
        rows = [
            ["n", "Image", "class"],
            *([str(i), name, label] for i, (name, label) in enumerate(zip(names, labels, strict=True))),
        ]
        path.write_text("\ufeff" + "\r\n".join(mark.join(row) for row in rows) + "\r\n\r\n")
    result = pack(path, tmp_path / "out", root=root, keep_bytes=True)
    assert (result.records, result.errors) == (2, 1)
    packed = headrace.open(tmp_path / "out")
    assert packed.classes == (("cat", "dog") if named else ("0", "1"))
    assert contents(packed) == [((root / name).read_bytes(), label) for name, label in zip(names[:2], (1, 0), strict=True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image,size\na.jpg,1\n", "no column of labels"),
        ("label,size\n1,1\n", "no column of paths"),
        ("image,label\na.jpg\n", "line 2"),
        ("image,label\n", "lists no images"),
        ("", "no column"),
        ("image,label\nmissing.jpg,1\n", "does not exist"),
        ("image,label\na.jpg,99999999999\n", "beyond"),
        ("image,label\na.jpg,-1\n", "a.jpg has the label '-1'"),
        ("image,label\na.jpg,1\nb\0.jpg,1\n", "NUL"),
        ("image,label\na.jpg,0.5\n", "whole number"),
        (f'image,label\na.jpg,"{"1" * 200_000}\n', "line 2: field larger"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.jpg").write_bytes(IMAGES[0])
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "list.csv")
    (tmp_path / "list.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(HeadraceError, match="Parquet"):
        headrace.open(tmp_path / "list.parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_that_are_written_as_floats(tmp_path: Path, kind: str) -> None:
    """As pandas writes a column of numbers in which one is missing. As names, 10.0 would come before 2.0."""
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(IMAGES[i])
    if kind == "csv":
        (tmp_path / "list.csv").write_text("path,label\n0.jpg,10.0\n1.jpg,\n2.jpg,2.0\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {"path": ["0.jpg", "1.jpg", "2.jpg"], "label": [10.0, float("nan"), 2.0], "bytes": IMAGES[:3]}
        parquet.write_table(arrow.table(columns), tmp_path / "list.parquet")
    assert headrace.open(tmp_path / f"list.{kind}").table.label.tolist() == [10, -1, 2]


@pytest.mark.parametrize("kind", ["tar", "rec", "tfrecord"])
def test_packing_containers_keeps_images_and_labels(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "tar":
        write_tar(path, webdataset_members())
    elif kind == "rec":
        write_rec(path, [image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED)])
    else:
        path.write_bytes(b"".join(tfrecord(data) for data in image_examples()))
    pack(path, tmp_path / "out", keep_bytes=True)
    assert contents(headrace.open(tmp_path / "out")) == EXPECTED


def test_equal_keys_need_a_decision(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [*webdataset_members(2), ("sep.txt", b""), *webdataset_members(2)])
    with pytest.raises(SourceError, match="000000") as caught:
        pack(path, tmp_path / "out")
    assert "--duplicates rename" in (caught.value.hint or "")
    assert pack(path, tmp_path / "renamed", duplicates="rename").renamed == 2
    assert list(headrace.open(tmp_path / "renamed").table.keys) == ["000000", "000001", "000000~2", "000001~2"]
    assert pack(path, tmp_path / "first", duplicates="skip").errors == 2 + 1  # sep.txt is no image


def test_an_index_is_built_once_and_anew_when_the_file_changes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "a.tar", webdataset_members(4))
    first = headrace.open(path)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.datasets.sources.tar.members", None)  # a second scan would fail
        again = headrace.open(path)
    assert again.fingerprint == first.fingerprint and contents(again) == contents(first)
    write_tar(path, webdataset_members(6))
    os.utime(path, (1e9, 1e9))
    assert len(headrace.open(path)) == 6
    for entry in own_cache.rglob("*.safetensors"):
        entry.write_bytes(entry.read_bytes()[:100])
    assert len(headrace.open(path)) == 6


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "below"))
    assert contents(headrace.open(write_tar(tmp_path / "a.tar", webdataset_members()))) == EXPECTED


def test_cifar10(tmp_path: Path) -> None:
    folder = data_folder()
    if folder is None:
        pytest.skip("no sample images; set HEADRACE_TEST_DATA")
    dataset = headrace.open(folder / "cifar10-jpeg-14k.tar")
    assert len(dataset) == 14_000 and len(dataset.classes) == 10 and "airplane" in dataset.classes
    with tarfile.open(folder / "cifar10-jpeg-14k.tar") as archive:
        info = archive.next()
        assert info is not None
        file = archive.extractfile(info)
        assert file is not None and dataset.read(0) == file.read()


# Hostile and damaged ones.


@pytest.mark.parametrize("name", ["/etc/passwd.jpg", "../up.jpg", "a/../../up.jpg", "a/..", "/a.cls"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "a.tar", [*webdataset_members(1), (name, IMAGES[0])])
    with pytest.raises(FormatError, match="leads out"):
        pack(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "up.jpg").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_not_followed(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret.jpg").write_bytes(IMAGES[0])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("x.jpg")
        info.type, info.linkname = kind, str(tmp_path / "secret.jpg")
        archive.addfile(info)
    with pytest.raises(FormatError, match="holds a link"):
        headrace.open(tmp_path / "a.tar")


def test_links_beside_an_image_are_reported(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in (("0.jpg", IMAGES[0]), ("0.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name in ("0.txt", "n" * 200 + ".txt"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    strays = headrace.open(tmp_path / "a.tar").strays
    assert [stray.rpartition(" (a link")[0] for stray in strays] == ["0.txt", "n" * 200 + ".txt"]
    result = pack(tmp_path / "a.tar", tmp_path / "out")
    assert result.records == 1
    assert "0.txt (a link" in (tmp_path / "out/errors.jsonl").read_text()


def test_every_cut_of_a_tar_is_found(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", webdataset_members(2)).read_bytes()
    content = len(whole.rstrip(b"\0"))
    for cut in [*range(1, content, 97), content, *range(512, content + 1024, 512)]:
        if cut >= -(-content // 512) * 512 + 1024:
            break
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(HeadraceError):
            headrace.open(tmp_path / "cut.tar")


@pytest.mark.parametrize(
    "size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\x80" + bytes(4) + b"\x7f" + bytes(6), b"notanumber!\0"]
)
def test_huge_and_senseless_sizes(tmp_path: Path, size: bytes) -> None:
    whole = bytearray(write_tar(tmp_path / "a.tar", webdataset_members(1)).read_bytes())
    whole[124:136] = size
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(FormatError, match=r"truncated|no number"):
        headrace.open(tmp_path / "a.tar")


def test_a_huge_long_name_is_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("x" * (2 << 20))
        archive.addfile(info)
    with pytest.raises(FormatError, match="extended header"):
        headrace.open(tmp_path / "a.tar")


def test_damaged_headers_and_pax_records(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", [("ä.jpg", IMAGES[0])]).read_bytes()
    for at, value in [(0, b"z"), (512, b"99 path"), (512, b"x"), (512, b"0 "), (1024, b"q")]:
        (tmp_path / "b.tar").write_bytes(whole[:at] + value + whole[at + len(value) :])
        with pytest.raises(FormatError):
            headrace.open(tmp_path / "b.tar")
    (tmp_path / "c.tar").write_bytes(b"\x1f\x8b" + bytes(2000))
    with pytest.raises(FormatError, match="compressed"):
        headrace.open(tmp_path / "c.tar")
    (tmp_path / "d.tar").write_bytes(b"nonsense" * 200)
    with pytest.raises(FormatError, match="not a tar"):
        headrace.open(tmp_path / "d.tar")


def test_concatenated_tars_lose_nothing(tmp_path: Path) -> None:
    members = webdataset_members()
    data = b"".join(write_tar(tmp_path / "x.tar", part).read_bytes() for part in (members[:6], members[6:]))
    (tmp_path / "x.tar").write_bytes(data)
    assert contents(headrace.open(tmp_path / "x.tar")) == EXPECTED


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0" * 8, "magic"),
        (struct.pack("<II", 0xCED7230A, (1 << 29) - 1), "truncated"),
        (struct.pack("<II", 0xCED7230A, 5 << 29), "unknown flag"),
        (struct.pack("<II", 0xCED7230A, 3 << 29), "middle of a record"),
        (struct.pack("<II", 0xCED7230A, 1 << 29) + struct.pack("<II", 0xCED7230A, 0), "does not continue"),
        (recordio(b"short"), "too few"),
        (image_record(b"x", 1.5, 0), "label 1.5"),
        (image_record(b"x", float("nan"), 0), "label nan"),
        (image_record(b"x", float("inf"), 0), "label inf"),
        (image_record(b"x", -1, 0), "label -1"),
        (image_record(b"x", 1, 0, flag=3), "3 labels"),
        (recordio(struct.pack("<IfQQ", 1 << 31, 0, 0, 0)), "labels"),
        (recordio(struct.pack("<IfQQ", 1, 0, 0, 0)), "too few bytes for its label|too few"),
        (b"", "no images"),
    ],
)
def test_recordio_that_is_wrong(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "a.rec")


def test_recordio_cut_anywhere(tmp_path: Path) -> None:
    whole = write_rec(tmp_path / "a.rec", [image_record(IMAGES[0], 1, 0), image_record(IMAGES[1], 0, 1)]).read_bytes()
    for cut in {1, 7, 8, 30, len(whole) // 2 + 1, len(whole) - 4 - len(IMAGES[1]) % 4}:
        (tmp_path / "a.rec").write_bytes(whole[:cut])
        with pytest.raises(FormatError, match="truncated"):
            headrace.open(tmp_path / "a.rec")


@pytest.mark.parametrize("text", ["0\t4\n", "x\t0\n", "0 0\n", "0\t-1\n", "0\t99999999999999999999\n", "0\t999999\n"])
def test_an_idx_that_does_not_fit(tmp_path: Path, text: str) -> None:
    write_rec(tmp_path / "a.rec", [image_record(IMAGES[0], 1, 0)])
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(FormatError):
        headrace.open(tmp_path / "a.rec")


def test_tfrecord_damage_is_found_by_its_checksums(tmp_path: Path) -> None:
    whole = b"".join(tfrecord(data) for data in image_examples()[:2])
    path = tmp_path / "a.tfrecord"
    for at in (0, 5, 9, 13, 500, len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 4
        path.write_bytes(changed)
        with pytest.raises(FormatError, match="CRC"):
            headrace.open(path)
    for cut in (3, 11, 600, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError, match="truncated"):
            headrace.open(path)


@pytest.mark.parametrize(
    "data",
    [
        example(image__class__label=1),
        example(image__encoded=5),
        example(image__encoded=IMAGES[0], image__class__label=b"x"),
        example(image__encoded=IMAGES[0], image__class__label=1 << 62),
        field(1, field(1, field(1, b"image/encoded") + field(2, b"\x0a\xff"))),
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0b",
        b"\x08" + b"\xff" * 20,
        b"",
    ],
)
def test_examples_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(data))
    with pytest.raises(FormatError):
        headrace.open(tmp_path / "a.tfrecord")


def test_random_damage_ends_in_an_answer(tmp_path: Path) -> None:
    """No input may end in anything but records or an error of ours."""
    drawn = np.random.default_rng(0)
    made = {
        "tar": write_tar(tmp_path / "o.tar", webdataset_members(2)).read_bytes(),
        "rec": b"".join(image_record(IMAGES[i], LABELS[i], i) for i in range(2)),
        "tfrecord": b"".join(tfrecord(data) for data in image_examples()[:2]),
    }
    for kind, whole in made.items():
        for round_ in range(60):
            data = bytearray(whole)
            for _ in range(drawn.integers(1, 6)):
                at = int(drawn.integers(0, len(data)) if round_ % 2 else drawn.integers(0, 700))
                data[at] = drawn.integers(0, 256)
            path = tmp_path / f"{round_}.{kind}"
            path.write_bytes(data)
            try:
                contents(headrace.open(path))
            except HeadraceError as error:
                assert str(error)


def test_a_tfrecord_that_begins_as_gzip_does(tmp_path: Path) -> None:
    """Of 0x8b1f bytes: its length begins with the two bytes that a compressed file begins with."""
    data = example(image__class__label=1, image__encoded=IMAGES[0], a__rest=b"")
    data = example(image__class__label=1, image__encoded=IMAGES[0], a__rest=bytes(0x8B1F - len(data) - 9))
    assert len(data) == 0x8B1F
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(data))
    assert contents(headrace.open(tmp_path / "a.tfrecord")) == [(IMAGES[0], 1)]
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(tfrecord(data)))
    with pytest.raises(FormatError, match="compressed"):
        headrace.open(tmp_path / "b.tfrecord")


def test_names_in_a_tar_that_are_not_utf8(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name in ("cat/é.jpg", "hé/a.jpg"):
            info = tarfile.TarInfo(name)
            info.size = len(IMAGES[0])
            archive.addfile(info, io.BytesIO(IMAGES[0]))
    for _ in range(2):  # read, and from the cache
        dataset = headrace.open(tmp_path / "a.tar")
        assert [os.fsencode(key) for key in dataset.table.keys] == [b"cat/\xe9", b"h\xe9/a"]
        assert [os.fsencode(name) for name in dataset.classes] == [b"cat", b"h\xe9"]
    pack(dataset, tmp_path / "out")
    assert list(headrace.open(tmp_path / "out").table.keys) == ["cat/%E9", "h%E9/a"]
    assert headrace.verify(tmp_path / "out").ok


def test_shards_whose_names_differ_behind_the_first_dot(tmp_path: Path) -> None:
    for number in range(2):
        data = example(image__class__label=number, image__encoded=IMAGES[number])
        (tmp_path / f"set.tfrecord-0000{number}-of-00002").write_bytes(tfrecord(data))
    dataset = headrace.open(tmp_path)
    assert list(dataset.table.keys) == [f"set.tfrecord-0000{number}-of-00002/00000000" for number in range(2)]
    assert pack(dataset, tmp_path / "out").records == 2


def test_json_beside_an_image_without_an_end_to_its_depth(tmp_path: Path) -> None:
    dataset = headrace.open(write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.json", b"[" * 200_000)]))
    assert dataset.table.label.tolist() == [-1]


def test_a_tar_from_before_posix(tmp_path: Path) -> None:
    """Files are of type NUL there, and folders are files whose names end in a slash."""
    whole = bytearray(
        write_tar(tmp_path / "a.tar", [("cat/", b""), ("cat/a.jpg", IMAGES[0])], tarfile.USTAR_FORMAT).read_bytes()
    )
    for at in (0, 512):
        whole[at + 156] = 0
        whole[at + 257 : at + 265] = bytes(8)
        whole[at + 148 : at + 156] = b" " * 8
        whole[at + 148 : at + 156] = b"%06o\0 " % sum(whole[at : at + 512])
    (tmp_path / "a.tar").write_bytes(whole)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert [member.isfile() for member in archive] == [False, True]
    dataset = headrace.open(tmp_path / "a.tar")
    assert (dataset.classes, contents(dataset), dataset.strays) == (("cat",), [(IMAGES[0], 0)], ())


@pytest.mark.parametrize(("label", "number"), [(b"2.0", 2), (b"2.5", -1), (b"1e400", -1), (b"true", -1)])
def test_a_label_that_is_a_float_in_json(tmp_path: Path, label: bytes, number: int) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.json", b'{"label": %b}' % label)])
    assert headrace.open(path).table.label.tolist() == [number]


def test_hidden_files_in_a_tar_have_keys_as_in_a_folder(tmp_path: Path) -> None:
    members = [("cat/.a.jpg", IMAGES[0]), ("cat/..b.c.jpg", IMAGES[1]), (".jpg", IMAGES[2]), ("d.jpg", IMAGES[3])]
    members += [(f"{name}.cls", b"1") for name in ("d", "cat/.a", "cat/..b")]
    dataset = headrace.open(write_tar(tmp_path / "a.tar", sorted(members)))
    assert (sorted(dataset.table.keys), dataset.strays) == (["cat/..b", "cat/.a", "d"], (".jpg",))
    pack(dataset, tmp_path / "out")
    assert sorted(headrace.open(tmp_path / "out").table.keys) == ["cat/%2E%2Eb", "cat/%2Ea", "d"]


def test_records_that_an_idx_does_not_list_are_told(tmp_path: Path) -> None:
    write_rec(tmp_path / "a.rec", [image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED)])
    lines = (tmp_path / "a.idx").read_text().splitlines(keepends=True)
    (tmp_path / "a.idx").write_text("".join(lines[:4]))
    result = pack(tmp_path / "a.rec", tmp_path / "out")
    assert (result.records, result.errors) == (4, 1)
    assert "a.rec (2 records that a.idx does not list)" in (tmp_path / "out/errors.jsonl").read_text()
