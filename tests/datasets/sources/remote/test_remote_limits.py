"""What a server claims is bounded: a length, a number of records, a size of a record."""

from __future__ import annotations

import json
from pathlib import Path

import headrace
import pytest
from headrace.datasets.sources.remote import store
from headrace.datasets.sources.remote.store import open_bucket
from headrace.errors import FormatError, SourceError
from object_store import Bucket, disk_bytes, needs_obstore
from traced_memory import at_most

MANY = 3_000_000


@needs_obstore
@pytest.mark.parametrize("announced", ["more than a document", "more than arrives"])
def test_the_length_that_a_server_announces_is_not_allocated(announced: str, packed: Path, bucket: Bucket) -> None:
    bucket.fault = lambda number, key, part: "huge"
    limit = {} if announced == "more than a document" else {"limit": 1 << 41}
    with at_most(64 << 20), pytest.raises(SourceError):
        open_bucket("s3://b/data").read("headrace.json", **limit)
    with pytest.raises(SourceError, match=r"headrace.json has 1\.0 TiB; at most"):
        headrace.open("s3://b/data")


@needs_obstore
def test_a_claimed_number_of_records_takes_no_disk(packed: Path, bucket: Bucket, cache: Path) -> None:
    document = json.loads(bucket.objects["data/headrace.json"])
    claimed = MANY - document["counts"]["records"]
    document["counts"]["records"] += claimed
    document["shards"][0]["records"] += claimed
    bucket.objects["data/headrace.json"] = json.dumps(document).encode()
    with pytest.raises(FormatError, match="holds 40 records, the manifest claims 3,000,000"):
        headrace.open("s3://b/data")
    assert disk_bytes(cache) < 1 << 20


@needs_obstore
@pytest.mark.parametrize("name", ["size", "names.json", "present", "use", "boot", "new", "index.safetensors", "headrace.json"])
def test_a_shard_takes_no_name_of_the_cache(name: str, packed: Path, bucket: Bucket) -> None:
    """The cache read its own small files whole: as a shard, one was a sparse terabyte. The index was mapped, and written to."""
    document = json.loads(bucket.objects["data/headrace.json"])
    document["shards"][0] |= {"file": name, "size": document["index"]["size"] if "index" in name else 1 << 40}
    bucket.objects["data/headrace.json"] = json.dumps(document).encode()
    with at_most(64 << 20), pytest.raises(FormatError, match=r"one of the cache's own|two of its files have one name"):
        headrace.open("s3://b/data")


@needs_obstore
def test_a_claimed_size_of_a_record_is_not_allocated(packed: Path, bucket: Bucket) -> None:
    with at_most(64 << 20):
        with pytest.raises(SourceError, match="more than the limit"):
            open_bucket("s3://b/data").read_range("shard-000000.tar", 0, 1 << 40)
        with pytest.raises(SourceError):
            open_bucket("s3://b/data").read_range("shard-000000.tar", 0, 1 << 30)


@needs_obstore
def test_a_listing_without_end_is_refused(packed: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", str(64 * (len(bucket.objects) - 1)))
    with pytest.raises(SourceError, match=r"lists more than .* objects, the limit"):
        open_bucket("s3://b").list()
    monkeypatch.setenv("HEADRACE_RECORD_LIMIT", "1KiB")  # the limit of the names counts, too
    bucket.objects["data/" + "x" * 900 + "1"] = bucket.objects["data/" + "y" * 900 + "2"] = b""
    bucket.objects["data/" + "z" * 900 + "3"] = b""
    with pytest.raises(SourceError, match="lists more than"):
        open_bucket("s3://b").list()


@needs_obstore
def test_a_listing_of_empty_pages_without_end_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks for one after the other, and never comes back."""
    bucket.fault = lambda number, key, part: "more"
    monkeypatch.setattr(store, "_PAGE_S", 0.5)
    with pytest.raises(SourceError, match="the listing has brought no objects"):
        open_bucket("s3://b/data").list()
    monkeypatch.setattr(store, "_LISTING_S", 0.0)
    with pytest.raises(SourceError, match="the listing has brought no end"):
        open_bucket("s3://b/data").list()
    bucket.fault = lambda number, key, part: None  # obstore's thread comes to an end
