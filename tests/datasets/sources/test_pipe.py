"""SageMaker's Pipe mode: datasets and streams from named pipes."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from containers import EXPECTED, IMAGES, contents, image_record, recordio, webdataset_members, write_tar
from headrace.datasets.open import open_stored
from headrace.datasets.records.table import StreamRecord
from headrace.datasets.sources import pipe, stream
from headrace.datasets.sources.stream import ByteStream, stream_records
from headrace.errors import DecodeError, FormatError, HeadraceError, SourceError, UnknownLengthError
from headrace.inspection.inspect import inspect_dataset
from headrace.loading.feeding import streaming
from headrace.packing import pack
from pipe_channel import channel, feed
from traced_memory import at_most


def tars(tmp_path: Path) -> list[bytes]:
    """Return two tar shards."""
    members = webdataset_members()
    return [write_tar(tmp_path / f"{i}.tar", part).read_bytes() for i, part in enumerate((members[:6], members[6:]))]


def test_plain_tars_are_copied_to_the_cache(tmp_path: Path) -> None:
    thread = feed(tmp_path / "train_0", b"".join(tars(tmp_path)))
    dataset = open_stored(tmp_path / "train")
    thread.join(10)
    assert contents(dataset) == EXPECTED
    assert contents(open_stored(tmp_path / "train")) == EXPECTED  # again, without a second stream
    assert stat.S_ISFIFO((tmp_path / "train_0").stat().st_mode)


def test_processes_of_one_number_with_one_cache_keep_their_own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers have a process 7 each. The copy of one took the place of the other's, which then had its images."""
    made = tars(tmp_path)
    feed(tmp_path / "train_0", b"".join(made))
    first = open_stored(tmp_path / "train")
    monkeypatch.setattr(pipe, "_copies", {})  # from here on as in another container
    pipe._own_folder.cache_clear()
    (tmp_path / "other").mkdir()
    feed(tmp_path / "other" / "train_0", made[1])
    assert contents(open_stored(tmp_path / "other" / "train")) != EXPECTED
    assert contents(first) == EXPECTED


def test_tars_wrapped_in_recordio(tmp_path: Path) -> None:
    made = tars(tmp_path)
    feed(tmp_path / "train_0", b"".join(recordio(data) for data in made))
    assert contents(open_stored(tmp_path / "train")) == EXPECTED


def test_a_wrapped_tar_that_contains_the_magic_number(tmp_path: Path) -> None:
    odd = IMAGES[0] + bytes(-len(IMAGES[0]) % 4) + struct.pack("<I", 0xCED7230A) * 2
    data = write_tar(tmp_path / "a.tar", [("a.jpg", odd), ("a.cls", b"1")]).read_bytes()
    feed(tmp_path / "train_0", recordio(data))
    assert contents(open_stored(tmp_path / "train_0")) == [(odd, 1)]


def test_recordio_through_a_pipe(tmp_path: Path) -> None:
    feed(tmp_path / "train_0", b"".join(image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED)))
    assert contents(open_stored(tmp_path / "train")) == EXPECTED


@pytest.mark.parametrize("data", [b"nonsense" * 100, recordio(b"\0" * 257 + b"ustar" + bytes(600))[:500], b"x"])
def test_malformed_streams_are_refused(tmp_path: Path, data: bytes) -> None:
    feed(tmp_path / "train_0", data)
    with pytest.raises(HeadraceError):
        open_stored(tmp_path / "train")


def test_a_truncated_stream_is_an_error(tmp_path: Path) -> None:
    feed(tmp_path / "train_0", tars(tmp_path)[0][:3000])
    with pytest.raises(HeadraceError, match="ended inside"):
        open_stored(tmp_path / "train")


def test_a_job_waits_for_the_sender_of_a_pipe_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.setattr(pipe, "_SENDER_S", 0.0)
    monkeypatch.setattr(pipe, "_NOTICE_S", 0.1)
    monkeypatch.setattr(pipe, "_WAIT_S", 0.5)
    os.mkfifo(tmp_path / "train_0")
    with pytest.raises(HeadraceError, match="nothing came"):
        open_stored(tmp_path / "train")
    assert capfd.readouterr().err.count("headrace: waiting for the first bytes of ") == 1


@pytest.mark.parametrize("name", ["train_0", "photos", "photos.tar"])
def test_a_pipe_to_which_nobody_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("TRAINING_JOB_NAME", raising=False)
    monkeypatch.setattr(pipe, "_SENDER_S", 0.3)
    os.mkfifo(tmp_path / name)
    began = time.monotonic()
    for open_it in (open_stored, lambda path: list(loader(path, 4, batch_size=2))):
        with pytest.raises(HeadraceError, match="is a named pipe, and no process writes to it"):
            open_it(tmp_path / name)
    assert time.monotonic() - began < pipe._WAIT_S / 3


def test_a_sender_that_is_slow_to_begin_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINING_JOB_NAME", raising=False)
    monkeypatch.setattr(pipe, "_SENDER_S", 0.2)
    os.mkfifo(tmp_path / "train_0")
    data = b"".join(tars(tmp_path))

    def send() -> None:
        with open(tmp_path / "train_0", "wb") as file:
            time.sleep(1.5)
            file.write(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert contents(open_stored(tmp_path / "train")) == EXPECTED
    thread.join(30)


# Streams, which a Loader reads while they arrive.


@pytest.fixture
def prefix(image_folder: Callable[..., Path], tmp_path: Path) -> list[bytes]:
    """The files of a packed dataset of 40 images in the order of their names, with an errors.jsonl."""
    source = image_folder(classes=4, per_class=10)
    (source / "class_0" / "bad.jpg").write_bytes(b"no image")
    pack(source, tmp_path / "packed", shard_size=500_000)
    objects = [path.read_bytes() for path in sorted((tmp_path / "packed").iterdir())]
    assert len(objects) > 5
    return objects


def loader(channel: Path, records: int | None = None, **options: Any) -> headrace.Loader:
    settings: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle": "block:300KB", "threads": 2, "output": "numpy"}
    transform = headrace.transforms.imagenet_train(24)
    return headrace.Loader(headrace.open(channel, records=records), transform=transform, **(settings | options))


def digests(batches: Any) -> list[str]:
    return [hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() for images, labels in batches]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("buffer", ["300KB", "100MB"])
def test_two_epochs_from_pipes(tmp_path: Path, prefix: list[bytes], wrapped: bool, buffer: str) -> None:
    data = b"".join(map(recordio, prefix) if wrapped else prefix)
    with channel(tmp_path, [data, data]) as path:
        training = loader(path, shuffle=f"block:{buffer}")
        assert len(training) == 10  # stated in the manifest
        epochs = [digests(training), digests(training)]
        assert training.epoch == 2
    assert epochs[0] != epochs[1] and all(len(set(epoch)) == 10 for epoch in epochs)
    with channel(tmp_path, [data, data]) as path:
        again = loader(path, shuffle=f"block:{buffer}", threads=1, prefetch=1)
        assert [digests(again), digests(again)] == epochs
    assert not (tmp_path / "cache").exists()  # nothing was stored


def test_stats_measure_the_shuffle_of_a_stream(tmp_path: Path, prefix: list[bytes]) -> None:
    """The expected statistics are computed from the received labels."""
    found = {}
    for shuffle in (False, "block:100KB", "block:1GiB"):
        with channel(tmp_path, [b"".join(prefix)]) as path:
            data = loader(path, shuffle=shuffle, drop_last=False, batch_size=7)
            assert data.stats().shuffle is None
            labels = [label for _, part in data for label in part.tolist()]
            mixed = data.stats().shuffle
            assert mixed is not None and "as far apart in the stream" in data.explain()
        same = np.mean(np.array(labels[1:]) == np.array(labels[:-1]))
        pairs = [labels[i] == labels[j] for i in range(len(labels)) for j in range(len(labels)) if i != j]
        assert (mixed.same_class, mixed.uniform_same_class) == pytest.approx((same, np.mean(pairs)))
        found[shuffle] = mixed
    ordered, little, much = (one.distance or 0 for one in found.values())
    assert ordered == pytest.approx(3 / 41) and ordered < little < much and 0.7 < much < 1.3  # 40 records


def test_a_larger_buffer_shuffles_more_and_gives_every_record_once(tmp_path: Path, prefix: list[bytes]) -> None:
    def labels(shuffle: str | bool) -> list[int]:
        with channel(tmp_path, [b"".join(prefix)]) as path:
            data = loader(path, shuffle=shuffle, drop_last=False, batch_size=7)
            return [label for _, labels in data for label in labels.tolist()]

    ordered, little, much = labels(False), labels("block:100KB"), labels(True)
    assert ordered == sorted(ordered)
    assert sorted(little) == sorted(much) == ordered
    assert sum(map(abs, np.subtract(little, ordered))) < sum(map(abs, np.subtract(much, ordered)))


def test_every_kind_of_stream_gives_its_records(tmp_path: Path) -> None:
    rec = b"".join(image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED))
    augmented = b"".join(recordio(image) + recordio(str(label).encode()) for image, label in EXPECTED)
    for data in (b"".join(tars(tmp_path)), rec, rec + rec, recordio(rec), augmented):
        with channel(tmp_path, [data]) as path:
            stream = headrace.open(path).stream
            assert stream is not None
            found = [(record.data, record.label) for record in stream.read()]
            assert found in (EXPECTED, EXPECTED * 2)


def test_after_a_break_the_next_pipe_repeats_the_epoch(tmp_path: Path, prefix: list[bytes]) -> None:
    data = b"".join(prefix)
    with channel(tmp_path, [data] * 3) as path:
        training = loader(path)
        for _ in training:
            break
        assert training.epoch == 0
        first = digests(training)
        training.set_epoch(0)
        assert digests(training) == first


def test_a_new_pass_ends_the_old_one_and_no_thread_survives(tmp_path: Path, prefix: list[bytes]) -> None:
    data = b"".join(prefix)
    with channel(tmp_path, [data] * 3) as path:
        training = loader(path)
        abandoned = iter(training)
        next(abandoned)
        whole = digests(training)  # a new pass ends the old one
        assert len(whole) == 10
        with pytest.raises(SourceError, match="was ended"):
            list(abandoned)
        held = iter(training)
        next(held)
        training.close()
        assert not any("headrace-stream" in thread.name for thread in threading.enumerate())


def test_the_thread_that_reads_ahead_takes_no_core_from_the_thread_that_trains(tmp_path: Path, prefix: list[bytes]) -> None:
    with channel(tmp_path, [b"".join(prefix)]) as path:
        training = loader(path, prefetch=1)
        batches = iter(training)
        next(batches)
        (reader,) = (thread for thread in threading.enumerate() if thread.name == "headrace-stream")
        assert os.sched_getscheduler(reader.native_id or 0) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        training.close()


@pytest.mark.parametrize("stop", [1, 9])
def test_a_resumed_pass_continues_bit_for_bit(tmp_path: Path, prefix: list[bytes], stop: int) -> None:
    data = b"".join(prefix)
    with channel(tmp_path, [data] * 2) as path:
        whole = loader(path)
        expected = digests(whole) + digests(whole)
    with channel(tmp_path, [data]) as path:
        begun = loader(path)
        iterator = iter(begun)
        for _ in range(stop):
            next(iterator)
        state = begun.state_dict()
        del iterator
    with channel(tmp_path, [data] * 2) as path:
        resumed = loader(path)
        resumed.load_state_dict(state)
        assert digests(resumed) + digests(resumed) == expected[stop:]


@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_divide_a_stream_that_each_receives_whole(tmp_path: Path, prefix: list[bytes], drop_last: bool) -> None:
    data = b"".join(prefix)
    parts = []
    for rank in range(3):
        with channel(tmp_path, [data]) as path:
            options = {"rank": rank, "world_size": 3, "batch_size": 3, "drop_last": drop_last}
            parts.append([(images.copy(), labels) for images, labels in loader(path, **options)])
    assert len({len(part) for part in parts}) == 1 and len(parts[0]) == (4 if drop_last else 5)
    with channel(tmp_path, [data]) as path:
        whole = list(loader(path, batch_size=9))
    for (images, _), *shares in zip(whole, *parts, strict=False):
        assert np.array_equal(images, np.concatenate([share[0] for share in shares]))


def test_len_of_a_stream_without_a_manifest_is_an_error(tmp_path: Path) -> None:
    data = b"".join(tars(tmp_path))
    with channel(tmp_path, [data, data]) as path:
        training = loader(path, batch_size=2)
        with pytest.raises(UnknownLengthError, match="not known"):
            len(training)
        assert len(list(training)) == 3
        assert "stream" in training.explain() and "stream" in repr(training)
        assert len(list(training)) == 3
    with channel(tmp_path, [data, data]) as path:
        assert len(loader(path, 6, batch_size=2)) == 3
        with pytest.raises(SourceError, match="were expected"):
            list(loader(path.with_name("train_0"), 7, batch_size=2))
        list(loader(path.with_name("train_1"), 6, batch_size=2))


@pytest.mark.parametrize("share", [0.3, 0.9])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sender_that_dies_inside_a_record_is_an_error(
    tmp_path: Path, prefix: list[bytes], share: float, wrapped: bool
) -> None:
    data = b"".join(map(recordio, prefix) if wrapped else prefix)
    with channel(tmp_path, [data[: int(len(data) * share)]]) as path, pytest.raises(FormatError, match="ended inside"):
        list(loader(path))


def test_a_silent_sender_is_an_error_after_a_timeout(
    tmp_path: Path, prefix: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "_WAIT_S", 0.5)
    os.mkfifo(tmp_path / "train_0")
    writer = os.open(tmp_path / "train_0", os.O_RDWR)
    try:
        os.write(writer, prefix[-1][:2000])
        with pytest.raises(SourceError, match="nothing came"):
            list(loader(tmp_path / "train"))
    finally:
        os.close(writer)
    training = loader(tmp_path / "train")
    (tmp_path / "train_0").unlink()
    with pytest.raises(SourceError, match="no pipe"):
        list(training)


def test_the_first_batch_does_not_wait_for_later_records(tmp_path: Path) -> None:
    """The sender sends two batches and then waits until the first one is used."""
    os.mkfifo(tmp_path / "train_0")
    data = b"".join(tars(tmp_path))
    half = len(tars(tmp_path)[0])
    used, sent = threading.Event(), threading.Event()

    def send() -> None:
        with open(tmp_path / "train_0", "wb") as file:
            file.write(data[:half])
            file.flush()
            sent.set()
            assert used.wait(30)
            file.write(data[half:])

    thread = threading.Thread(target=send)
    thread.start()
    iterator = iter(loader(tmp_path / "train", batch_size=1, shuffle=False, drop_last=False))
    next(iterator)  # three records are sent: one is held back, one is returned
    used.set()
    assert len(list(iterator)) == 5
    thread.join(30)
    assert sent.is_set()


def test_bad_records_in_a_stream_are_skipped_or_raised(tmp_path: Path) -> None:
    members = webdataset_members()
    members[2] = (members[2][0], b"\xff\xd8\xffbroken")
    data = write_tar(tmp_path / "a.tar", members).read_bytes()
    with channel(tmp_path, [data, data]) as path:
        training = loader(path, batch_size=6, on_error="skip")
        ((images, labels),) = list(training)
        assert images.any(axis=(1, 2, 3)).all() and len(labels) == 6
        assert training.stats().skipped[0].key == "000001"
        with pytest.raises(DecodeError, match="000001"):
            list(loader(path.with_name("train_1"), batch_size=6))


@pytest.mark.parametrize(("name", "label", "words"), [("cat/a.jpg", b"", "'cat'"), ("a.jpg", b"-1", "the label -1")])
def test_class_names_and_negative_labels_in_a_stream_are_refused(tmp_path: Path, name: str, label: bytes, words: str) -> None:
    members = [(name, IMAGES[0]), *([("a.cls", label)] if label else [])]
    data = write_tar(tmp_path / "a.tar", members).read_bytes()
    with channel(tmp_path, [data]) as path, pytest.raises(FormatError, match=words):
        list(loader(path, batch_size=1))


def test_a_stream_gives_the_samples_of_the_same_tar_on_disk(tmp_path: Path) -> None:
    """A plain name is preferred as the image, a repeated extension begins a sample, and a GIF is an image."""
    members = [("0.mask.png", b"mask"), ("0.txt", b"words"), ("0.png", IMAGES[0]), ("0.cls", b"1")]
    members += [("1.jpg", IMAGES[1]), ("1.cls", b"2"), ("1.jpg", IMAGES[2]), ("1.cls", b"0")]
    members += [("2.gif", b"GIF89a"), ("2.cls", b"1"), ("3.left.jpg", IMAGES[3]), ("3.right.jpg", b""), ("3.cls", b"0")]
    archive = write_tar(tmp_path / "a.tar", members)
    expected = [(IMAGES[0], 1), (IMAGES[1], 2), (IMAGES[2], 0), (b"GIF89a", 1), (IMAGES[3], 0)]
    assert contents(open_stored(archive)) == expected
    with channel(tmp_path, [archive.read_bytes()]) as path:
        stream = headrace.open(path).stream
        assert stream is not None
        assert [(record.data, record.label) for record in stream.read()] == expected


def test_deeply_nested_json_in_a_stream_is_refused(tmp_path: Path) -> None:
    with channel(tmp_path, [b'{"a":' * 100_000 + b"\n"]) as path, pytest.raises(FormatError, match="damaged"):
        list(loader(path, batch_size=1))


@pytest.mark.parametrize(
    "members",
    [[("../a.jpg", b"x")], [("/a.jpg", b"x")]],
)
def test_member_names_that_lead_out_are_refused_in_a_stream(tmp_path: Path, members: list[tuple[str, bytes]]) -> None:
    data = write_tar(tmp_path / "a.tar", members).read_bytes()
    with channel(tmp_path, [data]) as path, pytest.raises(FormatError, match="leads out"):
        list(loader(path, batch_size=1))


@pytest.mark.parametrize("label", [b"1000000000000000000000", b"1e300", b"9" * 4000])
def test_labels_that_are_no_class_are_refused_in_a_stream(tmp_path: Path, label: bytes) -> None:
    data = write_tar(tmp_path / "a.tar", [("a.jpg", IMAGES[0]), ("a.json", b'{"label": ' + label + b"}")]).read_bytes()
    with channel(tmp_path, [data]) as path, pytest.raises(FormatError, match="a label must be a number from 0, below"):
        list(loader(path, batch_size=1))


def part(flag: int, data: bytes) -> bytes:
    """A part of a RecordIO record: 1 begins it, 2 goes on, 3 ends it."""
    return struct.pack("<II", 0xCED7230A, flag << 29 | len(data)) + data


def test_a_record_of_endless_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender could fill the memory with a record that never ends."""
    monkeypatch.setattr(stream, "_MAX_RECORD", 1 << 20)
    endless = chain([part(1, bytes(1 << 10))], repeat(part(2, bytes(1 << 10)), 2000))
    with at_most(4 << 20), pytest.raises(FormatError, match="more than 1,048,576 bytes in parts"):
        list(stream_records(ByteStream(endless, Path("pipe")), lambda records: None))


@pytest.mark.parametrize("end", [b"1e400", b"9" * 5000, b"[]", b"{}"])
def test_wrong_ends_of_an_index_in_a_stream_are_refused(end: bytes) -> None:
    header = b'{"x": {"data_offsets": [0, ' + end + b"]}}"
    source = ByteStream([struct.pack("<Q", len(header)) + header + bytes(600)], Path("pipe"))
    with pytest.raises(FormatError, match="an index that is damaged"):
        list(stream_records(source, lambda records: None))


def test_a_manifest_in_a_stream_states_no_more_records_than_can_be_counted() -> None:
    counts: list[int] = []
    for records in (b"9" * 30, b"7"):
        text = b'{\n"format": "headrace", "counts": {"records": ' + records + b"}\n}\n"
        list(stream_records(ByteStream([text], Path("pipe")), counts.append))
    assert counts == [7]


def test_documents_in_a_stream_hold_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1MiB")
    source = ByteStream([b'{"a": [' + b"[]," * 100_000 + b"0]}\n"], Path("pipe"))
    with at_most(4 << 20), pytest.raises(FormatError, match="more than the limit of 65,536"):
        list(stream_records(source, lambda records: None))


def test_what_is_read_ahead_is_not_copied_for_each_header() -> None:
    """Each header of a tar copied all that had been read before it: hours after a long line."""
    source = ByteStream([bytes(16 << 20)], Path("pipe"))
    source.take(1)
    with at_most(1 << 20):
        source.peek(512)


def test_huge_member_sizes_in_a_stream_are_refused(tmp_path: Path) -> None:
    header = bytearray(write_tar(tmp_path / "a.tar", [("a.jpg", b"x")]).read_bytes()[:512])
    header[124:136] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    for data in (
        bytes(header) + bytes(1 << 16),
        struct.pack("<Q", 50) + b'{"x": {"data_offsets": [0, 99999999999999]}}      ' + bytes(9),
    ):
        with channel(tmp_path, [data]) as path, pytest.raises(FormatError, match=r"are the most|ended inside"):
            list(loader(path, batch_size=1))


def test_random_damage_in_a_stream_gives_records_or_our_error(tmp_path: Path, prefix: list[bytes]) -> None:
    rec = b"".join(image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED))
    augmented = b"".join(recordio(image) + recordio(str(label).encode()) for image, label in EXPECTED)
    kinds = [b"".join(tars(tmp_path)), b"".join(prefix[:4]), rec, recordio(rec), augmented, recordio(tars(tmp_path)[0])]
    draw = random.Random(0)
    answers = {"records": 0, "error": 0}
    for number in range(600):
        data = bytearray(kinds[number % len(kinds)])
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(min(len(data), draw.choice([600, 1 << 30])))
            if draw.random() < 0.5:
                data[at] ^= 1 << draw.randrange(8)
            else:
                data[at : at + draw.randrange(700)] = bytes(draw.randrange(700))
        pieces = (bytes(data[i : i + 997]) for i in range(0, len(data), 997))
        try:
            list(stream_records(ByteStream(pieces, tmp_path), lambda records: None))
            answers["records"] += 1
        except FormatError:
            answers["error"] += 1
    assert min(answers.values()) > 50


def test_a_stream_refuses_reads_by_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train_0")
    dataset = headrace.open(tmp_path / "train", records=3)
    for use in (lambda: dataset.read(0), lambda: pack(dataset, tmp_path / "out"), lambda: inspect_dataset(dataset)):
        with pytest.raises(SourceError, match="is a stream"):
            use()


def test_the_shuffle_buffer_is_bounded() -> None:
    held = most = 0

    def records() -> Iterator[tuple[int, StreamRecord]]:
        nonlocal held, most
        for number in range(500):
            held += 1
            most = max(most, held)
            yield number, StreamRecord(str(number), 0, bytes(1000))

    seen = []
    for number, _ in streaming._shuffle_in_buffer(records(), 20_000, random.Random(0)):
        held -= 1
        seen.append(number)
    assert sorted(seen) == list(range(500)) and most <= 21


def test_a_folder_wins_over_a_pipe_beside_it(image_folder: Callable[..., Path]) -> None:
    """In a folder such as /tmp, anybody can make one there."""
    source = image_folder()
    os.mkfifo(source.with_name(f"{source.name}_0"))
    assert len(headrace.open(source)) == len(open_stored(source)) == 12
    assert headrace.open(source).kind == "folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_pipe_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "train_0")
    os.chown(tmp_path / "train_0", 54321, 54321)
    for open_it in (headrace.open, open_stored):
        for name in ("train", "train_0"):
            with pytest.raises(SourceError, match="a named pipe that belongs to user 54321"):
                open_it(tmp_path / name)
    with pytest.raises(SourceError, match="a named pipe that belongs to user 54321"):  # that of a later pass
        list(pipe.PipeStream(tmp_path / "train_0").read())
