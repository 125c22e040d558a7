"""Local shards: records are announced to the kernel before they are read, and any number fits the limit of descriptors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from containers import write_tar
from headrace.datasets.sources.archives.readahead import Readahead
from headrace.packing import pack
from sample_images import jpeg


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    pack(image_folder(classes=4, per_class=5), tmp_path / "packed", shard_size=65_536)
    return tmp_path / "packed"


def test_records_are_announced_before_they_are_read(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[int] = []
    begin = Readahead.begin

    def kept(self: Readahead, records: np.ndarray) -> Any:
        announced.extend(records.tolist())
        return begin(self, records)

    monkeypatch.setattr(Readahead, "begin", kept)
    data = headrace.open(packed)
    loader = headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1, prefetch=1, seed=3)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    order = loader._order(0)
    records = np.concatenate([order.batch(step) for step in range(4)])  # two ahead
    assert announced == records.tolist()
    assert len(list(iterator)) == 3 and len(announced) == 20


def test_image_files_get_no_readahead(image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readahead, "begin", lambda self, records: pytest.fail("announced"))
    data = headrace.open(image_folder())
    list(headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1))


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


def in_a_process(code: str, *arguments: object) -> str:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


TWO_LOADERS = """
import os, resource, sys
import headrace, headrace.loading.loader
soft, hard = int(sys.argv[2]), int(sys.argv[3])
data = headrace.open(sys.argv[1])
assert len(data.table.files) > hard - 10
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make = lambda: headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=2, on_error="skip")
first, second = make(), make()
count = sum(len(labels) + len(others) for (_, labels), (_, others) in zip(first, second))
print(count, first.stats().skipped, second.stats().skipped, len(os.listdir("/proc/self/fd")) <= hard)
"""


@pytest.mark.parametrize(("soft", "hard"), [(32, 60), (60, 60)])
def test_two_loaders_of_more_shards_than_files_may_be_open(tmp_path: Path, soft: int, hard: int) -> None:
    """Each loader held all its shards open, and `on_error="skip"` replaced what could not be opened."""
    (tmp_path / "tars").mkdir()
    for number in range(80):
        write_tar(tmp_path / "tars" / f"{number}.tar", [(f"{number}.jpg", jpeg(40, 30, number)), (f"{number}.cls", b"0")])
    assert in_a_process(TWO_LOADERS, tmp_path / "tars", soft, hard) == "160 () () True"


NO_FILE_LEFT = """
import os, resource, sys
import headrace
data = headrace.open(sys.argv[1])
loader = headrace.Loader(data, 4, headrace.transforms.imagenet_eval(24), output="numpy", threads=1, on_error=sys.argv[2])
iterator = iter(loader)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2,) * 2)
limit, held = resource.getrlimit(resource.RLIMIT_NOFILE)[0], []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    print(len(list(iterator)))
except headrace.errors.SourceError as error:
    os.close(held.pop())
    print(f"too many open files; this process may open {limit}" in str(error), error.hint)
"""


@pytest.mark.parametrize("source", ["folder", "shards"])
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_process_without_descriptors_has_no_bad_records(source: str, on_error: str, packed: Path, tmp_path: Path) -> None:
    data = packed if source == "shards" else tmp_path / "images"
    assert in_a_process(NO_FILE_LEFT, data, on_error).startswith("True raise the limit")
