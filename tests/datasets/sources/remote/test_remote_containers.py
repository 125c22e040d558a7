"""Tar, RecordIO and TFRecord files in an object store that are larger than the cache: ranged reads, bounded cache."""

from __future__ import annotations

from pathlib import Path

import headrace
import numpy as np
import pytest
from containers import example, image_record, tfrecord, write_rec, write_tar
from headrace.cli.main import main
from headrace.datasets.sources.remote import shards as remote_shards
from headrace.errors import FormatError, SourceError
from headrace.packing import pack
from object_store import Bucket, disk_bytes, needs_obstore
from sample_images import jpeg

COUNT, PARTS = 60, 6
IMAGES = [jpeg(300 + i, 200, i) for i in range(COUNT)]
LABELS = [i % 5 for i in range(COUNT)]


def write_containers(kind: str, folder: Path) -> None:
    """Write six files of ten images each."""
    folder.mkdir()
    for part in range(PARTS):
        rows = range(part * 10, part * 10 + 10)
        if kind == "tar":
            members = [
                (f"{i:04d}.{end}", data)
                for i in rows
                for end, data in (
                    ("jpg", IMAGES[i]),
                    ("cls", b"%d" % LABELS[i]),
                    ("json", b'{"i": %d}' % i),
                    ("seg.png", b"m%d" % i),
                )
            ]
            write_tar(folder / f"part{part}.tar", members)
        elif kind == "rec":
            write_rec(folder / f"part{part}.rec", [image_record(IMAGES[i], LABELS[i], i) for i in rows], index=False)
        else:
            examples = [example(image__class__label=LABELS[i], image__encoded=IMAGES[i]) for i in rows]
            (folder / f"part{part}.tfrecord").write_bytes(b"".join(map(tfrecord, examples)))


@needs_obstore
@pytest.mark.parametrize("kind", ["tar", "rec", "tfrecord"])
def test_containers_larger_than_the_cache_are_read_by_ranges(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write_containers(kind, tmp_path / "in")
    bucket.fill(tmp_path / "in", "in")
    local = headrace.open(tmp_path / "in")
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    limit = size // 2 + 400_000
    assert limit < size
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(limit))
    for _ in range(2):  # the second time with the index of the first
        remote = headrace.open("s3://b/in")
        assert (remote.kind, remote.classes, remote.fingerprint) == (local.kind, local.classes, local.fingerprint)
        assert isinstance(remote.fetcher, remote_shards.RemoteShards) and remote.fetcher.allowance is not None
    for shuffle in (True, "block:200KiB"):
        options = {"batch_size": 8, "seed": 2, "shuffle": shuffle, "drop_last": False, "output": "numpy", "threads": 1}
        transform = headrace.transforms.imagenet_train(32)
        far, near = (headrace.Loader(dataset, transform=transform, **options) for dataset in (remote, local))
        for (left, one), (right, other) in zip(far, near, strict=True):
            assert np.array_equal(left, right) and np.array_equal(one, other)
            assert disk_bytes(tmp_path / "cache") <= limit
    assert [remote.read_json(i) for i in range(COUNT)] == [local.read_json(i) for i in range(COUNT)]
    assert [remote.read_extras(i) for i in range(COUNT)] == [local.read_extras(i) for i in range(COUNT)]
    for source, name in ((remote, "far"), (local, "near")):
        assert pack(source, tmp_path / name).records == COUNT
    for path in (tmp_path / "near").iterdir():
        assert path.read_bytes() == (tmp_path / "far" / path.name).read_bytes()


@needs_obstore
def test_a_container_that_does_not_fit_or_is_damaged_is_an_error(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_containers("tar", tmp_path / "in")
    bucket.fill(tmp_path / "in", "in")
    size = (tmp_path / "in" / "part0.tar").stat().st_size
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(size // 2))
    with pytest.raises(SourceError, match="may take"):  # one file must fit while it is scanned
        headrace.open("s3://b/in/part0.tar")
    assert main(["inspect", "s3://b/in"]) == 1
    assert "hint:" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_CACHE_SIZE", str(size * 2))
    bucket.objects["in/part3.tar"] = bucket.objects["in/part3.tar"][:5000]
    for _ in range(2):
        with pytest.raises(FormatError, match=r"part3\.tar"):
            headrace.open("s3://b/in")
