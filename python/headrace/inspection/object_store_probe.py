"""Probe an object store with the loader's own client: whether it answers from here, its latency, the rate of one connection."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.datasets.sources.remote.retry import RetryPolicy
from headrace.datasets.sources.remote.store import Bucket, is_url, is_web, open_bucket
from headrace.errors import SourceError, UsageError

__all__ = ["StoreProbe", "probe_store"]

READ_BYTES = 16 << 20
_LISTED = 20  # list this many objects and read the largest of them
_POLICY = RetryPolicy(tries=2, timeout_s=10.0, patience_s=10.0, client_retries=1)  # `doctor` gives up sooner than a Loader


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """The latency and the rate of one connection to an object store."""

    url: str
    object: str  # URL of the object that was read
    first_byte_s: float  # seconds that a request for one byte took
    read_bytes: int
    bytes_per_s: float  # rate of one request for `read_bytes` bytes


def probe_store(url: str) -> StoreProbe:
    """Return the measured latency and rate of reading one object, up to 16 MiB of it.

    url: an s3://, gs:// or az:// prefix (the largest of the first 20 objects is read), or one http(s):// file.
    Raises SourceError with the store's own words if the object cannot be read, UsageError for another kind of address.
    """
    if not is_url(url):
        raise UsageError(
            f"{url}: only s3://, gs://, az://, http:// and https:// addresses can be probed",
            hint="for example s3://bucket/prefix",
        )
    bucket, path, size = (_file if is_web(url) else _largest_object)(url)
    started_s = time.perf_counter()
    bucket.read_range(path, 0, 1)
    first_byte_s = time.perf_counter() - started_s
    read_bytes = min(size, READ_BYTES)
    started_s = time.perf_counter()
    bucket.read_range(path, 0, read_bytes)
    elapsed_s = max(time.perf_counter() - started_s, 1e-9)
    return StoreProbe(url, f"{bucket.url}/{path}", first_byte_s, read_bytes, read_bytes / elapsed_s)


def _largest_object(url: str) -> tuple[Bucket, str, int]:
    bucket = open_bucket(url, _POLICY)
    objects = [entry for entry in bucket.list_some(_LISTED) if entry.size > 0]
    if objects:
        largest = max(objects, key=lambda entry: entry.size)
        return bucket, largest.path, largest.size
    parent, _, name = url.rstrip("/").rpartition("/")
    if not parent.endswith("/"):  # more than the name of a bucket: perhaps that of an object
        bucket = open_bucket(parent, _POLICY)
        if size := bucket.size(name):
            return bucket, name, size
    raise SourceError(f"{url}: the bucket answers, but nothing lies under this prefix", hint="check the prefix")


def _file(url: str) -> tuple[Bucket, str, int]:
    folder, _, name = url.rstrip("/").rpartition("/")
    bucket = open_bucket(folder, _POLICY)
    size = bucket.size(name)
    if not size:
        what = "does not exist" if size is None else "is empty"
        raise SourceError(f"{url} {what}", hint="check the address, the proxy (https_proxy) and the firewall")
    return bucket, name, size
