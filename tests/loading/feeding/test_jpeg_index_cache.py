"""JPEG indexes on disk: used by the next run, never for other bytes, within a limit, and optional."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.loading.feeding import jpeg_index_cache as index_cache
from headrace.transforms import RandomResizedCrop

MakeFolder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index folder of the test."""
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", str(tmp_path / "indexes"))
    return tmp_path / "indexes"


def epochs(root: Path, count: int = 1) -> tuple[list[str], headrace.Loader]:
    """Return the digests of all batches of `count` epochs, and the closed loader."""
    data = headrace.Loader(root, 4, RandomResizedCrop(24), seed=3, threads=2, output="numpy")
    found = [hashlib.sha256(images.tobytes()).hexdigest() for _ in range(count) for images, _ in data]
    data.close()
    return found, data


def test_second_run_uses_the_indexes_of_the_first(image_folder: MakeFolder, folder: Path) -> None:
    root = image_folder()
    first, data = epochs(root, 3)
    assert data.stats().indexes_found == 0
    (file,) = folder.iterdir()
    assert 0 < file.stat().st_size < 100_000
    second, again = epochs(root, 3)
    assert second == first
    assert again.stats().indexes_found == 12
    assert again.stats().index_bytes > 0
    size = file.stat().st_size
    epochs(root, 3)
    assert file.stat().st_size <= size * 1.3  # the indexes of the first run are not written again


def test_changed_files_are_decoded_without_the_old_index(
    image_folder: MakeFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder()
    epochs(root, 3)
    a, b = root / "class_0" / "image_000.jpg", root / "class_0" / "image_003.jpg"
    for one, other in ((a, b), (b, a)):
        one.with_suffix(".new").write_bytes(other.read_bytes())
    for one in (a, b):
        one.with_suffix(".new").rename(one)
    found, data = epochs(root, 3)
    assert data.stats().indexes_found == 12
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", "off")
    assert found == epochs(root, 3)[0]


def test_damaged_index_file_is_ignored(image_folder: MakeFolder, folder: Path) -> None:
    root = image_folder()
    expected, _ = epochs(root, 2)
    (file,) = folder.iterdir()
    good = file.read_bytes()
    middle = good[:100] + b"\xff" * 50 + good[150:]
    for damaged in (b"", b"no index at all", good[: len(good) // 2], good[7:], os.urandom(5000), middle):
        file.write_bytes(damaged)
        assert epochs(root, 2)[0] == expected


def test_loader_works_without_an_index_folder(image_folder: MakeFolder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder()
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", "off")
    first, data = epochs(root)
    assert data.stats().indexes_found == 0 and not folder.exists()
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file")
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", str(folder))
    assert epochs(root)[0] == first


def test_removes_the_least_recently_used_files(image_folder: MakeFolder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "old", "oldest")):
        (folder / f"{name}.index").write_bytes(bytes(1000))
        os.utime(folder / f"{name}.index", (1e9 - age, 1e9 - age))
    (folder / "not-ours").write_bytes(bytes(1000))
    monkeypatch.setattr(index_cache, "LIMIT_BYTES", 1500)
    epochs(image_folder())
    names = {file.name for file in folder.iterdir()}
    assert {"new.index", "not-ours"} < names and "oldest.index" not in names and "old.index" not in names


def test_forked_child_uses_the_indexes_on_disk(image_folder: MakeFolder, folder: Path) -> None:
    root = image_folder()
    expected, data = epochs(root, 2)

    def child() -> bool:
        data.set_epoch(0)
        found = [hashlib.sha256(images.tobytes()).hexdigest() for _ in range(2) for images, _ in data]
        return found == expected and data.stats().indexes_found == 12

    assert in_child(child)


def in_child(work: Callable[[], Any]) -> bool:
    pid = os.fork()
    if pid == 0:
        passed = False
        try:
            passed = bool(work())
        finally:
            os._exit(0 if passed else 1)
    return os.waitpid(pid, 0)[1] == 0
