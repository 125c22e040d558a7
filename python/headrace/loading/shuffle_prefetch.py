"""Tells a remote dataset what a block shuffle wants next: the next window of shards, while the current one is in use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from headrace.datasets.records import RecordFetcher
from headrace.loading.block_shuffle import Blocks
from headrace.loading.order import EpochOrder, Positions

__all__ = ["announced"]

_EARLY, _LATE = 0.25, 0.75  # of a window: first batches have the link for themselves, the last ones before the next epoch


def announced(steps: Iterable[int], order: EpochOrder, blocks: Blocks, fetcher: RecordFetcher) -> Iterator[int]:
    """`steps` as they are; on the way the records of the window after each step's are announced, those of this host."""
    mixed = blocks.order(order.seed, order.epoch)
    told = -1
    for step in steps:
        position = min(step * order.global_batch, order.records - 1)
        window = int(mixed.window_of(np.array([position]))[0])
        begin, end = mixed.window_position[window : window + 2].tolist()
        share = _LATE if end == order.records else _EARLY
        if window != told and position >= begin + share * (end - begin):
            told = window
            fetcher.prefetch(_next_window(order, blocks, window + 1))
        yield step


def _next_window(order: EpochOrder, blocks: Blocks, window: int) -> Positions:
    """The records of a window that ranks on this host will ask for; behind the last one comes the next epoch's first."""
    mixed = blocks.order(order.seed, order.epoch)
    if window + 1 >= len(mixed.window_position):
        mixed, window = blocks.order(order.seed, order.epoch + 1), 0
    positions = np.arange(mixed.window_position[window], mixed.window_position[window + 1], dtype=np.int64)
    return mixed.rows(positions[np.isin(order.ranks_of(positions), _ranks_here(order))])


def _ranks_here(order: EpochOrder) -> range:
    """The ranks that share this host's cache: torchrun numbers those of a host one after the other."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    count = max(1, int(local)) if local.isdigit() else 1
    first = order.rank - order.rank % count
    return range(first, first + count)
