"""Fixtures of the tests of datasets: a cache for each test, and an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote.retry import RetryPolicy
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
