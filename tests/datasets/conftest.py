"""Fixtures of the tests of datasets: a cache for each test, an object store, and packed datasets in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote.retry import RetryPolicy
from headrace.packing import pack
from object_store import Bucket, serving


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test; it does not exist yet."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An S3 endpoint with one empty bucket, and almost no pause between tries."""
    made = Bucket()
    with serving(made) as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retry, "DEFAULT", RetryPolicy(backoff_s=0.001))
        yield made


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path, bucket: Bucket) -> Path:
    """A packed dataset of 40 images in several shards, also at s3://b/data."""
    out = tmp_path / "packed"
    pack(image_folder(classes=4, per_class=10), out, shard_size=80_000)
    bucket.fill(out, "data")
    return out


@pytest.fixture
def many(image_folder: Callable[..., Path], tmp_path: Path, bucket: Bucket) -> Path:
    """A packed dataset of 120 images in many shards, also at s3://b/many."""
    out = tmp_path / "many"
    pack(image_folder(classes=4, per_class=30, name="more"), out, shard_size=200_000)
    bucket.fill(out, "many")
    return out
