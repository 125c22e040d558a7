"""Readahead of local shards: records are announced to the kernel before they are read, within the limit of descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.datasets.sources.archives.readahead import readahead
from headrace.packing import pack


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    pack(image_folder(classes=4, per_class=5), tmp_path / "packed", shard_size=65_536)
    return tmp_path / "packed"


def test_records_are_announced_before_they_are_read(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, offset, size, advice: announced.append((offset, size)))
    data = headrace.open(packed)
    loader = headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1, prefetch=1, seed=3)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    order = loader._order(0)
    records = np.concatenate([order.batch(step) for step in range(4)])  # two ahead
    expected = list(zip(data.table.offset[records].tolist(), data.table.size[records].tolist(), strict=True))
    assert announced == expected
    assert len(list(iterator)) == 3 and len(announced) == 20


def test_image_files_get_no_readahead(image_folder: Callable[..., Path]) -> None:
    assert readahead(headrace.open(image_folder()).table) is None


def test_a_missing_shard_is_reported_when_it_is_read(packed: Path) -> None:
    data = headrace.open(packed)
    loader = headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1)
    Path(data.table.files[0]).unlink()
    with pytest.raises(headrace.errors.DecodeError, match="shard-000000"):
        list(loader)


def test_descriptors_are_closed(packed: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    loader = headrace.Loader(headrace.open(packed), 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1)
    assert np.concatenate([labels for _, labels in loader]).size == 20
    del loader
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("soft", "hard", "works"), [(30, 4096, True), (30, 40, False)])
def test_no_readahead_without_enough_descriptors(packed: Path, soft: int, hard: int, works: bool) -> None:
    code = f"""
import resource, sys
import headrace, headrace.loading.loader
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    loader = headrace.Loader(headrace.open(sys.argv[1]), 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1)
    print(len(list(loader)))
except headrace.errors.SourceError as error:
    print("error:", error)
"""
    run = subprocess.run([sys.executable, "-c", code, packed], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "5" if works else "may open 40 files" in run.stdout
