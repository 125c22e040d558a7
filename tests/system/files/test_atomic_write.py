"""Files are replaced in one piece, and an error leaves neither a half-written file nor a temporary one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headrace.system.files.atomic_write import TEMPORARY_PREFIX, atomic_write, replacing, sync_folder


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("data", [b"new\x00", "new ü"])
def test_the_new_content_replaces_the_old(tmp_path: Path, data: bytes | str, sync: bool) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    atomic_write(path, data, sync=sync)
    sync_folder(tmp_path)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_content_and_removes_the_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match="half"), replacing(path) as temporary:
        temporary.write_text("ne")
        raise ValueError("half written")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "none" / "file.txt", b"data")


def test_a_failed_rename_removes_the_temporary_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inside").touch()
    with pytest.raises(OSError):
        atomic_write(folder, b"data")
    assert list(tmp_path.iterdir()) == [folder]


def test_temporary_files_have_the_prefix_and_the_suffix_of_the_target(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    with replacing(tmp_path / "model.onnx", temporary_folder=other) as temporary:
        temporary.touch()
        assert temporary.parent == other
        assert temporary.name.startswith(TEMPORARY_PREFIX)
        assert temporary.suffix == ".onnx"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.onnx"]


def test_data_is_on_the_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (seen.append(path.exists()), real(descriptor))[1])
    atomic_write(path, b"data")
    assert seen == []
    path.unlink()
    atomic_write(path, b"data", sync=True)
    assert seen == [False]
