"""Reuse the memory of batches, across epochs and across the loaders of a process.

A loader ends with each epoch. New memory for the next costs a page fault for each 4 KiB, and zeros that nobody reads. Where
the loader forks its workers anew, memory that the process already has would be copied page by page as soon as it is written;
free blocks are left out of forks.
"""

from __future__ import annotations

import itertools
import os

import torch

from headrace._native import Ring

__all__ = ["as_made_now", "batch_block", "not_a_view", "offer_free_blocks", "similar_size"]

MOST_SIZES = 4
"""Keep free memory for batches of this many sizes, those used last. More sizes hold more memory."""

LARGEST_BLOCK = 4
"""Reuse a free block for a batch if the block is at most this many times as large. The last batch of an epoch is often smaller.
"""


class _Blocks:
    """Free blocks of memory, by their size in bytes.

    There is no lock: the garbage collector may end a loader's thread, and wait for it, wherever memory is allocated. Two
    threads that meet here make a ring twice at worst.
    """

    def __init__(self) -> None:
        self.rings: dict[int, Ring] = {}
        self._uses = itertools.count()
        self._used: dict[int, int] = {}  # size -> the number of its last use

    def take(self, size_bytes: int, spare_blocks: int) -> memoryview:
        fits = [size for size in list(self.rings) if size_bytes <= size <= LARGEST_BLOCK * size_bytes]
        size = min(fits, default=size_bytes)
        ring = self.rings.get(size)
        if ring is None:
            ring = self.rings[size] = Ring(size, 0)
        # As much memory as the batches are large, however large the blocks are.
        ring.keep(max(2, spare_blocks * size_bytes // max(1, size)))
        self._used[size] = next(self._uses)
        if len(self.rings) > MOST_SIZES:
            oldest = min(list(self.rings), key=lambda one: self._used.get(one, -1))
            if (evicted := self.rings.pop(oldest, None)) is not None:
                evicted.close()
        return ring.take()

    def offer(self) -> None:
        for ring in list(self.rings.values()):
            ring.offer()

    def forked(self) -> None:
        for ring in list(self.rings.values()):
            ring.forked()


_blocks = _Blocks()


def batch_block(size_bytes: int, spare_blocks: int) -> memoryview:
    """Return a writable block of at least `size_bytes` bytes (1 or more). It is reused when nothing refers to it any more.

    `spare_blocks`: number of free blocks of this size to keep, for this loader and later ones.
    """
    return _blocks.take(size_bytes, spare_blocks)


def not_a_view(flat: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of another shape over the memory of `flat`. For autograd it is no view, like a batch made by torch."""
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(flat.untyped_storage(), 0, shape)


def as_made_now(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that is an inference tensor if, and only if, inference mode is on now.

    The mode may have changed since the memory was allocated.
    """
    if tensor.is_inference() == torch.is_inference_mode_enabled():
        return tensor
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*place)


def similar_size(size_bytes: int) -> int:
    """Round a size in bytes up, by at most a quarter, so that batches of nearly the same size share free blocks."""
    step = max(4096, 1 << max(0, size_bytes.bit_length() - 3))
    return -(-size_bytes // step) * step


def offer_free_blocks() -> None:
    """Let the system reclaim the memory of free blocks when it runs short, until they are used again."""
    _blocks.offer()


def _begin_anew() -> None:
    """Start with no free blocks in a forked child: they are not copied there."""
    global _blocks
    _blocks = _Blocks()


def _share_blocks_in_use() -> None:
    """Tell the parent's blocks about its new child: the loop holds the last batch of an epoch when the next one forks."""
    _blocks.forked()


os.register_at_fork(after_in_child=_begin_anew, after_in_parent=_share_blocks_in_use)
