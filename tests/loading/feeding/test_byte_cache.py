"""`cache=`: the same batches, within its limit, shared between processes, checked at each read."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.errors import SourceError, UsageError
from headrace.transforms import imagenet_train

MakeFolder = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off JPEG indexes: an image with the index of other bytes is read twice, which would change the counts."""
    monkeypatch.setenv("HEADRACE_INDEX_CACHE", "off")


def loader(source: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 4, "transform": imagenet_train(24), "seed": 2, "threads": 2, "output": "numpy"}
    return headrace.Loader(source, **(defaults | options))


def digests(batches: Any) -> list[str]:
    return [hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() for images, labels in batches]


def counts(data: headrace.Loader) -> tuple[int, int]:
    cache = data.stats().cache
    assert cache is not None
    return cache.hits, cache.misses


def hide_files(root: Path) -> None:
    """Rename all images, so that only the cache can serve them."""
    for path in root.rglob("*.jpg"):
        path.rename(path.with_suffix(".gone"))


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_the_second_epoch_reads_no_file(image_folder: MakeFolder, tmp_path: Path, kind: str) -> None:
    root = image_folder()
    plain = loader(root)
    expected = digests(plain) + digests(plain)
    data = loader(root, cache="ram:8MiB" if kind == "ram" else f"disk:{tmp_path / 'cache'}:8MiB")
    first = digests(data)
    assert counts(data) == (0, 12)
    hide_files(root)
    assert first + digests(data) == expected
    assert counts(data) == (12, 12)
    assert f"kept after their first read: {kind}" in data.explain()


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_cache_stays_within_its_limit_and_serves_what_fits(image_folder: MakeFolder, tmp_path: Path, kind: str) -> None:
    root = image_folder()
    sizes = sorted(path.stat().st_size for path in root.rglob("*.jpg"))
    limit = sum(sizes) // 2
    data = loader(root, cache=f"ram:{limit}" if kind == "ram" else f"disk:{tmp_path / 'cache'}:{limit}")
    for _ in range(3):
        for _ in data:
            pass
    cache = data.stats().cache
    assert cache is not None and 0 < cache.kept_bytes <= limit
    assert 0 < cache.hits < 24 and cache.hits + cache.misses == 36
    if kind == "disk":
        used = sum(file.stat().st_blocks * 512 for file in (tmp_path / "cache").rglob("bytes"))
        assert used <= limit + 4096


def test_processes_share_a_disk_cache_and_find_it_again(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    cache = f"disk:{tmp_path / 'cache'}:8MiB"
    program = (
        "import sys, headrace; from headrace.transforms import imagenet_train; "
        "data = headrace.Loader(sys.argv[1], 4, imagenet_train(24), output='numpy', cache=sys.argv[2]); "
        "list(data); print(data.stats().cache.hits)"
    )
    command = [sys.executable, "-c", program, str(root), cache]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert all(child.wait(timeout=60) == 0 for child in children)
    for child in children:
        child.communicate()
    data = loader(root, cache=cache)
    expected = digests(loader(root))
    hide_files(root)
    assert digests(data) == expected
    assert counts(data) == (12, 0)


def test_changed_file_is_read_again(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    cache = f"disk:{tmp_path / 'cache'}:8MiB"
    first = digests(loader(root, cache=cache))
    a, b = root / "class_0" / "image_000.jpg", root / "class_0" / "image_001.jpg"
    size = max(a.stat().st_size, b.stat().st_size)
    contents = a.read_bytes(), b.read_bytes()
    a.write_bytes(contents[1].ljust(size, b"\0"))
    b.write_bytes(contents[0].ljust(size, b"\0"))
    changed = loader(root, cache=cache)
    assert digests(changed) == digests(loader(root)) != first
    assert counts(changed)[0] == 0


def test_damaged_cache_entry_is_read_again(image_folder: MakeFolder, tmp_path: Path) -> None:
    root = image_folder()
    cache = f"disk:{tmp_path / 'cache'}:8MiB"
    expected = digests(loader(root, cache=cache))
    (file,) = (tmp_path / "cache").rglob("bytes")
    raw = bytearray(file.read_bytes())
    raw[10_000] ^= 1
    file.write_bytes(raw)
    data = loader(root, cache=cache)
    assert digests(data) == expected
    assert counts(data) == (11, 1)
    (entries,) = (tmp_path / "cache").rglob("entries")
    entries.write_bytes(os.urandom(50))
    data = loader(root, cache=cache)
    assert digests(data) == expected


def test_removes_other_datasets_but_not_foreign_folders(image_folder: MakeFolder, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "thesis.txt").write_text("years of work")
    for name in ("one", "two", "three"):
        root = image_folder(name=name)
        size = sum(path.stat().st_size for path in root.rglob("*.jpg"))
        data = loader(root, cache=f"disk:{folder}:{size + 100}")
        list(data)
        data.close()
        del data
    assert (folder / "mine" / "thesis.txt").read_text() == "years of work"
    assert len(list(folder.rglob("bytes"))) == 1


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ("8GiB", "neither ram:SIZE nor disk:FOLDER:SIZE"),
        ("ram:/nvme:8GiB", "neither"),
        ("disk:8GiB", "neither"),
        ("disk:/nvme", "neither"),
        ("ram:lots", "not a size"),
        ("ram:0", "has a size of 0 bytes"),
        ("disk:/nvme:", "not a size"),
    ],
)
def test_refuses_an_invalid_cache(image_folder: MakeFolder, cache: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        loader(image_folder(), cache=cache)
    assert caught.value.hint


def test_refuses_a_folder_that_cannot_be_written(image_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot cache in"):
        loader(image_folder(), cache=f"disk:{tmp_path / 'file'}:1GiB")
