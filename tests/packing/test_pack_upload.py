"""Packing to an object store: manifests are uploaded last, and an interrupted upload resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from file_digests import file_digests
from headrace.errors import SourceError, UsageError
from headrace.packing import job, pack


class Store:
    """A stand-in for `store.Bucket` in a folder; after `left` writes every further one fails."""

    url = "s3://b/data"

    def __init__(self, folder: Path) -> None:
        self.folder, self.left = folder, -1
        self.order: list[str] = []

    def read(self, path: str) -> bytes | None:
        file = self.folder / path
        return file.read_bytes() if file.exists() else None

    def write(self, path: str, source: Path) -> None:
        if self.left == 0:
            raise SourceError("the link is down")
        self.left -= 1
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(source.read_bytes())
        self.order.append(path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(tmp_path / "store")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(job, "open_bucket", lambda url: made)
    monkeypatch.setattr("headrace.packing.upload._UPLOADS", 1)  # so that the order of writes is the same every time
    return made


def test_an_interrupted_upload_resumes(store: Store, image_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = image_folder()
    pack(source, tmp_path / "here", train_ratio=0.5, shard_size=70_000)
    expected = file_digests(tmp_path / "here")
    for step in range(len(expected)):
        store.folder, store.left, store.order = tmp_path / f"store{step}", step, []
        with pytest.raises(SourceError, match="link is down"):
            pack(source, store.url, train_ratio=0.5, shard_size=70_000)
        for manifest in store.folder.rglob("headrace.json"):
            assert {path.name for path in manifest.parent.iterdir()} == {
                Path(name).name for name in expected if name.startswith(manifest.parent.name)
            }
        store.left = -1
        result = pack(source, store.url, train_ratio=0.5, shard_size=70_000)
        assert (result.records, result.path) == (12, store.url)
        assert file_digests(store.folder) == expected
    assert [Path(name).name for name in store.order[-2:]] == ["headrace.json"] * 2


def test_an_existing_dataset_in_the_store_is_not_overwritten(store: Store, image_folder: Callable[..., Path]) -> None:
    source = image_folder()
    pack(source, store.url)
    with pytest.raises(UsageError, match="already holds a packed dataset"):
        pack(source, store.url)
    with pytest.raises(UsageError, match="already holds a packed dataset"):
        pack(image_folder(name="other"), store.url)
