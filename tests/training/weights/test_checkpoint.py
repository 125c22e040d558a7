"""Checkpoints are whole or absent, and every damaged byte is detected."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from headrace.errors import HeadraceError, StateError
from headrace.training.weights import checkpoint

TENSORS = {"a": torch.arange(100, dtype=torch.float32), "b": torch.tensor(3, dtype=torch.int64)}
STATE = {"step": 7, "loader": {"epoch": 1}}


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 7, TENSORS, STATE)
    found = checkpoint.load(path)
    assert found.state == STATE
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, TENSORS, STATE, keep=2)
    assert [path.name for path in checkpoint.candidates(tmp_path)] == ["step-000000100", "step-000000010"]


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.STATE])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_bit_raises_and_the_checkpoint_before_is_loaded(tmp_path: Path, name: str, where: float) -> None:
    checkpoint.save(tmp_path, 1, TENSORS, STATE)
    path = checkpoint.save(tmp_path, 2, TENSORS, STATE)
    data = bytearray((path / name).read_bytes())
    data[int(where * len(data))] ^= 4
    (path / name).write_bytes(data)
    with pytest.raises(StateError, match="step-000000002"):
        checkpoint.load(path)
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None and found.path.name == "step-000000001"
    assert len(damaged) == 1


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.STATE])
def test_missing_and_truncated_files_raise(tmp_path: Path, name: str) -> None:
    path = checkpoint.save(tmp_path, 2, TENSORS, STATE)
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(StateError, match="step-000000002"):
        checkpoint.load(path)
    (path / name).unlink()
    with pytest.raises(StateError, match="cannot read checkpoint"):
        checkpoint.load(path)


def test_a_newer_format_version_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    path = checkpoint.save(tmp_path, 2, TENSORS, STATE)
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    with pytest.raises(StateError, match="format version 2, this headrace reads 1"):
        checkpoint.load(path)


def test_other_json_is_not_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "step-000000001"
    path.mkdir()
    (path / checkpoint.STATE).write_text(json.dumps([1, 2]) + "\n{}")
    with pytest.raises(StateError, match="not a checkpoint"):
        checkpoint.load(path)
    assert checkpoint.newest(tmp_path / "absent") == (None, [])


class FullDisk:
    """Lets some writes through, then the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.write = after, Path.write_bytes
        monkeypatch.setattr(Path, "write_bytes", lambda path, data: self(path, data))

    def __call__(self, path: Path, data: bytes) -> None:
        if self.left == 0:
            self.write(path, b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.left -= 1
        self.write(path, data)


@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_leaves_earlier_checkpoints_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    checkpoint.save(tmp_path, 1, TENSORS, STATE)
    FullDisk(monkeypatch, after)
    with pytest.raises(HeadraceError, match=r"No space left on device; the newest one kept is step-000000001"):
        checkpoint.save(tmp_path, 2, TENSORS, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert checkpoint.load(tmp_path / "step-000000001").state == STATE


def test_the_writer_continues_after_a_failed_write_and_raises_at_close(tmp_path: Path, monkeypatch) -> None:
    writer = checkpoint.Writer(tmp_path)
    writer.submit(1, TENSORS, STATE)
    writer.wait()
    with monkeypatch.context() as patch:
        FullDisk(patch, 0)
        writer.submit(2, TENSORS, STATE)
        writer.wait()
    assert writer.problem is not None and writer.last == tmp_path / "step-000000001"
    writer.submit(3, TENSORS, STATE)
    writer.close()
    assert writer.last == tmp_path / "step-000000003"
    with monkeypatch.context() as patch:
        FullDisk(patch, 0)
        writer.submit(4, TENSORS, STATE)
        with pytest.raises(HeadraceError, match="No space left"):
            writer.close()


def test_weights_alone_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open

    path = tmp_path / "final.safetensors"
    checkpoint.save_weights(path, TENSORS, {"model": "resnet20", "classes": ["cat", "dog"]})
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["headrace"]) == {"model": "resnet20", "classes": ["cat", "dog"]}
    FullDisk(monkeypatch, 0)
    before = path.read_bytes()
    with pytest.raises(HeadraceError, match="No space left"):
        checkpoint.save_weights(path, {"a": torch.zeros(1)}, {})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["final.safetensors"]
