"""Tar, RecordIO and TFRecord files as other tools write them: records, labels and keys."""

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
from pathlib import Path

import headrace
import pytest
from containers import (
    EXPECTED,
    IMAGES,
    LABELS,
    contents,
    example,
    image_examples,
    image_record,
    tfrecord,
    webdataset_members,
    write_rec,
    write_tar,
)
from headrace.errors import FormatError, SourceError
from headrace.packing import pack
from sample_images import data_folder


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_in_webdataset_layout(tmp_path: Path, kind: int) -> None:
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


def test_long_and_non_ascii_member_names(tmp_path: Path) -> None:
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


def test_recordio_data_that_contains_the_magic_number(tmp_path: Path, cache: Path) -> None:
    magic = struct.pack("<I", 0xCED7230A)
    odd = [IMAGES[0] + bytes(-len(IMAGES[0]) % 4) + magic * 2 + b"tail", magic + b"x", b"abc" + magic, magic]
    records = [image_record(data, 1, 0) for data in odd]
    assert sum(record.count(magic) for record in records) > len(odd)
    write_rec(tmp_path / "a.rec", records, index=False)
    for _ in range(2):  # the second time from the cached index
        dataset = headrace.open(tmp_path / "a.rec")
        assert [data for data, _ in contents(dataset)] == odd
    for path in cache.rglob("*.bin"):
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
    """The shards and labels have the form of TensorFlow's ImageNet scripts; checksums reveal damage."""
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


def test_equal_keys_stop_a_pack_unless_an_option_decides(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [*webdataset_members(2), ("sep.txt", b""), *webdataset_members(2)])
    with pytest.raises(SourceError, match="000000") as caught:
        pack(path, tmp_path / "out")
    assert "--duplicates rename" in (caught.value.hint or "")
    assert pack(path, tmp_path / "renamed", duplicates="rename").renamed == 2
    assert list(headrace.open(tmp_path / "renamed").table.keys) == ["000000", "000001", "000000~2", "000001~2"]
    assert pack(path, tmp_path / "first", duplicates="skip").errors == 2 + 1  # sep.txt is no image


def test_an_index_is_cached_until_the_file_changes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", webdataset_members(4))
    first = headrace.open(path)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.datasets.sources.archives.tar.members", None)  # a second scan would fail
        again = headrace.open(path)
    assert again.fingerprint == first.fingerprint and contents(again) == contents(first)
    write_tar(path, webdataset_members(6))
    os.utime(path, (1e9, 1e9))
    assert len(headrace.open(path)) == 6
    for entry in cache.rglob("*.safetensors"):
        entry.write_bytes(entry.read_bytes()[:100])
    assert len(headrace.open(path)) == 6


def test_containers_open_without_a_writable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "below"))
    assert contents(headrace.open(write_tar(tmp_path / "a.tar", webdataset_members()))) == EXPECTED


def test_cifar10_tar(tmp_path: Path) -> None:
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


def test_a_tfrecord_with_the_first_bytes_of_gzip_is_read(tmp_path: Path) -> None:
    """The length, 0x8b1f bytes, begins with the two magic bytes of gzip."""
    data = example(image__class__label=1, image__encoded=IMAGES[0], a__rest=b"")
    data = example(image__class__label=1, image__encoded=IMAGES[0], a__rest=bytes(0x8B1F - len(data) - 9))
    assert len(data) == 0x8B1F
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(data))
    assert contents(headrace.open(tmp_path / "a.tfrecord")) == [(IMAGES[0], 1)]
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(tfrecord(data)))
    with pytest.raises(FormatError, match="compressed"):
        headrace.open(tmp_path / "b.tfrecord")


def test_member_names_that_are_not_utf8(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name in ("cat/é.jpg", "hé/a.jpg"):
            info = tarfile.TarInfo(name)
            info.size = len(IMAGES[0])
            archive.addfile(info, io.BytesIO(IMAGES[0]))
    for _ in range(2):  # scanned, and from the cached index
        dataset = headrace.open(tmp_path / "a.tar")
        assert [os.fsencode(key) for key in dataset.table.keys] == [b"cat/\xe9", b"h\xe9/a"]
        assert dataset.classes == ("cat", "h%E9")
    pack(dataset, tmp_path / "out")
    assert list(headrace.open(tmp_path / "out").table.keys) == ["cat/%E9", "h%E9/a"]
    assert headrace.verify(tmp_path / "out").ok


def test_file_names_that_differ_only_after_the_first_dot_give_unique_keys(tmp_path: Path) -> None:
    for number in range(2):
        data = example(image__class__label=number, image__encoded=IMAGES[number])
        (tmp_path / f"set.tfrecord-0000{number}-of-00002").write_bytes(tfrecord(data))
    dataset = headrace.open(tmp_path)
    assert list(dataset.table.keys) == [f"set.tfrecord-0000{number}-of-00002/00000000" for number in range(2)]
    assert pack(dataset, tmp_path / "out").records == 2


def test_deeply_nested_json_gives_no_label(tmp_path: Path) -> None:
    dataset = headrace.open(write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.json", b"[" * 200_000)]))
    assert dataset.table.label.tolist() == [-1]


def test_a_tar_older_than_posix(tmp_path: Path) -> None:
    """In such archives files have type NUL, and folders are files whose names end in a slash."""
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
def test_a_float_label_in_json_is_an_integer_or_none(tmp_path: Path, label: bytes, number: int) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.json", b'{"label": %b}' % label)])
    assert headrace.open(path).table.label.tolist() == [number]


def test_hidden_files_in_a_tar_have_keys_as_in_a_folder(tmp_path: Path) -> None:
    members = [("cat/.a.jpg", IMAGES[0]), ("cat/..b.c.jpg", IMAGES[1]), (".jpg", IMAGES[2]), ("d.jpg", IMAGES[3])]
    members += [(f"{name}.cls", b"1") for name in ("d", "cat/.a", "cat/..b")]
    dataset = headrace.open(write_tar(tmp_path / "a.tar", sorted(members)))
    assert (sorted(dataset.table.keys), dataset.strays) == (["cat/..b", "cat/.a", "d"], (".jpg",))
    pack(dataset, tmp_path / "out")
    assert sorted(headrace.open(tmp_path / "out").table.keys) == ["cat/%2E%2Eb", "cat/%2Ea", "d"]


def test_records_that_an_idx_file_omits_are_listed_as_rejected(tmp_path: Path) -> None:
    write_rec(tmp_path / "a.rec", [image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED)])
    lines = (tmp_path / "a.idx").read_text().splitlines(keepends=True)
    (tmp_path / "a.idx").write_text("".join(lines[:4]))
    result = pack(tmp_path / "a.rec", tmp_path / "out")
    assert (result.records, result.errors) == (4, 1)
    assert "a.rec (2 records that a.idx does not list)" in (tmp_path / "out/errors.jsonl").read_text()


@pytest.mark.parametrize("way", ["in place", "renamed"])
def test_a_rewritten_tar_of_the_same_size_and_time_has_its_new_labels(way: str, tmp_path: Path, cache: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.jpg", IMAGES[0]), ("0.cls", b"0"), ("1.jpg", IMAGES[1]), ("1.cls", b"1")])
    before = path.stat()
    assert contents(headrace.open(path)) == [(IMAGES[0], 0), (IMAGES[1], 1)]
    other = write_tar(tmp_path / "b.tar", [("0.jpg", IMAGES[0]), ("0.cls", b"1"), ("1.jpg", IMAGES[1]), ("1.cls", b"0")])
    if way == "in place":
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert contents(headrace.open(path)) == [(IMAGES[0], 1), (IMAGES[1], 0)]
