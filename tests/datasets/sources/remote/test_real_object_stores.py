"""Real S3-compatible servers behind a slow and unreliable link: same batches, bounded cache, few round trips."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote import shards as remote_shards
from headrace.datasets.sources.remote import store as remote_store
from headrace.datasets.sources.remote.retry import RetryPolicy
from headrace.datasets.sources.remote.shards import RemoteShards
from headrace.errors import SourceError
from headrace.loading.feeding import feed
from headrace.packing import pack
from loader_batches import are_equal, batches
from real_stores import RealStore, missing, running
from sample_images import jpeg
from slow_link import Link, slow_link

KINDS = ["moto", pytest.param("swift", marks=pytest.mark.object_store)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of 48 images in several shards."""
    root = tmp_path_factory.mktemp("source")
    for number in range(48):
        path = root / "images" / f"class_{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(150 + number % 7, 140, number))
    pack(root / "images", root / "packed", shard_size=150_000)
    return root / "packed"


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, packed: Path) -> Iterator[RealStore]:
    """A server that holds the dataset at s3://images/data."""
    if reason := missing(request.param):
        pytest.skip(reason)
    with running(request.param) as started:
        started.upload("images", "data", packed.iterdir())
        yield started


@pytest.fixture
def link(server: RealStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A link to the server that all clients use, and a cache of the test's own."""
    with slow_link(server.port) as (made, url):
        for name, value in server.environment(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
        yield made


@pytest.mark.parametrize("shuffle", [True, "block:400KB", False])
@pytest.mark.parametrize("limit_share", [None, 0.4])
def test_the_same_batches_as_from_disk(
    link: Link, packed: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool | str, limit_share: float | None
) -> None:
    link.latency_s = 0.02
    if limit_share is not None:
        size = sum(path.stat().st_size for path in packed.iterdir())
        monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(int(size * limit_share) + 150_000))
    assert are_equal(
        batches("s3://images/data", image_size=24, shuffle=shuffle), batches(packed, image_size=24, shuffle=shuffle)
    )


@pytest.mark.parametrize("fault", ["reset", "500", "cut", "wrong", "stall"])
@pytest.mark.parametrize("shuffle", [True, "block:400KB"])
def test_faults_cost_retries_and_never_data(link: Link, packed: Path, fault: Any, shuffle: bool | str) -> None:
    link.stall_s = 0.3
    tried: set[str] = set()

    def plan(number: int, line: str) -> Any:
        # Each second range fails at its first try. A count over requests that run side by side could hit all tries of one.
        is_new = line not in tried
        tried.add(line)
        return fault if is_new and ".tar" in line and len(tried) % 2 else None

    link.plan = plan
    assert are_equal(
        batches("s3://images/data", image_size=24, shuffle=shuffle), batches(packed, image_size=24, shuffle=shuffle)
    )
    assert sum(".tar" in line for line in link.requests) > 5


def test_a_stalled_answer_is_retried(link: Link, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "DEFAULT", RetryPolicy(backoff_s=0.001, timeout_s=2.0))
    link.stall_s = 60.0
    link.plan = lambda number, line: "stall" if number in (4, 9) else None
    assert are_equal(batches("s3://images/data", image_size=24), batches(packed, image_size=24))
    assert sum(line.startswith("GET") for line in link.requests) > 2


def test_a_store_that_never_answers_is_an_error(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "DEFAULT", RetryPolicy(backoff_s=0.001, timeout_s=1.0, patience_s=2.0))
    link.latency_s = 60.0
    with pytest.raises(SourceError, match="s3://images"):
        headrace.open("s3://images/data")


def test_wrong_bytes_at_every_retry_are_an_error(link: Link) -> None:
    dataset = headrace.open("s3://images/data")
    link.plan = lambda number, line: "wrong" if ".tar" in line else None
    with pytest.raises(SourceError, match="checksum"):
        dataset.read(3)


def test_wrong_credentials_are_an_error_with_a_hint(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    if "moto" in os.environ.get("PYTEST_CURRENT_TEST", ""):
        pytest.skip("moto checks no keys")
    with pytest.raises(SourceError, match="s3://images") as caught:
        headrace.open("s3://images/data")
    assert "credentials" in str(caught.value.hint)


def test_the_first_batch_takes_three_round_trips(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifest, index, records. A request's depth is one more than that of the deepest request answered before it began."""
    link.latency_s = 0.25  # long enough that all requests of a round trip begin before its first answer
    began_s: list[float] = []

    def plan(number: int, line: str) -> None:
        began_s.append(time.monotonic())

    link.plan = plan
    monkeypatch.setattr(feed, "_FETCHED_AHEAD", 1)  # so that requests of the second batch are not counted
    dataset = headrace.open("s3://images/data")
    loader = headrace.Loader(
        dataset,
        batch_size=16,
        transform=headrace.transforms.imagenet_train(24),
        output="numpy",
        threads=1,
        prefetch=1,
    )
    iterator = iter(loader)
    next(iterator)
    assert isinstance(dataset.fetcher, RemoteShards)
    wanted = np.unique(loader._order(0).batch(0))
    count = 2 + len(list(dataset.fetcher._groups(wanted, remote_shards._COALESCE)))
    depths: list[int] = []
    for now_s in began_s:
        before = [depth for depth, then_s in zip(depths, began_s, strict=False) if then_s + link.latency_s <= now_s]
        depths.append(1 + max(before, default=0))
    assert len(depths) >= count and max(depths[:count]) == 3, depths


_READ_ALL = """
import hashlib, sys
import headrace
loader = headrace.Loader(headrace.open("s3://images/data"), 8, headrace.transforms.imagenet_train(24), seed=1, threads=1,
                         shuffle=sys.argv[1] if sys.argv[1] != "True" else True, output="numpy")
digest = hashlib.sha256()
for _ in range(2):
    loader.set_epoch(0)
    for images, labels in loader:
        digest.update(images.tobytes() + labels.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("shuffle", [True, "block:400KB"])
def test_two_processes_share_a_cache_that_never_exceeds_its_bound(
    link: Link, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool | str
) -> None:
    limit = sum(path.stat().st_size for path in packed.iterdir()) // 2
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(limit))
    runs = [
        subprocess.Popen([sys.executable, "-c", _READ_ALL, str(shuffle)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            used = 0
            for file in (tmp_path / "cache" / "remote").rglob("*"):
                try:
                    used += file.stat().st_blocks * 512
                except FileNotFoundError:
                    continue
            most[0] = max(most[0], used)

    watcher = threading.Thread(target=watch)
    watcher.start()
    digests = {run.communicate(timeout=120)[0] for run in runs}
    stop.set()
    watcher.join()
    assert [run.returncode for run in runs] == [0, 0] and len(digests) == 1
    assert limit // 4 < most[0] <= limit


def _limited(command: str, limit: int) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process whose files cannot grow beyond `limit` bytes."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{command}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("limit", [100, 50_000])
def test_a_file_size_limit_is_an_error_that_names_the_cache(link: Link, limit: int) -> None:
    code = """
import headrace
try:
    headrace.open("s3://images/data").read(0)
except headrace.errors.SourceError as error:
    print("error:", error, error.hint)
"""
    result = _limited(code, limit)
    assert result.returncode == 0, result.stderr
    assert "cannot write to the cache" in result.stdout and "HEADRACE_CACHE" in result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_file_system_is_an_error(link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", small], capture_output=True).returncode:
        pytest.skip("no mounts here")
    try:
        monkeypatch.setenv("HEADRACE_CACHE", str(small))
        monkeypatch.setenv("HEADRACE_CACHE_SIZE", "1GiB")  # more than the file system has
        with pytest.raises(SourceError, match="No space left"):
            batches("s3://images/data", image_size=24)
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_folder_of_images_is_copied(link: Link, server: RealStore, image_folder: Callable[..., Path]) -> None:
    source = image_folder(classes=2, per_class=2)
    bucket = remote_store.open_bucket("s3://images/folder")
    for path in source.rglob("*.jpg"):
        bucket.write(str(path.relative_to(source)), path)
    remote, local = headrace.open("s3://images/folder"), headrace.open(source)
    assert remote.fingerprint == local.fingerprint and remote.read(3) == local.read(3)
