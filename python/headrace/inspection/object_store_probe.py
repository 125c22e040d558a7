"""Whether an object store answers from here, how soon, and how fast one connection reads: asked only on request."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.errors import MissingDependencyError, SourceError, UsageError

__all__ = ["StoreProbe", "probe_store"]

TIMEOUT_S = 10.0
READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """`first_byte_s`: time to the first byte of an object. `bytes_per_s`: one connection, over `read_bytes`."""

    url: str
    object: str
    first_byte_s: float
    read_bytes: int
    bytes_per_s: float


def probe_store(url: str, *, endpoint: str | None = None) -> StoreProbe:
    """Reads up to 16 MiB of one object: of the first under an s3:// prefix, or of an http(s):// address.

    Raises SourceError with the store's own words where it cannot, UsageError for another kind of address.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return _probe_s3(url, endpoint)
    if scheme in ("http", "https"):
        return _probe_http(url)
    raise UsageError(f"{url}: only s3://, http:// and https:// addresses can be tried", hint="for example s3://bucket/prefix")


def _probe_http(url: str) -> StoreProbe:
    request = urllib.request.Request(url, headers={"Range": f"bytes=0-{READ_BYTES - 1}"})
    started_s = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return _timed(url, url, started_s, answer)
    except (urllib.error.URLError, OSError) as error:
        raise SourceError(f"{url}: {error}", hint="check the address, the proxy (https_proxy) and the firewall") from error


def _probe_s3(url: str, endpoint: str | None) -> StoreProbe:
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
    except ImportError as error:
        raise MissingDependencyError(f"{url}: reading S3 needs boto3", hint="pip install 'headrace[aws]'") from error
    parts = urlsplit(url)
    quick = botocore.config.Config(
        connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 2, "mode": "standard"}
    )
    try:
        client = boto3.client("s3", config=quick, endpoint_url=endpoint)
        listing = client.list_objects_v2(Bucket=parts.netloc, Prefix=parts.path.lstrip("/"), MaxKeys=20)
        objects = [entry for entry in listing.get("Contents", []) if entry["Size"] > 0]
        if not objects:
            raise SourceError(f"{url}: the bucket answers, but nothing lies under this prefix", hint="check the prefix")
        key = max(objects, key=lambda entry: int(entry["Size"]))["Key"]
        started_s = time.perf_counter()
        answer = client.get_object(Bucket=parts.netloc, Key=key, Range=f"bytes=0-{READ_BYTES - 1}")
        return _timed(url, f"s3://{parts.netloc}/{key}", started_s, answer["Body"])
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        hint = "check credentials (aws sts get-caller-identity), the bucket's region and this machine's network"
        raise SourceError(f"{url}: {error}", hint=hint) from error


def _timed(url: str, name: str, started_s: float, stream: object) -> StoreProbe:
    read = stream.read  # type: ignore[attr-defined]
    total = len(read(1))
    first_byte_s = time.perf_counter() - started_s
    while total < READ_BYTES and (piece := read(min(1 << 20, READ_BYTES - total))):
        total += len(piece)
    return StoreProbe(url, name, first_byte_s, total, total / max(time.perf_counter() - started_s, 1e-9))
