"""Damaged and hostile tar, RecordIO and TFRecord files end in an error of ours, never in wrong data or a crash."""

from __future__ import annotations

import io
import struct
import tarfile
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
from headrace.errors import FormatError, HeadraceError
from headrace.packing import pack


@pytest.mark.parametrize("name", ["/etc/passwd.jpg", "../up.jpg", "a/../../up.jpg", "a/..", "/a.cls"])
def test_member_names_that_lead_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "a.tar", [*webdataset_members(1), (name, IMAGES[0])])
    with pytest.raises(FormatError, match="leads out"):
        pack(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "up.jpg").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_an_image_that_is_a_link_is_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret.jpg").write_bytes(IMAGES[0])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("x.jpg")
        info.type, info.linkname = kind, str(tmp_path / "secret.jpg")
        archive.addfile(info)
    with pytest.raises(FormatError, match="holds a link"):
        headrace.open(tmp_path / "a.tar")


def test_links_beside_an_image_are_listed_as_rejected(tmp_path: Path) -> None:
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


def test_a_truncated_tar_is_refused(tmp_path: Path) -> None:
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
def test_member_sizes_beyond_the_archive_are_refused(tmp_path: Path, size: bytes) -> None:
    whole = bytearray(write_tar(tmp_path / "a.tar", webdataset_members(1)).read_bytes())
    whole[124:136] = size
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(FormatError, match=r"truncated|no number"):
        headrace.open(tmp_path / "a.tar")


def test_a_huge_extended_header_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("x" * (2 << 20))
        archive.addfile(info)
    with pytest.raises(FormatError, match="extended header"):
        headrace.open(tmp_path / "a.tar")


def test_damaged_tar_headers_are_refused(tmp_path: Path) -> None:
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


def test_concatenated_tars_are_read_completely(tmp_path: Path) -> None:
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
def test_malformed_recordio_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(HeadraceError, match=words):
        headrace.open(tmp_path / "a.rec")


def test_truncated_recordio_is_refused(tmp_path: Path) -> None:
    whole = write_rec(tmp_path / "a.rec", [image_record(IMAGES[0], 1, 0), image_record(IMAGES[1], 0, 1)]).read_bytes()
    for cut in {1, 7, 8, 30, len(whole) // 2 + 1, len(whole) - 4 - len(IMAGES[1]) % 4}:
        (tmp_path / "a.rec").write_bytes(whole[:cut])
        with pytest.raises(FormatError, match="truncated"):
            headrace.open(tmp_path / "a.rec")


@pytest.mark.parametrize("text", ["0\t4\n", "x\t0\n", "0 0\n", "0\t-1\n", "0\t99999999999999999999\n", "0\t999999\n"])
def test_an_idx_file_that_contradicts_its_rec_file_is_refused(tmp_path: Path, text: str) -> None:
    write_rec(tmp_path / "a.rec", [image_record(IMAGES[0], 1, 0)])
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(FormatError):
        headrace.open(tmp_path / "a.rec")


def test_damaged_or_truncated_tfrecord_is_refused(tmp_path: Path) -> None:
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
def test_malformed_tfrecord_examples_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(data))
    with pytest.raises(FormatError):
        headrace.open(tmp_path / "a.tfrecord")


def test_random_damage_gives_records_or_our_error(tmp_path: Path) -> None:
    """Any input gives records or a HeadraceError."""
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
