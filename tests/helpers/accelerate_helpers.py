"""The batches of a loader without headrace, and their comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter


def own_batches(loader: Any) -> list[Any]:
    """Return the batches of the loader's own iterator, also if the hook is installed."""
    return list((_MultiProcessingDataLoaderIter if loader.num_workers else _SingleProcessDataLoaderIter)(loader))


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert type(mine) is type(other) and len(mine) == len(other)
        for a, b in zip(mine, other, strict=True):
            assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
            assert torch.equal(a, b)
