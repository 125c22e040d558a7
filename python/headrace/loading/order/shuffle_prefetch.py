"""Fetch the next window of a block shuffle from the object store while the current one is in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headrace.datasets.records.table import RecordFetcher
from headrace.loading.order.arithmetic import EpochOrder, Positions
from headrace.loading.order.block_shuffle import BlockLayout
from headrace.system.hardware.machine import job_processes

__all__ = ["prefetch_windows"]

# Request the next window after this share of the current one, so that its own batches have the network first.
_PREFETCH_AFTER = 0.25
_PREFETCH_NEXT_EPOCH_AFTER = 0.75  # in an epoch's last window, request the next epoch's first window after this share of it


def prefetch_windows(steps: Iterable[int], order: EpochOrder, blocks: BlockLayout, fetcher: RecordFetcher) -> Iterator[int]:
    """Yield `steps` unchanged, and ask `fetcher` in time for the records of this host in the window after each step's."""
    block_order = blocks.order(order.seed, order.epoch)
    requested_after = -1
    for step in steps:
        position = min(step * order.global_batch, order.records - 1)
        window = int(block_order.window_of(np.array([position]))[0])
        begin, end = block_order.window_position[window : window + 2].tolist()
        share = _PREFETCH_NEXT_EPOCH_AFTER if end == order.records else _PREFETCH_AFTER
        if window != requested_after and position >= begin + share * (end - begin):
            requested_after = window
            fetcher.prefetch(_next_window(order, blocks, window + 1))
        yield step


def _next_window(order: EpochOrder, blocks: BlockLayout, window: int) -> Positions:
    """Return the records of a window that ranks on this host need. After the last window comes the next epoch's first."""
    block_order = blocks.order(order.seed, order.epoch)
    if window + 1 >= len(block_order.window_position):
        block_order, window = blocks.order(order.seed, order.epoch + 1), 0
    positions = np.arange(block_order.window_position[window], block_order.window_position[window + 1], dtype=np.int64)
    return block_order.rows(positions[np.isin(order.ranks_of(positions), _ranks_here(order))])


def _ranks_here(order: EpochOrder) -> range:
    """Return the ranks on this host, which share a cache. torchrun numbers them consecutively."""
    count = job_processes()
    first = order.rank - order.rank % count
    return range(first, first + count)
