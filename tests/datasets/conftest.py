"""Fixtures of the tests that read from object stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace.datasets.sources.remote import retry
from headrace.datasets.sources.remote.retry import RetryPolicy
from object_store import Bucket, serving


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An S3 endpoint with one empty bucket, a cache of the test's own, and no waiting between tries."""
    made = Bucket()
    with serving(made) as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
            "HEADRACE_CACHE": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retry, "DEFAULT", RetryPolicy(backoff_s=0.001))
        yield made
