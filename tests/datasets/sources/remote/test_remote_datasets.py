"""Datasets in object stores: equal to local ones, robust against faults."""

from __future__ import annotations

import datetime
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import headrace
import numpy as np
import pytest
from file_digests import file_digests
from headrace.cli.main import main
from headrace.datasets.open import open_stored
from headrace.datasets.sources.remote import mirror as remote_mirror
from headrace.datasets.sources.remote import shards as remote_shards
from headrace.datasets.sources.remote.access import access_options
from headrace.datasets.sources.remote.mirror import mirror
from headrace.datasets.sources.remote.store import is_url, open_bucket
from headrace.errors import FormatError, MissingDependencyError, SourceError, UsageError
from headrace.packing import pack
from loader_batches import are_equal, batches
from object_store import Bucket, needs_obstore


def test_urls_are_told_from_local_paths() -> None:
    assert is_url("s3://bucket/x") and is_url("gs://b") and is_url("https://host/x")
    assert not is_url("/data/s3") and not is_url(Path("s3:/x")) and not is_url("s3.tar")


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingDependencyError) as caught:
        headrace.open("s3://bucket/data")
    assert "pip install" in (caught.value.hint or "")


@needs_obstore
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_remote_dataset_gives_the_same_batches(packed: Path, bucket: Bucket, shuffle: bool) -> None:
    expected = batches(packed, shuffle=shuffle)
    assert are_equal(batches("s3://b/data", shuffle=shuffle), expected)
    first = len(bucket.requests)
    assert are_equal(batches("s3://b/data", shuffle=shuffle), expected)
    assert len(bucket.requests) - first == 1  # the manifest; all else is cached


@needs_obstore
def test_an_object_does_not_get_the_bytes_of_one_with_a_similar_name(bucket: Bucket, cache: Path) -> None:
    """The rest of a copy that somebody broke off, x.jpg.part, had the name under which x.jpg was copied."""
    bucket.objects |= {"data/a/x.jpg": b"an image", "data/a/x.jpg.part": b"its rest"}

    def slow(number: int, key: str, part: str) -> None:
        time.sleep(0.5 if key.endswith("x.jpg") else 0.0)

    bucket.fault = slow
    folder = mirror(open_bucket("s3://b/data"), cache)
    assert {path.name: path.read_bytes() for path in (folder / "a").iterdir()} == {
        "x.jpg": b"an image",
        "x.jpg.part": b"its rest",
    }


@needs_obstore
def test_an_object_that_changes_while_it_is_copied_is_an_error(
    bucket: Bucket, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the old and half of the new one would be an archive with wrong labels."""
    monkeypatch.setattr(remote_mirror, "_PART", 1000)
    bucket.objects["data/a.tar"] = bytes(3000)

    def change(number: int, key: str, part: str) -> None:
        if part == "bytes=1000-1999":
            bucket.objects["data/a.tar"] = b"1" * 3000
            bucket.written["data/a.tar"] = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)

    bucket.fault = change
    with pytest.raises(SourceError, match=r"a\.tar changed while it was copied"):
        mirror(open_bucket("s3://b/data"), cache)
    assert mirror(open_bucket("s3://b/data"), cache).joinpath("a.tar").read_bytes() == b"1" * 3000


@needs_obstore
def test_neighbours_are_read_by_one_request(packed: Path) -> None:
    dataset = headrace.open("s3://b/data")
    fetcher = dataset.fetcher
    assert isinstance(fetcher, remote_shards.RemoteShards)
    fetcher.begin(np.arange(len(dataset))).wait()
    assert fetcher.requests == len(dataset.table.files)


@needs_obstore
def test_json_of_a_remote_record_is_read(tmp_path: Path, bucket: Bucket, image_folder: Callable[..., Path]) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, path in enumerate(sorted(image_folder(classes=1, per_class=3).rglob("*.jpg"))):
            (tmp_path / "x.json").write_text(f'{{"label": 0, "n": {number}}}')
            archive.add(path, f"{number}.jpg")
            archive.add(tmp_path / "x.json", f"{number}.json")
    pack(tmp_path / "a.tar", tmp_path / "out")
    bucket.fill(tmp_path / "out", "data")
    assert b'"n": 2' in headrace.open("s3://b/data").read_json(2)


@needs_obstore
@pytest.mark.parametrize("kind", ["500", "reset", "cut", "wrong"])
def test_faults_cost_retries_and_never_data(packed: Path, bucket: Bucket, kind: str) -> None:
    expected = batches(packed)
    tried: set[tuple[str, str]] = set()

    def fault(number: int, key: str, part: str) -> str | None:
        # Fail the first try of each range. Requests run side by side, so every nth one could be all the tries of one range.
        first = (key, part) not in tried
        tried.add((key, part))
        return kind if first and key.endswith(".tar") else None

    bucket.fault = fault
    assert are_equal(batches("s3://b/data"), expected)
    assert len(bucket.requests) > 40


@needs_obstore
def test_wrong_bytes_at_every_retry_are_an_error_naming_the_checksum(packed: Path, bucket: Bucket) -> None:
    bucket.fault = lambda number, key, part: "wrong" if key.endswith("shard-000001.tar") else None
    with pytest.raises(SourceError, match="checksum"):
        batches("s3://b/data")
    bucket.objects["data/index.safetensors"] = b"x"
    with pytest.raises(headrace.errors.HeadraceError, match="manifest"):
        os.environ["HEADRACE_CACHE"] += "2"
        headrace.open("s3://b/data")


@needs_obstore
def test_a_remote_dataset_pickles(packed: Path) -> None:
    dataset = headrace.open("s3://b/data")
    sent = pickle.loads(pickle.dumps(dataset))
    assert (sent.fingerprint, sent.classes) == (dataset.fingerprint, dataset.classes)
    assert sent.read(5) == headrace.open(packed).read(5)


@needs_obstore
def test_folders_and_containers_are_copied(
    image_folder: Callable[..., Path], packed: Path, bucket: Bucket, tmp_path: Path
) -> None:
    source = image_folder(classes=2, per_class=3, name="more")
    bucket.fill(source, "folder")
    local, remote = headrace.open(source), headrace.open("s3://b/folder")
    assert (remote.root, remote.fingerprint) == ("s3://b/folder", local.fingerprint)
    assert all(remote.read(i) == local.read(i) for i in range(6))
    assert len(headrace.open("s3://b/data/shard-000000.tar")) > 0
    verified = headrace.verify("s3://b/data")
    assert (verified.ok, verified.path) == (True, "s3://b/data")
    result = pack("s3://b/folder", tmp_path / "again", keep_bytes=True)
    assert result.records == 6
    assert pack("s3://b/data", tmp_path / "repacked", shard_size=80_000).records == 40


@needs_obstore
@pytest.mark.parametrize("root", [None, "s3://b/images", "local"])
def test_lists_in_a_store(image_folder: Callable[..., Path], bucket: Bucket, tmp_path: Path, root: str | None) -> None:
    source = image_folder(classes=2, per_class=2)
    bucket.fill(source, "images")
    begin = "" if root else "images/"
    bucket.objects["train.csv"] = f"path,label\n{begin}class_1/image_000.jpg,7\n{begin}class_0/image_001.jpg,0\n".encode()
    dataset = open_stored("s3://b/train.csv", source if root == "local" else root)
    assert (dataset.root, dataset.table.label.tolist()) == ("s3://b/train.csv", [7, 0])
    assert dataset.read(0) == (source / "class_1/image_000.jpg").read_bytes()
    assert pack("s3://b/train.csv", tmp_path / "out", root=source if root == "local" else root).records == 2
    with pytest.raises(SourceError, match=r"s3://b/other\.lst does not exist"):
        open_stored("s3://b/other.lst", root)


@needs_obstore
def test_containers_by_name_and_by_pattern(packed: Path, bucket: Bucket) -> None:
    bucket.objects["data/deeper/shard-000009.tar"] = b"not asked for"
    bucket.requests.clear()
    one = headrace.open("s3://b/data/shard-000001.tar")
    assert "list" not in bucket.requests  # a web server cannot list, and a prefix of millions takes long to list
    assert one.table.label.tolist() == headrace.open(packed / "shard-000001.tar").table.label.tolist()
    assert len(headrace.open("s3://b/data/shard-*.tar")) == 40
    for name in ("shard-9.tar", "other-*.tar"):
        with pytest.raises(SourceError, match="does not exist"):
            headrace.open(f"s3://b/data/{name}")


@needs_obstore
def test_a_packed_dataset_on_a_plain_web_server(image_folder: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    source = image_folder()
    (source / "class_0/none.jpg").write_text("no image")
    pack(source, tmp_path / "out", shard_size=70_000)
    bucket.fill(tmp_path / "out", "data")
    url = f"{os.environ['AWS_ENDPOINT_URL']}/b/data"
    assert are_equal(batches(url), batches(tmp_path / "out"))
    result = headrace.verify(url)
    assert (result.ok, result.records, result.path) == (True, 12, url)
    assert pack(url, tmp_path / "again", shard_size=70_000).records == 12
    with pytest.raises(SourceError, match=r"s3://b/none"):
        headrace.verify("s3://b/none")
    with pytest.raises(SourceError, match=f"no object in {url}/none"):
        headrace.verify(f"{url}/none")


@needs_obstore
def test_a_password_in_a_url_is_used_and_never_shown(
    packed: Path, bucket: Bucket, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = os.environ["AWS_ENDPOINT_URL"].replace("://", "://me:plantedJ1x@") + "/b/data"
    for words in (["inspect", url], ["verify", url], ["verify", "--json", url], ["pack", url, str(tmp_path / "again")]):
        assert main(words) == 0
        output = capfd.readouterr()
        assert "plantedJ1x" not in output.out + output.err, words
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"plantedJ1x" in path.read_bytes()]


@needs_obstore
def test_a_destination_inside_a_source_in_a_store_is_refused(image_folder: Callable[..., Path], bucket: Bucket) -> None:
    bucket.fill(image_folder(), "photos")
    for prefix in ("s3://b/photos/packed", "s3://b/photos/"):
        with pytest.raises(UsageError, match="inside the source"):
            pack("s3://b/photos", prefix)
    assert pack("s3://b/photos", "s3://b/photos-packed").records == 12
    with pytest.raises(UsageError, match="already holds a packed dataset"):
        pack("s3://b/photos", "s3://b/photos-packed", train_ratio=0.5)


@needs_obstore
@pytest.mark.parametrize("how", ["emulator", "base url"])
def test_google_cloud_storage(
    image_folder: Callable[..., Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Google's XML interface is S3's apart from authentication, so the same server can stand in for it."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    if how == "emulator":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint.removeprefix("http://"))
    else:
        monkeypatch.setenv("GOOGLE_BASE_URL", endpoint)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "anything")
    source = image_folder(classes=4, per_class=10)
    pack(source, tmp_path / "packed", shard_size=80_000)
    assert pack(source, "gs://b/data", shard_size=80_000).records == 40
    stored = {name.removeprefix("data/"): hashlib.sha256(data).hexdigest() for name, data in bucket.objects.items()}
    assert stored == file_digests(tmp_path / "packed")
    assert are_equal(batches("gs://b/data"), batches(tmp_path / "packed"))
    assert headrace.verify("gs://b/data").ok
    assert pack("gs://b/data", tmp_path / "again", shard_size=80_000).records == 40


@needs_obstore
@pytest.mark.parametrize("url", ["s3://b/data", "gs://b/data", "az://b/data"])
def test_the_error_without_credentials_names_the_variables(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """The error comes within seconds, although a machine in a cloud asks its metadata server for a role first."""
    endpoint = os.environ.pop("AWS_ENDPOINT_URL")
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where gcloud and aws store credentials
    monkeypatch.setenv("GCE_METADATA_HOST", endpoint.removeprefix("http://"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # boto3 asks the metadata server too
    start_s = time.monotonic()
    assert main(["inspect", url]) == 1
    assert time.monotonic() - start_s < 20
    words = capsys.readouterr().err
    name = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_NAME"}[url[:2]]
    assert "hint: " in words and name in words
    assert "no credentials for" in words or "the storage account is not known" in words


def test_plain_http_to_azure_is_allowed_only_for_plain_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    assert access_options("az://b/data")["client_options"] == {"allow_http": True}
    monkeypatch.delenv("AZURE_STORAGE_USE_EMULATOR")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "photos")
    assert access_options("az://b/data")["client_options"] == {"allow_http": False}
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://localhost:10000/photos")
    assert access_options("az://b/data")["client_options"] == {"allow_http": True}


@needs_obstore
def test_packing_to_a_store(image_folder: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    source = image_folder(classes=2, per_class=3)
    result = pack(source, "s3://b/new", train_ratio=0.5)
    assert (result.records, result.path) == (6, "s3://b/new")
    assert sorted(bucket.objects) == [
        f"new/{part}/{name}" for part in ("train", "val") for name in ("headrace.json", "index.safetensors", "shard-000000.tar")
    ]
    assert len(headrace.open("s3://b/new/train")) == 3
    assert not any((tmp_path / "cache" / "pack").iterdir())
    with pytest.raises(UsageError, match="already"):
        pack(source, "s3://b/new", train_ratio=0.5)
    with pytest.raises(UsageError, match="unit"):
        pack(source, "s3://b/other", unit=(0, 2))


@needs_obstore
@pytest.mark.parametrize("url", ["s3://b/nothing", "s3://b/nothing/a.tar"])
def test_an_empty_prefix_is_an_error(bucket: Bucket, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", url]) == 1
    assert "nothing" in capsys.readouterr().err


@needs_obstore
def test_object_names_that_lead_out_of_a_folder_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    bucket.objects["evil/../../up.jpg"] = b"x"
    with pytest.raises(SourceError):
        headrace.open("s3://b/evil")
    assert not list(tmp_path.rglob("up.jpg"))


@needs_obstore
def test_the_first_batch_comes_after_few_round_trips(packed: Path, bucket: Bucket) -> None:
    """Manifest, index, records: the reads of a batch are concurrent. Each answer waits until no further request comes."""
    depths: list[int] = []  # of each request: one more than that of the deepest that was answered before it came
    answered = [0]

    def hold(number: int, key: str, part: str) -> None:
        depths.append(answered[0] + 1)
        mine = depths[-1]
        while True:
            seen = len(depths)
            time.sleep(0.25)
            if len(depths) == seen:
                break
        answered[0] = max(answered[0], mine)

    bucket.fault = hold
    loader = headrace.Loader(
        headrace.open("s3://b/data"), batch_size=8, transform=headrace.transforms.imagenet_train(48), output="numpy", threads=2
    )
    next(iter(loader))
    assert len(depths) > 3 and max(depths) <= 4, depths  # one after the other, the reads of the batch would be eight deep


@needs_obstore
def test_an_inconsistent_manifest_is_an_error(packed: Path, bucket: Bucket, tmp_path: Path) -> None:
    original = bucket.objects["data/headrace.json"]
    for old, new in [
        (b'"shard-000000.tar"', b'"../shard-000000.tar"'),
        (b'"shard-000000.tar"', b'"/etc/passwd"'),
        (b'"records": 40', b'"records": 41'),
        (b'"version": 1', b'"version": 99'),
    ]:
        bucket.objects["data/headrace.json"] = original.replace(old, new)
        assert bucket.objects["data/headrace.json"] != original
        with pytest.raises(FormatError):
            headrace.open("s3://b/data")
    bucket.objects["data/headrace.json"] = original
    for name in [key for key in bucket.objects if key.endswith(".tar")]:  # records at other offsets than in the index
        bucket.objects[name] = bytes(512) + bucket.objects[name][:-512]
    with pytest.raises(SourceError, match="checksum"):
        headrace.open("s3://b/data").read(0)
    for name in [key for key in bucket.objects if key.endswith(".tar")]:
        bucket.objects[name] = b""
    with pytest.raises(SourceError, match="data"):
        headrace.open("s3://b/data").read(1)
    assert not list(tmp_path.rglob("passwd"))
