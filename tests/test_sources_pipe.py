"""SageMaker's Pipe mode: named pipes fed by another thread, as SageMaker feeds them."""

from __future__ import annotations

import os
import stat
import struct
import threading
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.errors import HeadraceError
from headrace.sources import pipe
from test_sources_containers import EXPECTED, IMAGES, contents, image_record, recordio, webdataset_members, write_tar


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def feed(path: Path, data: bytes) -> threading.Thread:
    """Makes the pipe and sends `data` through it when somebody reads."""
    os.mkfifo(path)

    def send() -> None:
        with open(path, "wb") as file:
            for at in range(0, len(data), 5000):
                file.write(data[at : at + 5000])

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def tars(tmp_path: Path) -> list[bytes]:
    """Two shards, as two objects under one prefix."""
    members = webdataset_members()
    return [write_tar(tmp_path / f"{i}.tar", part).read_bytes() for i, part in enumerate((members[:6], members[6:]))]


def test_raw_tars(tmp_path: Path) -> None:
    thread = feed(tmp_path / "train_0", b"".join(tars(tmp_path)))
    dataset = headrace.open(tmp_path / "train")
    thread.join(10)
    assert contents(dataset) == EXPECTED
    assert contents(headrace.open(tmp_path / "train")) == EXPECTED  # again, without a second stream
    assert stat.S_ISFIFO((tmp_path / "train_0").stat().st_mode)


def test_wrapped_tars(tmp_path: Path) -> None:
    made = tars(tmp_path)
    feed(tmp_path / "train_0", b"".join(recordio(data) for data in made))
    assert contents(headrace.open(tmp_path / "train")) == EXPECTED


def test_a_wrapped_tar_that_holds_the_magic_number(tmp_path: Path) -> None:
    odd = IMAGES[0] + bytes(-len(IMAGES[0]) % 4) + struct.pack("<I", 0xCED7230A) * 2
    data = write_tar(tmp_path / "a.tar", [("a.jpg", odd), ("a.cls", b"1")]).read_bytes()
    feed(tmp_path / "train_0", recordio(data))
    assert contents(headrace.open(tmp_path / "train_0")) == [(odd, 1)]


def test_records(tmp_path: Path) -> None:
    feed(tmp_path / "train_0", b"".join(image_record(image, label, i) for i, (image, label) in enumerate(EXPECTED)))
    assert contents(headrace.open(tmp_path / "train")) == EXPECTED


def test_two_epochs_of_a_loader(tmp_path: Path) -> None:
    feed(tmp_path / "train_0", b"".join(tars(tmp_path)))
    os.mkfifo(tmp_path / "train_1")  # SageMaker makes it; nobody has to read it
    loader = headrace.Loader(
        headrace.open(tmp_path / "train"),
        batch_size=2,
        transform=headrace.transforms.imagenet_train(24),
        shuffle=True,
        output="numpy",
        threads=2,
    )
    epochs = [np.concatenate([labels for _, labels in loader]) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[0, 0, 1, 1, 2, 2]] * 2


@pytest.mark.parametrize("data", [b"nonsense" * 100, recordio(b"\0" * 257 + b"ustar" + bytes(600))[:500], b"x"])
def test_streams_that_are_wrong(tmp_path: Path, data: bytes) -> None:
    feed(tmp_path / "train_0", data)
    with pytest.raises(HeadraceError):
        headrace.open(tmp_path / "train")


def test_a_cut_stream_is_an_error(tmp_path: Path) -> None:
    feed(tmp_path / "train_0", tars(tmp_path)[0][:3000])
    with pytest.raises(HeadraceError, match="truncated"):
        headrace.open(tmp_path / "train")


def test_a_pipe_that_nobody_feeds_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "train_0")
    monkeypatch.setattr(pipe, "_WAIT_S", 0.3)
    with pytest.raises(HeadraceError, match="nothing came"):
        headrace.open(tmp_path / "train")
