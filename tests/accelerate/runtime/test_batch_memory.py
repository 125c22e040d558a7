"""The memory of batches: used again in the next epoch, never while somebody refers to it, and safe to fork beside."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace._native import Ring
from headrace.accelerate.runtime import batch_memory
from headrace.accelerate.runtime.batch_memory import MOST_SIZES, batch_block, offer_free_blocks
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIZE = 300_000


@pytest.fixture(autouse=True)
def own_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without memory."""
    monkeypatch.setattr(batch_memory, "_blocks", batch_memory._Blocks())
    yield


def address(block: memoryview) -> int:
    return np.frombuffer(block, dtype=np.uint8).ctypes.data


def in_child(block: memoryview) -> bytes:
    """Return the first bytes that a forked child reads there."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes(block[:4]))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        return stream.read()


def test_a_free_block_is_used_again_and_one_in_use_never() -> None:
    first = batch_block(SIZE, 3)
    second = batch_block(SIZE, 3)
    assert len(first) == SIZE and address(first) != address(second)
    before = address(first)
    del first
    assert address(batch_block(SIZE, 3)) == before


def test_a_smaller_last_batch_uses_the_same_blocks_and_a_much_smaller_one_does_not() -> None:
    block = batch_block(SIZE, 3)
    before = address(block)
    del block
    last = batch_block(SIZE // 2, 3)
    assert address(last) == before and len(last) == SIZE
    del last
    assert len(batch_block(SIZE // 10, 3)) == SIZE // 10


def test_blocks_of_few_sizes_are_kept() -> None:
    sizes = [1000 * 10**power for power in range(MOST_SIZES + 2)]
    for size in sizes:
        batch_block(size, 2)
    assert set(batch_memory._blocks.rings) == set(sizes[2:])
    batch_block(sizes[2], 2)
    batch_block(1, 2)
    assert set(batch_memory._blocks.rings) == {*sizes[4:], sizes[2], 1}, "the size used longest ago goes first"


def test_an_evicted_size_frees_its_memory_though_a_batch_of_it_is_in_use() -> None:
    held = batch_block(SIZE, 3)
    held[:4] = b"held"
    ring = batch_memory._blocks.rings[SIZE]
    spare = [batch_block(SIZE, 3) for _ in range(2)]
    spare.clear()
    assert ring.counts() == (3, 1)
    for power in range(MOST_SIZES):
        batch_block(10_000_000 * 10**power, 1)
    assert ring.counts() == (1, 1) and bytes(held[:4]) == b"held"
    del held
    assert ring.counts() == (0, 0)


def test_a_smaller_batch_holds_no_more_memory() -> None:
    """The last batch of an epoch has fewer images, of which more batches would be in work."""
    blocks = [batch_block(SIZE, 10) for _ in range(10)]
    blocks += [batch_block(SIZE // 4, 34) for _ in range(30)]
    blocks.clear()
    assert batch_memory._blocks.rings[SIZE].counts() == (10, 0)


def test_the_number_kept_only_grows() -> None:
    ring = Ring(SIZE, 1)
    ring.keep(3)
    ring.keep(2)
    blocks = [ring.take() for _ in range(5)]
    assert ring.counts() == (5, 5)
    blocks.clear()
    assert ring.counts() == (3, 0)


def test_a_forked_child_inherits_blocks_in_use_and_not_the_free_ones() -> None:
    kept, freed = batch_block(SIZE, 3), batch_block(SIZE, 3)
    kept[:4], freed[:4] = b"kept", b"free"
    view = np.frombuffer(freed, dtype=np.uint8)
    start = view.ctypes.data
    del view, freed
    assert in_child(kept) == b"kept"
    mappings = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines()]
    assert any(line[0] == "VmFlags:" and "wf" in line for line in mappings), "wiped on fork"
    again = batch_block(SIZE, 3)
    assert address(again) == start
    again[:4] = b"used"
    assert in_child(again) == b"used"


def test_a_block_that_a_child_shares_begins_with_new_pages() -> None:
    """To write the shared pages would copy each."""
    held, other = batch_block(SIZE, 3), batch_block(SIZE, 3)
    held[:4] = b"held"
    assert in_child(held) == b"held"
    assert bytes(held[:4]) == b"held", "while somebody refers to it, it does not change"
    start = address(held)
    del held
    again = batch_block(SIZE, 3)
    assert address(again) == start and bytes(again[:4]) == bytes(4)
    again[:4] = b"next"
    del again
    assert bytes(batch_block(SIZE, 3)[:4]) == b"next", "without a fork, pages are kept"
    del other


def test_a_forked_child_begins_without_blocks() -> None:
    batch_block(SIZE, 3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        batch_block(SIZE, 3)[:4] = b"mine"
        os.write(write, b"%d" % len(batch_memory._blocks.rings))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 10) == b"1" and len(batch_memory._blocks.rings) == 1


def test_offered_blocks_are_used_again() -> None:
    blocks = [batch_block(SIZE, 3) for _ in range(3)]
    places = {address(block) for block in blocks}
    offer_free_blocks()
    blocks.clear()  # after the loader has ended, as the last batch of a loop is
    again = [batch_block(SIZE, 3) for _ in range(3)]
    assert {address(block) for block in again} == places
    for number, block in enumerate(again):
        block[:] = bytes([number]) * SIZE
    assert [set(block) for block in again] == [{0}, {1}, {2}]


def test_a_block_larger_than_memory_is_an_error() -> None:
    with pytest.raises(MemoryError):
        batch_block(1 << 60, 3)
    with pytest.raises(ValueError, match="too large"):
        batch_block((1 << 63) - 1, 3)


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "deferred"])
def test_epochs_share_memory_and_a_batch_that_is_kept_never_changes(
    folder: Path, taken_over: list[str], request: pytest.FixtureRequest, whole: bool, workers: int
) -> None:
    if not whole:
        request.getfixturevalue("items_refused")
    steps = [transforms.Resize((80, 80)), transforms.ToTensor()]  # larger than the files: else workers compute the images
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    loader = DataLoader(dataset if whole else _Own(dataset), batch_size=4, num_workers=workers)
    kept = [batch[0] for batch in loader]
    values = [batch.clone() for batch in kept]
    del kept[1:]
    for _ in range(3):
        for (images, _), expected in zip(loader, values, strict=True):
            assert torch.equal(images, expected)
        del images
        gc.collect()
    assert torch.equal(kept[0], values[0])
    if whole or workers:  # without workers, torch's own stack makes what items_refused leaves
        made, out = batch_memory._blocks.rings[4 * 3 * 80 * 80 * 4].counts()  # there is one for the compared items, too
        assert out == 1 and made <= 10


class _Own(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Another class than ImageFolder, with the same items."""

    def __init__(self, inner: ImageFolder) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.inner.samples[index]
        return self.inner.transform(self.inner.loader(path)), label

    def __len__(self) -> int:
        return len(self.inner)
