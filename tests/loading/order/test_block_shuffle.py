"""The block shuffle: every record once, any world size, resumable, and a stated quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.datasets.records.table import RecordTable
from headrace.errors import StateError, UsageError
from headrace.loading.order.arithmetic import EpochOrder
from headrace.loading.order.block_shuffle import BlockLayout, window_bytes
from headrace.packing import pack
from hypothesis import given, settings
from hypothesis import strategies as st


def table(counts: list[int], size: int = 1000) -> RecordTable:
    """Shards of `counts` records of `size` bytes."""
    n = sum(counts)
    file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    zeros = np.zeros(n, dtype=np.int64)
    return RecordTable(tuple(map(str, range(len(counts)))), file, zeros, zeros + size, zeros, [str(i) for i in range(n)])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 40_000), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_is_a_permutation(counts: list[int], window: int, seed: int, epoch: int) -> None:
    blocks = BlockLayout.from_table(table(counts), window)
    n = sum(counts)
    rows = blocks.order(seed, epoch).rows(np.arange(n))
    assert sorted(rows.tolist()) == list(range(n))
    some = np.array([n - 1, 0, n // 2])
    assert rows[some].tolist() == blocks.order(seed, epoch).rows(some).tolist()


def test_shuffles_only_the_shards_of_a_window() -> None:
    blocks = BlockLayout.from_table(table([50] * 32), 4 * 50_000)
    assert blocks.window == 8  # halves of shards: a window has at least eight blocks
    order = blocks.order(1, 0)
    shard = order.rows(np.arange(1600)) // 25
    for begin in range(0, 1600, 200):
        assert len(set(shard[begin : begin + 200])) == 8
        assert len(set(shard[begin : begin + 20])) > 3
    assert blocks.order(1, 1).rows(np.arange(200)).tolist() != order.rows(np.arange(200)).tolist()
    assert blocks.order(2, 0).rows(np.arange(200)).tolist() != order.rows(np.arange(200)).tolist()


def test_the_order_is_the_same_on_every_machine() -> None:
    rows = BlockLayout.from_table(table([3, 4, 5, 6]), 9000).order(7, 2).rows(np.arange(18))
    assert rows.tolist() == GOLDEN


GOLDEN = [8, 9, 12, 6, 13, 2, 11, 4, 7, 3, 1, 17, 5, 16, 14, 10, 15, 0]


def test_one_large_shard_is_cut_into_blocks() -> None:
    blocks = BlockLayout.from_table(table([1000]), 100_000)
    assert len(blocks) > 70 and 7 <= blocks.window <= 9
    assert BlockLayout.from_table(table([]), 1000).order(0, 0).rows(np.arange(0)).tolist() == []


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_world_size_sees_the_same_global_batches(world_size: int) -> None:
    blocks = BlockLayout.from_table(table([17, 5, 30, 12]), 20_000)

    def batch(step: int) -> list[int]:
        orders = [
            EpochOrder(64, 8 // world_size, rank, world_size, True, True, 3, 1, blocks.order(3, 1).rows)
            for rank in range(world_size)
        ]
        return [row for order in orders for row in order.batch(step).tolist()]

    assert [batch(step) for step in range(8)] == [
        blocks.order(3, 1).rows(np.arange(8) + 8 * step).tolist() for step in range(8)
    ]


def test_quality_is_the_chance_that_neighbours_have_one_shard_or_class() -> None:
    blocks = BlockLayout.from_table(table([100] * 16), 800_000)
    labels = np.repeat(np.arange(16), 100)  # a class a shard: the worst case
    quality = blocks.quality(labels, 0, 0)
    rows = blocks.order(0, 0).rows(np.arange(1600))
    windows = rows.reshape(2, 800) // 100
    measured = np.mean([(window[:, None] == window[None, :]).sum() - 800 for window in windows]) / (800 * 799)
    assert quality.same_shard == pytest.approx(measured)
    assert quality.same_class == pytest.approx(quality.same_shard)
    assert quality.uniform_same_shard == pytest.approx(99 / 1599)
    assert blocks.quality(np.arange(1600) % 16, 0, 0).same_class == pytest.approx(99 / 1599, rel=0.1)


def test_quality_of_imagenet_as_documented() -> None:
    """ImageNet-1k's 1,281,167 images, 110 kB each, in 1,024 shards: classes one after the other, and in random order."""
    n = 1_281_167
    rows = np.arange(n)
    zeros = np.zeros(n, dtype=np.int64)
    one = RecordTable(("",) * 1024, (rows * 1024 // n).astype(np.int32), zeros, zeros + 110_000, zeros, [])
    blocks = BlockLayout.from_table(one, 2 << 30)
    assert blocks.describe() == "blocks: 1024 runs of records in random order, 16 shuffled at a time (2.0 GiB)"
    ordered = blocks.quality(rows * 1000 // n, 0, 0)
    drawn = blocks.quality(np.random.default_rng(0).integers(0, 1000, n), 0, 0)
    assert "6.25 % (full shuffle: 0.10 %), that they are of one class 4.23 % (full shuffle: 0.10 %)" in ordered.describe()
    assert "of one class 0.10 % (full shuffle: 0.10 %)" in drawn.describe()


@pytest.mark.parametrize("text", ["blocks", "block:", "block:much", "block:0", "window"])
def test_refuses_an_unknown_shuffle(text: str) -> None:
    with pytest.raises(UsageError, match="block"):
        window_bytes(text)
    assert window_bytes("block") == 2 << 30 and window_bytes("block:1MiB") == 1 << 20 and window_bytes(True) is None


@pytest.fixture
def packed(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    pack(image_folder(classes=4, per_class=10), tmp_path / "packed", shard_size=400_000)
    return tmp_path / "packed"


def loader(path: Path, **options: Any) -> headrace.Loader:
    defaults: dict[str, Any] = {"batch_size": 8, "seed": 1, "shuffle": "block:800KiB", "threads": 2, "output": "numpy"}
    transform = headrace.transforms.imagenet_train(32)
    return headrace.Loader(headrace.open(path), transform=transform, **(defaults | options))


def test_resume_continues_within_a_window(packed: Path) -> None:
    whole = [images.copy() for images, _ in loader(packed)]
    begun = loader(packed)
    iterator = iter(begun)
    for _ in range(2):
        next(iterator)
    resumed = loader(packed, threads=1)
    resumed.load_state_dict(begun.state_dict())
    rest = [images for images, _ in resumed]
    assert len(whole) == 5 and all(np.array_equal(a, b) for a, b in zip(rest, whole[2:], strict=True))
    assert begun.state_dict()["shuffle"] == "block:819200"
    with pytest.raises(StateError, match="shuffle"):
        loader(packed, shuffle=True).load_state_dict(begun.state_dict())


def test_each_record_once_and_explain_gives_the_quality(packed: Path) -> None:
    data = loader(packed, drop_last=False)
    labels = np.concatenate([labels for _, labels in data])
    assert Counter(labels.tolist()) == {0: 10, 1: 10, 2: 10, 3: 10}
    text = data.explain()
    assert "in random order" in text and "full shuffle" in text
    quality = data.stats().shuffle
    assert quality is not None and quality.same_class > quality.uniform_same_class
    assert loader(packed, shuffle=True).stats().shuffle is None


def test_refuses_a_block_shuffle_of_image_files(image_folder: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="files of their own"):
        loader(image_folder())
