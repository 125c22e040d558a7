"""The sizes of a dataset's objects, and what inspect says about them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace.cli.main import main
from headrace.inspection.object_sizes import object_sizes
from headrace.packing import pack

MIB = 1 << 20


def resized(root: Path, sizes: list[int]) -> headrace.Dataset:
    """Give the files of a folder these sizes (sparse), and open it."""
    data = headrace.open(root)
    assert len(sizes) == len(data.table.files)
    for name, size in zip(data.table.files, sizes, strict=True):
        os.truncate(name, size)
    return data


def test_small_files_are_said_and_packed_ones_are_not(
    image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = image_folder(classes=2, per_class=5)
    assert main(["inspect", str(root)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "10 objects: " in printed
    assert "100 % of 10 objects are smaller than 1 MiB" in printed and "headrace pack makes 1 shard" in printed
    pack(root, tmp_path / "packed")
    assert main(["inspect", str(tmp_path / "packed"), "--json"]) == 0
    objects = json.loads(capsys.readouterr().out)["objects"]
    assert (objects["objects"], objects["below_share"], objects["remark"]) == (1, 1.0, None)


def test_the_histogram_counts_every_object_once(image_folder: Callable[..., Path]) -> None:
    sizes = [0, 3, 4, 5 * MIB, 16 * MIB - 1, 16 * MIB, 64 * MIB, 200 * MIB]
    found = object_sizes(resized(image_folder(classes=2, per_class=4), sizes))
    assert found is not None
    assert sum(one.objects for one in found.histogram) == 8
    for one in found.histogram:
        assert one.objects == sum(one.from_bytes <= size < one.below_bytes for size in sizes)
    assert (found.below_share, found.above_share) == (3 / 8, 1 / 8)
    assert found.histogram[0].from_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([2 * MIB] * 8, None),
        ([128 * MIB] * 8, None),  # as headrace packs them
        ([129 * MIB] * 8, "100 % of 8 objects are larger than 128.0 MiB"),
        ([MIB - 1] * 8, "100 % of 8 objects are smaller than 1 MiB"),
    ],
)
def test_a_remark_is_made_outside_1_to_128_mib_only(
    image_folder: Callable[..., Path], sizes: list[int], words: str | None
) -> None:
    found = object_sizes(resized(image_folder(classes=2, per_class=4), sizes))
    assert found is not None
    assert found.remark is None if words is None else found.remark is not None and found.remark.startswith(words)


def test_a_file_that_vanished_is_left_out(image_folder: Callable[..., Path]) -> None:
    data = headrace.open(image_folder(classes=2, per_class=2))
    Path(data.table.files[0]).unlink()
    found = object_sizes(data)
    assert found is not None and (found.objects, found.sampled) == (4, 3)


def test_objects_that_are_not_on_disk_have_the_sizes_of_the_index(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    pack(image_folder(classes=2, per_class=5), tmp_path / "packed")
    local = headrace.open(tmp_path / "packed")
    missing = tuple(f"/nowhere/{name}" for name in range(len(local.table.files)))

    class Nothing:
        def read(self, *_: int) -> bytes:
            raise AssertionError("sizes need no read")

    remote = replace(local, table=replace(local.table, files=missing), fetcher=Nothing())  # type: ignore[arg-type]
    found, real = object_sizes(remote), object_sizes(local)
    assert found is not None and real is not None
    assert found.objects == real.objects == 1
    end = int(np.max(local.table.offset + local.table.size))
    assert found.median_bytes == end <= real.median_bytes
