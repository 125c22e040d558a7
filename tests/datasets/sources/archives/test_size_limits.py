"""What files and servers claim is bounded: no small or sparse file takes the machine's memory, disk or time."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from containers import IMAGES, example, field, tfrecord, write_tar
from file_digests import file_digests
from headrace.datasets.sources.archives import recordio
from headrace.datasets.sources.archives import tfrecord as tfrecord_module
from headrace.datasets.sources.archives.tar import samples
from headrace.datasets.sources.archives.tfrecord import masked_crc32c
from headrace.errors import DecodeError, FormatError, HeadraceError, StateError, UsageError
from headrace.inspection.inspect import inspect_dataset
from headrace.packing.folder_copy import RECORD
from headrace.system.files.regular_file import read_regular
from headrace.system.text.size_limits import RECORD_LIMIT, record_limit
from headrace.training.weights import checkpoint
from traced_memory import at_most

HUGE = 200 << 30  # bytes of a sparse file, which takes no disk


def sparse(path: Path, size: int = HUGE) -> None:
    """Make a file as large as its size says, or longer than it was, without its blocks."""
    with open(path, "ab") as file:
        file.truncate(size)


def split_record(size: int) -> bytes:
    """A RecordIO record of two parts."""
    image = struct.pack("<IfQQ", 0, 1.0, 7, 0) + bytes(size)
    parts = [struct.pack("<II", recordio.MAGIC, flag << 29 | len(part)) + part for flag, part in ((1, image), (3, bytes(8)))]
    return b"".join(parts)


def test_an_index_that_lists_a_split_record_again_and_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(split_record(4 << 20))
    (tmp_path / "a.idx").write_text("".join(f"{number}\t0\n" for number in range(100)))
    with at_most(32 << 20), pytest.raises(FormatError, match="listed again and again"):
        headrace.open(tmp_path / "a.rec")
    (tmp_path / "a.idx").write_text("0\t0\n")
    assert len(headrace.open(tmp_path / "a.rec")) == 1


def test_parts_without_data_count_as_those_of_a_split_record(tmp_path: Path) -> None:
    """Eight bytes each, they are joined by magic numbers: 8 MB took 4 MB and a second for each line of the index."""
    whole = split_record(0)
    first = len(whole) - 16
    (tmp_path / "a.rec").write_bytes(whole[:first] + struct.pack("<II", recordio.MAGIC, 2 << 29) * 1000 + whole[first:])
    (tmp_path / "a.idx").write_text("".join(f"{number}\t0\n" for number in range(100)))
    with at_most(1 << 20), pytest.raises(FormatError, match="listed again and again"):
        headrace.open(tmp_path / "a.rec")
    (tmp_path / "a.idx").write_text("0\t0\n")
    assert len(headrace.open(tmp_path / "a.rec")) == 1


def test_an_index_with_more_records_than_fit_is_refused(tmp_path: Path) -> None:
    whole = struct.pack("<IfQQ", 0, 1.0, 7, 0)
    (tmp_path / "a.rec").write_bytes(struct.pack("<II", recordio.MAGIC, len(whole)) + whole)
    (tmp_path / "a.idx").write_text("".join(f"{number}\t0\n" for number in range(100)))
    with pytest.raises(FormatError, match=r"lists more records than a\.rec can hold"):
        headrace.open(tmp_path / "a.rec")


def test_zeros_of_a_sparse_archive_take_no_time(tmp_path: Path) -> None:
    """Each block of 512 bytes was looked at: terabytes behind the end of a small archive took hours."""
    images = [(f"a/{number}.jpg", IMAGES[number]) for number in range(2)]
    first = write_tar(tmp_path / "first.tar", images[:1]).read_bytes()
    second = write_tar(tmp_path / "second.tar", images[1:]).read_bytes()
    for name, end in (("alone", b""), ("followed", second)):
        path = tmp_path / f"{name}.tar"
        path.write_bytes(first)
        sparse(path, 2 << 40)
        with open(path, "ab") as file:
            file.write(end)
    began_s = time.process_time()
    assert len(headrace.open(tmp_path / "alone.tar")) == 1
    assert len(headrace.open(tmp_path / "followed.tar")) == 2
    assert time.process_time() - began_s < 3


def test_features_of_any_number_in_an_example_take_no_memory(tmp_path: Path) -> None:
    """Each was held, with its name, though four are looked at: 14 MB took 430."""
    wanted = example(image__encoded=IMAGES[0], image__class__label=2)
    others = b"".join(field(1, field(1, b"%d" % number)) for number in range(60_000))
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(wanted + field(1, others)))
    with at_most(8 << 20):
        dataset = headrace.open(tmp_path / "a.tfrecord")
    assert (dataset.read(0), int(dataset.table.label[0])) == (IMAGES[0], 2)


def test_a_tfrecord_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was mapped, and whoever cut it off ended the process with SIGBUS."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(map(tfrecord, [example(image__encoded=image, a__rest=bytes(1 << 20)) for image in IMAGES[:4]])))
    asked: list[int] = []

    def cut_off(data: bytes) -> int:
        asked.append(len(data))
        if len(asked) == 4:
            sparse(path, 1000)
        return masked_crc32c(data)

    monkeypatch.setattr(tfrecord_module, "masked_crc32c", cut_off)
    with pytest.raises(FormatError, match="more than the file holds: the file is truncated"):
        headrace.open(path)


def test_pax_headers_are_read_in_linear_time(tmp_path: Path) -> None:
    def archive(entries: int) -> Path:
        raw = b"6 a=b\n" * entries
        head = bytearray(512)
        head[:3], head[124:136], head[156:157] = b"pax", b"%011o\0" % len(raw), b"x"
        head[257:265], head[148:156] = b"ustar\x0000", b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        path = write_tar(tmp_path / f"{entries}.tar", [("0.jpg", IMAGES[0]), ("0.cls", b"1")])
        path.write_bytes(bytes(head) + raw + bytes(-len(raw) % 512) + path.read_bytes())
        return path

    began_s = time.process_time()
    assert len(headrace.open(archive(170_000))) == 1  # just below 1 MiB; took half a minute
    assert time.process_time() - began_s < 5
    with pytest.raises(FormatError):
        headrace.open(archive(180_000))


@pytest.mark.parametrize(
    "raw", [b"6 a=b\n7", b"99 a=b\n", b"0 a=b\n", b"x a=b\n", b"6a=bc\n", b" 6 a=b\n", b"5 a=b\n", b"4 ab\n"]
)
def test_damaged_pax_headers_are_refused(raw: bytes) -> None:
    from headrace.datasets.sources.archives.tar import Headers

    with pytest.raises(FormatError, match="damaged pax header"):
        Headers(Path("a.tar")).extend(b"x", raw, 0)


@pytest.mark.parametrize("name", ["a.lst", "a.csv"])
def test_a_label_far_beyond_the_records_is_refused(name: str, image_folder: Callable[..., Path]) -> None:
    source = image_folder(classes=1, per_class=2)
    image = sorted((source / "class_0").iterdir())[0]
    text = f"0\t9999999\t{image}\n" if name == "a.lst" else f"path,label\n{image},9999999\n"
    (source / name).write_text(text)
    with at_most(32 << 20), pytest.raises(FormatError, match="label 9999999 is beyond 100,000 classes"):
        headrace.open(source / name)


@pytest.mark.parametrize("name", ["a.lst", "a.csv", "a.idx"])
def test_a_sparse_list_is_refused(name: str, tmp_path: Path) -> None:
    whole = struct.pack("<IfQQ", 0, 1.0, 7, 0)
    (tmp_path / "a.rec").write_bytes(struct.pack("<II", recordio.MAGIC, len(whole)) + whole)
    sparse(tmp_path / name)
    with at_most(32 << 20), pytest.raises(HeadraceError):
        headrace.open(tmp_path / ("a.rec" if name == "a.idx" else name))


@pytest.mark.parametrize("name", ["headrace.json", "index.safetensors", "errors.jsonl"])
def test_a_sparse_file_of_a_packed_dataset_is_refused(name: str, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=1, per_class=4)
    (source / "class_0" / "bad.jpg").write_bytes(b"no image")
    packed = tmp_path / "packed"
    headrace.pack(source, packed)
    sparse(packed / name)
    with at_most(64 << 20):
        for read in (headrace.verify, inspect_dataset):
            try:
                result = read(packed)
            except HeadraceError:
                continue
            assert read is inspect_dataset or not result.ok  # type: ignore[union-attr]


def test_sparse_records_are_rejected_one_by_one(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder(classes=1, per_class=4)
    expected = headrace.pack(source, tmp_path / "expected")
    sparse(source / "class_0" / "large.jpg")
    with at_most(64 << 20):
        found = headrace.pack(source, tmp_path / "packed", workers=1)
        inspected = inspect_dataset(source)
    assert (found.records, found.errors) == (expected.records, 1)
    assert "more than the limit" in inspected.unreadable["class_0/large.jpg"]
    assert "more than the limit" in (tmp_path / "packed" / "errors.jsonl").read_text()
    assert file_digests(tmp_path / "packed") != file_digests(tmp_path / "expected")


def test_a_sparse_sidecar_of_a_tar_rejects_its_record(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.jpg", IMAGES[0]), ("0.cls", b"1"), ("1.jpg", IMAGES[1]), ("1.cls", b"1")])
    members = path.read_bytes().rstrip(b"\0")
    members += bytes(-len(members) % 512)
    head = bytearray(512)
    head[:9], head[124:136], head[156:157] = b"1.seg.png", b"\x80" + HUGE.to_bytes(11, "big"), b"0"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    path.write_bytes(members + bytes(head))
    sparse(path, len(members) + 512 + HUGE + 1024)
    with at_most(64 << 20):
        result = headrace.pack(path, tmp_path / "packed", workers=1)
    assert (result.records, result.errors) == (1, 1)


def test_a_sparse_record_of_a_folder_copy_is_damaged(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    headrace.pack(image_folder(classes=1, per_class=2), tmp_path / "copy", layout="folder")
    sparse(tmp_path / "copy" / RECORD)
    with at_most(64 << 20), pytest.raises(FormatError):
        headrace.verify(tmp_path / "copy")


def test_a_sparse_checkpoint_is_damaged(tmp_path: Path) -> None:
    import torch

    path = checkpoint.save(tmp_path, 1, {"a": torch.zeros(2)}, {})
    sparse(path / checkpoint.TENSORS, 1 << 42)
    with pytest.raises(StateError):
        checkpoint.load(path)


def test_the_limit_of_a_record_can_be_raised(
    image_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(2000))
    monkeypatch.setenv(RECORD_LIMIT, "1000")
    with pytest.raises(OSError, match=f"more than the limit of 1000 B .{RECORD_LIMIT}=SIZE raises it"):
        read_regular(tmp_path / "file")
    monkeypatch.setenv(RECORD_LIMIT, "2KiB")
    assert len(read_regular(tmp_path / "file")) == 2000 and record_limit() == 2048
    monkeypatch.setenv(RECORD_LIMIT, "much")
    with pytest.raises(UsageError, match=RECORD_LIMIT):
        read_regular(tmp_path / "file")
    monkeypatch.delenv(RECORD_LIMIT)
    assert record_limit() == 1 << 30


def test_split_records_of_a_sparse_file_take_no_memory(tmp_path: Path) -> None:
    length = (1 << 29) - 4
    for name in ("a.rec", "b.rec"):  # each below the limit, together above it
        with open(tmp_path / name, "wb") as file:
            for number, flag in enumerate((1, 3)):
                file.seek(number * (8 + length))
                file.write(struct.pack("<II", recordio.MAGIC, flag << 29 | length))
            file.truncate(2 * (8 + length))
    with at_most(1 << 20), pytest.MonkeyPatch.context() as patch:
        patch.setenv(RECORD_LIMIT, "500MB")
        with pytest.raises(FormatError, match="for records in several parts, together"):
            headrace.open(tmp_path)
    counter = recordio._Joined()
    assert (counter.add(3), counter.add(4)) == (3, 7)  # one counter for all files of a dataset


def test_an_example_of_a_sparse_tfrecord_is_not_read_whole(tmp_path: Path) -> None:
    length = struct.pack("<Q", HUGE)
    (tmp_path / "a.tfrecord").write_bytes(length + struct.pack("<I", masked_crc32c(length)))
    sparse(tmp_path / "a.tfrecord", HUGE + 16)
    with at_most(1 << 20), pytest.raises(FormatError, match="more than the limit of 1"):
        headrace.open(tmp_path / "a.tfrecord")


def test_names_of_classes_and_members_have_the_length_of_a_line(tmp_path: Path) -> None:
    for name, member in (("a.cls", bytes(1 << 20)), ("a.json", b'{"label": "%s"}' % (b"x" * (1 << 17)))):
        write_tar(tmp_path / "a.tar", [("a.png", IMAGES[0]), (name, member)])
        with pytest.raises(FormatError, match="a label"):
            headrace.open(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", [(f"{'x' * (1 << 17)}.png", IMAGES[0])])
    with pytest.raises(FormatError, match="has a name of"):
        headrace.open(tmp_path / "a.tar")
    named = example(image__class__label=1, image__encoded=IMAGES[0], image__class__text=bytes(1 << 17))
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(named))
    with pytest.raises(FormatError, match="a name of"):
        headrace.open(tmp_path / "a.tfrecord")


def test_a_sample_of_any_number_of_members_takes_no_time_for_each_pair(tmp_path: Path) -> None:
    """Each extension was compared with all before it: thirty megabytes of empty files took minutes."""
    write_tar(tmp_path / "a.tar", [*((f"key.x{number}", b"") for number in range(20_000)), ("key.jpg", IMAGES[0])])
    began_s = time.process_time()
    found = list(samples(tmp_path / "a.tar"))
    assert time.process_time() - began_s < 8
    assert len(found) == 1 and len(found[0][1]) == 20_001


@pytest.mark.parametrize(
    ("document", "words"), [(b"[" * 60_000 + b"]" * 60_000, "nested too deeply"), (b"[%b[]]" % (b"[]," * 200_000), "values")]
)
def test_the_json_of_a_record_takes_no_memory_for_its_values(
    document: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 MB of `[],` took 6 GB, and brackets in brackets ended the loader with Python's RecursionError."""
    monkeypatch.setenv(RECORD_LIMIT, "1MiB")
    data = headrace.open(write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.cls", b"0"), ("a.json", document)]))
    with at_most(4 << 20), pytest.raises(FormatError, match=words):
        data.parsed_json(0)


def test_a_sparse_image_of_a_folder_is_an_error_of_the_image(image_folder: Callable[..., Path]) -> None:
    """Its zeros were read: gigabytes, in each thread."""
    root = image_folder()
    sparse(next(root.rglob("*.jpg")), 2 << 30)
    loader = headrace.Loader(headrace.open(root), 2, transform=headrace.transforms.RandomResizedCrop(32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError, match="could not be read"):
        list(loader)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


def test_a_file_that_states_no_size_is_read_to_its_limit() -> None:
    """A link to a file of /proc, which has no end of its own, or a file that grows."""
    file = Path("/proc/self/status")
    assert file.stat().st_size == 0 and read_regular(file).startswith(b"Name:")
    with pytest.raises(OSError, match="more than the limit of 10 B"):
        read_regular(file, limit=10)
