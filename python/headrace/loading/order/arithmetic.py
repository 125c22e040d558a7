"""The order of records as arithmetic: (seed, epoch, position) -> record, with no list of the epoch in memory.

The shuffle is a format-preserving permutation, computed by native code (`crates/headrace-core/src/order.rs`). The record at any
position can be computed at any time, so resuming costs nothing (`resume` says what a saved state holds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace._native import hashed as native_hashed
from headrace._native import permute
from headrace.errors import UsageError

__all__ = ["EpochOrder", "Positions", "hashed", "permutation"]

Positions = npt.NDArray[np.int64]

RECORDS_AT_ONCE = 512
"""Compute the order of about this many records at a time (whole batches). A larger value delays the first batch."""


def hashed(*parts: int) -> int:
    """Return a 64-bit hash of integers, the same on every machine."""
    return native_hashed(*(part & (2**64 - 1) for part in parts))


def permutation(positions: Positions, size: int, key: int) -> Positions:
    """Return permuted[positions], int64, for the pseudo-random permutation of range(size) that `key` selects."""
    images = np.empty(len(positions), dtype=np.int64)
    permute(np.ascontiguousarray(positions), size, key, images)
    return images


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One rank's batches of one epoch over `records` records.

    Step s of the whole job takes positions [s * G, (s + 1) * G), G = batch_size * world_size. Rank r takes the r-th block of
    `batch_size` of them: every world size that divides G sees the same global batches. `drop_last` drops the last, incomplete
    step. Otherwise each rank takes an equal part of it; at most world_size - 1 records from the front of the epoch fill the
    parts up, so that all ranks always have the same number of batches.
    """

    records: int
    batch_size: int
    rank: int
    world_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    epoch: int
    block_shuffle: Callable[[Positions], Positions] | None = None  # maps positions to records instead of the full shuffle
    steps: int | None = None  # fixed number of whole batches, filled up from the front of the epoch (datasets in parts)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank} of world size {self.world_size}: the rank must be in [0, world_size)")

    @property
    def global_batch(self) -> int:
        """Number of records in one step of all ranks together."""
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Return the number of batches in the epoch, the same on every rank."""
        if self.steps is not None:
            return self.steps
        whole, tail = divmod(self.records, self.global_batch)
        return whole + (1 if tail and not self.drop_last else 0)

    def ranks_of(self, positions: Positions) -> Positions:
        """Return which rank takes the record at each of these positions of the epoch, int64."""
        return positions % self.global_batch // self.batch_size

    def batch(self, step: int) -> Positions:
        """Return the records of this rank's batch `step`, int64 [n]. Resuming at a step calls this with the step: no replay."""
        start = step * self.global_batch
        left = self.records - start
        if left >= self.global_batch or self.steps is not None:
            count = self.batch_size
        else:
            count = -(-left // self.world_size)
        return self._records_at(np.arange(count, dtype=np.int64) + (start + self.rank * count))

    def real_images(self, step: int, images: int) -> int:
        """Return how many of the `images` records of this rank's batch `step` are not repeated to fill up the last batch."""
        left = self.records - step * self.global_batch
        return images if left >= self.global_batch else max(0, min(images, left - self.rank * images))

    def batches(self, first: int) -> Iterator[Positions]:
        """Yield the records of this rank's batches from step `first` on, each as `batch` returns it.

        Small batches are computed several at a time: numpy costs more for a call than for the records of a batch.
        """
        at_once = max(1, RECORDS_AT_ONCE // self.batch_size)
        whole = len(self) if self.steps is not None else self.records // self.global_batch
        for step in range(first, whole, at_once):
            steps = np.arange(step, min(step + at_once, whole), dtype=np.int64)
            starts = steps * self.global_batch + self.rank * self.batch_size
            positions = starts[:, None] + np.arange(self.batch_size, dtype=np.int64)
            yield from self._records_at(positions.reshape(-1)).reshape(positions.shape)
        for step in range(max(first, whole), len(self)):
            yield self.batch(step)

    def _records_at(self, positions: Positions) -> Positions:
        """Return the records at positions of the epoch, which are counted on from the front behind its end."""
        positions %= self.records
        if not self.shuffle:
            return positions
        if self.block_shuffle is not None:
            return self.block_shuffle(positions)
        return permutation(positions, self.records, hashed(self.seed, self.epoch))
