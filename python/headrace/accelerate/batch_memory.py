"""The memory of batches: kept from one epoch to the next, and shared by all loaders of the process.

A loader ends with each epoch. New memory for the next costs a page fault for each 4 KiB, and zeros that nobody reads: 200 ms
for six batches of 64 images (measured). Where the loader forks its workers anew, memory that the process already has would
be copied page by page as soon as it is written; free blocks are left out of forks.
"""

from __future__ import annotations

import os
import threading

from headrace._native import Ring

__all__ = ["batch_block", "offer_free_blocks"]

MOST_SIZES = 4
"""Keep memory of so many sizes: those used last."""

LARGEST_EXCESS = 4
"""Use a block for a batch that is at least this fraction of it, as the last batch of an epoch often is: 1 / LARGEST_EXCESS."""


class _Blocks:
    """Rings of memory by the size of their blocks, the one used last at the end."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an iterator that is freed within `take` calls `offer`
        self._rings: dict[int, Ring] = {}

    def take(self, size: int, kept: int) -> memoryview:
        with self._lock:
            fitting = min((bytes_ for bytes_ in self._rings if size <= bytes_ <= LARGEST_EXCESS * size), default=size)
            ring = self._rings.pop(fitting, None) or Ring(fitting, kept)
            ring.keep(kept)
            self._rings[fitting] = ring
            if len(self._rings) > MOST_SIZES:
                del self._rings[next(iter(self._rings))]
        return ring.take()

    def offer(self) -> None:
        with self._lock:
            for ring in self._rings.values():
                ring.offer()

    def forked(self) -> None:
        for ring in list(self._rings.values()):  # without the lock, which the forking thread may have to wait for
            ring.forked()


_blocks = _Blocks()


def batch_block(size: int, kept: int) -> memoryview:
    """Return a block of at least `size` bytes (1 or more), writable. It is used again when nobody refers to it.

    `kept`: keep so many blocks of the size while they are free, for this and later batches.
    """
    return _blocks.take(size, kept)


def offer_free_blocks() -> None:
    """Let the system take the memory of free blocks when it runs short, until blocks of their size are used again."""
    _blocks.offer()


def _begin_anew() -> None:
    """Begin without memory in a forked child: the free blocks are empty there, and a thread may have held the lock."""
    global _blocks
    _blocks = _Blocks()


def _share_blocks_in_use() -> None:
    """Tell the rings of the parent about its new child. A loop holds the last batch of an epoch when the next one forks."""
    _blocks.forked()


os.register_at_fork(after_in_child=_begin_anew, after_in_parent=_share_blocks_in_use)
