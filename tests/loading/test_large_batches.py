"""Batches that are larger than the dataset or the memory: an error in words or the records that there are, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from headrace import _native, transforms
from headrace.errors import UsageError

CROP = transforms.Compose([transforms.Resize((8, 8))])


def test_a_batch_size_beyond_the_dataset_takes_the_memory_of_the_dataset(image_folder: Callable[..., Path]) -> None:
    loader = headrace.Loader(image_folder(), batch_size=10**12, drop_last=False, transform=CROP, output="numpy", threads=1)
    (batch,) = loader
    assert len(batch[0]) == 12


def test_a_batch_without_memory_is_an_error_and_no_crash(
    image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, block_bytes: int, keep: int) -> None: ...

        def take(self) -> memoryview:
            return _native.Ring(2**46, 1).take()

        def counts(self) -> tuple[int, int]:
            return 0, 0

    monkeypatch.setattr("headrace.loading.feeding.feed.Ring", Full)
    loader = headrace.Loader(image_folder(), batch_size=4, transform=CROP, output="numpy", threads=1)
    with pytest.raises(UsageError, match="more than there is memory"):
        list(loader)


def test_a_ring_without_memory_raises() -> None:
    with pytest.raises(MemoryError, match="no memory for a batch of"):
        _native.Ring(2**46, 1).take()


def test_too_many_threads_are_refused(image_folder: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="threads must be at most"):
        headrace.Loader(image_folder(), batch_size=4, transform=CROP, threads=10**6)
