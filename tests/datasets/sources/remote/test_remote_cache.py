"""The cache of remote datasets: shared by processes, within its limit, never with damaged records."""

from __future__ import annotations

import datetime
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from file_digests import file_digests
from headrace.datasets.sources.remote import shards as remote_shards
from headrace.datasets.sources.remote.locks import claim
from headrace.datasets.sources.remote.shard_cache import Reservation
from headrace.errors import SourceError, UsageError
from headrace.packing import pack
from loader_batches import are_equal, batches
from object_store import Bucket, disk_bytes, needs_obstore


@needs_obstore
def test_records_damaged_by_a_restart_are_fetched_again(packed: Path, bucket: Bucket, tmp_path: Path) -> None:
    expected = batches("s3://b/data")
    (entry,) = [path for path in (tmp_path / "cache" / "remote").iterdir() if path.is_dir()]
    with open(entry / "shard-000000.tar", "r+b") as file:
        file.write(bytes(30_000))
    (entry / "boot").write_text("an earlier one")
    first = len(bucket.requests)
    assert are_equal(batches("s3://b/data"), expected)
    assert 1 < len(bucket.requests) - first < 10


@needs_obstore
def test_two_processes_share_the_cache(packed: Path) -> None:
    code = (
        "import headrace, hashlib, sys\n"
        "d = headrace.open('s3://b/data')\n"
        "print(hashlib.sha256(b''.join(d.read(i) for i in range(len(d)))).hexdigest())\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {run.communicate(timeout=60)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0] and len(digests) == 1


@needs_obstore
def test_opening_waits_while_another_process_empties_a_shard(packed: Path, bucket: Bucket, tmp_path: Path) -> None:
    headrace.open("s3://b/data")
    writing = next((tmp_path / "cache").rglob(".writing"))
    shard = next(writing.parent.glob("shard-*.tar"))
    size = shard.stat().st_size
    with open(writing, "ab") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.truncate(shard, 0)
        opened = pool.submit(headrace.open, "s3://b/data")
        with pytest.raises(TimeoutError):
            opened.result(timeout=0.3)
        os.truncate(shard, size)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert len(opened.result(timeout=60)) > 0


@needs_obstore
@pytest.mark.parametrize("shuffle", [True, "block:1MiB", False])
def test_a_dataset_larger_than_the_cache_is_streamed_within_the_bound(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool | str
) -> None:
    size = sum(path.stat().st_size for path in many.iterdir())
    limit = size // 2
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(limit))
    expected = batches(many, shuffle=shuffle)
    dataset = headrace.open("s3://b/many")
    fetcher = dataset.fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards) and fetcher.allowance is not None
    settings = {"batch_size": 8, "seed": 1, "shuffle": shuffle, "drop_last": False, "threads": 2, "output": "numpy"}
    loader = headrace.Loader(dataset, transform=headrace.transforms.imagenet_train(48), **settings)
    for _ in range(2):  # in the second epoch a part is cached
        loader.set_epoch(0)
        for (images, labels), (expected_images, expected_labels) in zip(loader, expected, strict=True):
            assert np.array_equal(images, expected_images) and np.array_equal(labels, expected_labels)
            assert disk_bytes(tmp_path / "cache") <= limit
    if isinstance(shuffle, bool):
        assert fetcher.fetched_bytes < 2 * size  # cached records were not fetched again
    else:
        assert fetcher.fetched_bytes < 3 * size  # includes the first window of the third epoch
    assert dataset.read(3) == headrace.open(many).read(3)


@needs_obstore
def test_an_empty_cache_allowance_still_gives_every_record(many: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = batches(many)
    dataset = headrace.open("s3://b/many")
    assert isinstance(dataset.fetcher, remote_shards.RemoteShards)
    monkeypatch.setattr(dataset.fetcher._cache, "allowance", 0)
    monkeypatch.setattr(dataset.fetcher, "allowance", 0)
    settings = {"batch_size": 8, "seed": 1, "drop_last": False, "threads": 2, "output": "numpy"}
    loader = headrace.Loader(dataset, transform=headrace.transforms.imagenet_train(48), **settings)
    assert are_equal([(images.copy(), labels.copy()) for images, labels in loader], expected)


@needs_obstore
def test_an_index_that_does_not_fit_is_an_error(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", "1KiB")
    with pytest.raises(SourceError, match="may take"):
        headrace.open("s3://b/many")
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match="much"):
        headrace.open("s3://b/many")


@needs_obstore
def test_unused_datasets_are_evicted(packed: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in packed.iterdir())
    limit = size + size // 2 + 100_000
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(limit))
    bucket.fill(packed, "other")
    code = "import headrace; d = headrace.open('s3://b/{}'); [d.read(i) for i in range(len(d))]"
    for name in ("data", "other"):  # in child processes: entries in use by a living process are not evicted
        subprocess.run([sys.executable, "-c", code.format(name)], check=True, timeout=60)
        assert disk_bytes(tmp_path / "cache") < limit
    assert len([path for path in (tmp_path / "cache" / "remote").iterdir() if path.is_dir()]) == 1
    whole, part = headrace.open("s3://b/other"), headrace.open("s3://b/data")
    assert isinstance(whole.fetcher, remote_shards.RemoteShards) and whole.fetcher.allowance is None
    assert isinstance(part.fetcher, remote_shards.RemoteShards) and part.fetcher.allowance is not None
    assert [part.read(i) for i in range(40)] == [whole.read(i) for i in range(40)]
    assert disk_bytes(tmp_path / "cache") < limit


@needs_obstore
def test_a_full_disk_is_an_error_that_says_so(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    dataset = headrace.open("s3://b/data")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SourceError, match="No space left"):
        dataset.read(0)


@needs_obstore
def test_a_pack_resumes_after_its_source_left_the_cache(
    image_folder: Callable[..., Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the cached source is deleted in between; then an object is replaced by another one of the same size."""
    source = image_folder(classes=2, per_class=8)
    bucket.fill(source, "in")
    assert not pack("s3://b/in", tmp_path / "out", shard_size=65536, unit=(0, 2)).complete
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "new cache"))
    assert pack("s3://b/in", tmp_path / "out", shard_size=65536).repacked == 0

    key = "in/class_0/image_000.jpg"
    data = bucket.objects[key]
    bucket.objects[key] = data.replace(b"JFIF\0\1\1\0", b"JFIF\0\1\1\1")
    assert bucket.objects[key] != data
    bucket.written[key] = datetime.datetime(2024, 2, 3, tzinfo=datetime.UTC)
    assert pack("s3://b/in", tmp_path / "other", shard_size=65536).repacked == 1
    pack("s3://b/in", tmp_path / "undisturbed", shard_size=65536)
    assert file_digests(tmp_path / "other") == file_digests(tmp_path / "undisturbed") != file_digests(tmp_path / "out")


@needs_obstore
@pytest.mark.parametrize("limit_share", [2.0, 0.9])
def test_a_block_shuffle_fetches_each_shard_once_in_few_requests(
    many: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, limit_share: float
) -> None:
    """The ranks of a host share the cache: a cold epoch fetches each shard once."""
    size = sum(path.stat().st_size for path in many.iterdir())
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(int(size * limit_share)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dataset = headrace.open("s3://b/many")
    loaders = [
        headrace.Loader(
            dataset if rank == 0 else headrace.open("s3://b/many"),
            batch_size=4,
            transform=headrace.transforms.imagenet_train(48),
            seed=1,
            shuffle="block:600KiB",
            rank=rank,
            world_size=2,
            prefetch=1,
            threads=1,
            output="numpy",
        )
        for rank in range(2)
    ]
    whole = headrace.Loader(
        headrace.open(many),
        batch_size=8,
        transform=headrace.transforms.imagenet_train(48),
        seed=1,
        shuffle="block:600KiB",
        output="numpy",
        threads=1,
    )
    for (left, _), (right, _), (both, _) in zip(*loaders, whole, strict=True):
        assert np.array_equal(np.concatenate([left, right]), both)
    fetched = [loader.dataset.fetcher for loader in loaders]
    assert all(isinstance(one, remote_shards.RemoteShards) for one in fetched)
    # Includes the first window of the next epoch.
    assert sum(one.fetched_bytes for one in fetched if isinstance(one, remote_shards.RemoteShards)) < 1.4 * size
    assert sum(one.requests for one in fetched if isinstance(one, remote_shards.RemoteShards)) < 100  # for 120 records


@needs_obstore
def test_announced_records_are_not_evicted_before_they_are_read(
    many: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced shards stay although other shards were used more recently, so nothing is fetched twice."""
    size = sum(path.stat().st_size for path in many.iterdir())
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(int(size * 0.45)))
    dataset = headrace.open("s3://b/many")
    fetch, local = dataset.fetcher, headrace.open(many)
    assert isinstance(fetch, remote_shards.RemoteShards) and fetch.allowance is not None
    shard = fetch.columns.shard
    windows = [np.flatnonzero((shard == first) | (shard == first + 1)) for first in range(0, int(shard.max()), 2)]
    times = np.zeros(len(shard), dtype=np.int64)
    fetched = fetch._fetch

    def counted(wanted: list[int], reservation: Reservation | None = None, *rest: Any) -> dict[int, bytes]:
        times[wanted] += 1
        return fetched(wanted, reservation, *rest)

    monkeypatch.setattr(fetch, "_fetch", counted)
    fetch.prefetch(windows[0])
    for now, following in itertools.pairwise(windows):
        fetch._ahead.shutdown()  # wait for all announced records
        fetch._ahead = remote_shards._pool(4)
        fetch.prefetch(following)
        for record in np.random.default_rng(0).permutation(now):
            found = fetch.begin(np.array([record])).wait()
            assert found is not None and found[0] == local.read(int(record))
    assert len(windows) > 3 and (times[np.concatenate(windows[:-1])] == 1).all()


@needs_obstore
def test_a_batch_is_asked_for_by_another_thread(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`begin` returns at once: the thread that trains hands out no requests."""
    fetcher = headrace.open("s3://b/data").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    going, missing = threading.Event(), fetcher._cache.missing
    callers: list[int] = []

    def held(records: remote_shards.Records) -> remote_shards.Records:
        callers.append(threading.get_ident())
        assert going.wait(30)
        return missing(records)

    monkeypatch.setattr(fetcher._cache, "missing", held)
    first, second = (fetcher.begin(np.array(records)) for records in ([0, 1], [2]))
    assert not first.done() and not second.done()
    second.cancel()  # before its requests are known
    going.set()
    assert first.wait() is None and first.done()
    assert all(map(fetcher._cache.holds, (0, 1))) and not fetcher._cache.holds(2)
    assert threading.get_ident() not in callers


@needs_obstore
def test_requests_that_cannot_be_handed_out_are_an_error_of_the_wait(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = headrace.open("s3://b/data").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    monkeypatch.setattr(fetcher._cache, "missing", lambda records: 1 // 0)
    fetch = fetcher.begin(np.array([0]))
    with pytest.raises(ZeroDivisionError):
        fetch.wait()
    assert fetch.done()
    fetch.cancel()


@needs_obstore
def test_a_forked_process_reads_cached_records_and_refuses_others(packed: Path) -> None:
    dataset = headrace.open("s3://b/data")
    here = dataset.read(0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "nothing"
        try:
            answer = "same " if dataset.read(0) == here else "different "
            dataset.read(39)
        except SourceError as error:
            answer += str(error)
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    answer = os.read(reader, 1000).decode()
    os.close(reader)
    assert answer.startswith("same ") and "forked process" in answer
    assert dataset.read(39)


@needs_obstore
def test_packing_a_dataset_larger_than_the_cache(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(many, tmp_path / "expected", shard_size=500_000)
    size = sum(path.stat().st_size for path in many.iterdir())
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(size // 3))
    pack("s3://b/many", tmp_path / "again", shard_size=500_000)
    for path in (tmp_path / "expected").glob("*.tar"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert headrace.verify(tmp_path / "again").ok
    assert disk_bytes(tmp_path / "cache") <= size // 3


@needs_obstore
def test_a_record_that_another_process_fetches_holds_up_no_other(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shards, "_GAP", -1)  # a request for each record
    fetcher = headrace.open("s3://b/data").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards) and fetcher.allowance is None
    with claim(fetcher.folder / ".claims", 1, 1, time.monotonic()):
        fetch = fetcher.begin(np.array([0, 1, 2]))
        end = time.monotonic() + 60
        while not (fetcher._cache.holds(0) and fetcher._cache.holds(2)):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not fetch.done() and not fetcher._cache.holds(1)
    assert fetch.wait() is None
    assert fetcher._cache.holds(1) and fetcher.requests == 3


@needs_obstore
def test_no_more_requests_run_than_the_connections_allow(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that make several requests each count them all."""
    monkeypatch.setattr(remote_shards, "_GAP", -1)
    monkeypatch.setattr(remote_shards, "_CONNECTIONS", 8)
    monkeypatch.setattr(remote_shards, "_AHEAD_CONNECTIONS", 2)
    fetcher = headrace.open("s3://b/many").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    read, lock = fetcher.bucket.read_ranges, threading.Lock()
    running, most = [0], [0]

    def counted(path: str, ranges: Sequence[tuple[int, int]], check: Callable[[int, bytes], bool]) -> Sequence[bytes]:
        with lock:
            running[0] += len(ranges)
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        try:
            return read(path, ranges, check)
        finally:
            with lock:
                running[0] -= len(ranges)

    monkeypatch.setattr(fetcher.bucket, "read_ranges", counted)
    count = len(fetcher.columns)
    fetcher.begin(np.arange(count)).wait()
    assert all(fetcher._cache.holds(record) for record in range(count))
    assert 1 < most[0] <= 10


@needs_obstore
def test_what_is_still_to_be_read_is_not_fetched_ahead_for_another_epoch(
    many: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of a few bytes would wait for one of megabytes at the border of two epochs."""
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(sum(path.stat().st_size for path in many.iterdir()) // 2))
    fetcher = headrace.open("s3://b/many").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards) and fetcher.allowance is not None
    ahead: list[int] = []
    monkeypatch.setattr(fetcher, "_cache_ahead", ahead.extend)
    fetcher.prefetch(np.arange(10))
    fetcher._cache.mark_read([0, 1, 2])
    fetcher.prefetch(np.arange(20))
    fetcher._ahead.shutdown()
    assert sorted(ahead) == sorted([*range(10), 0, 1, 2, *range(10, 20)])


@needs_obstore
def test_more_requests_than_connections_do_not_wait_for_ever(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request for announced records falls apart where another process cached records in its middle."""
    for name in ("_CONNECTIONS", "_AHEAD_CONNECTIONS"):
        monkeypatch.setattr(remote_shards, name, 1)
    monkeypatch.setattr(remote_shards, "_AT_ONCE", 2)
    monkeypatch.setattr(remote_shards, "_GAP", -1)
    fetcher = headrace.open("s3://b/many").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    records = np.flatnonzero(fetcher.columns.shard == fetcher.columns.shard[0]).tolist()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fetcher._ensure_cached, records).result(60)
    assert len(records) > 2 and all(fetcher._cache.holds(record) for record in records)


@needs_obstore
def test_a_cancelled_fetch_sends_no_more_requests(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shards, "_GAP", -1)
    fetcher = headrace.open("s3://b/data").fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    with fetcher._turn:  # all threads wait for their turn
        fetch = fetcher.begin(np.arange(20))
        fetch._parts.result(60)
        fetch.cancel()
    fetcher._pool.shutdown()
    assert fetcher.requests == 0
