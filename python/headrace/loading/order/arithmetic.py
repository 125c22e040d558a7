"""The order of records as arithmetic: (seed, epoch, position) -> record, with no list of the epoch in memory.

The shuffle is a format-preserving permutation, computed by native code (`crates/headrace-core/src/order.rs`). The record at any
position can be computed at any time, so resuming costs nothing (`resume` says what a saved state holds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace._native import hashed as native_hashed
from headrace._native import permute
from headrace.errors import UsageError

__all__ = ["EpochOrder", "Positions", "Repeating", "draw_keys", "hashed", "mix64", "permutation"]

Positions = npt.NDArray[np.int64]

RECORDS_AT_ONCE = 512
"""Compute the order of about this many records at a time (whole batches). A larger value delays the first batch."""


def hashed(*parts: int) -> int:
    """Return a 64-bit hash of integers, the same on every machine."""
    return native_hashed(*(part & (2**64 - 1) for part in parts))


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return SplitMix64's finaliser (Steele, Lea, Flood 2014) of each value, modulo 2**64."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw_keys(records: Positions, occurrences: Positions, first_draw: int = 0) -> npt.NDArray[np.uint64]:
    """Return the key of the random draws of each record, uint64 [n].

    occurrences: how often the record came before in the epoch. The key of a first occurrence is `first_draw` + the record.
    """
    keys = records.astype(np.uint64) + np.uint64(first_draw)
    again = occurrences > 0
    if again.any():
        keys[again] = mix64(mix64(keys[again]) ^ occurrences[again].astype(np.uint64))
    return keys


def permutation(positions: Positions, size: int, key: int) -> Positions:
    """Return permuted[positions], int64, for the pseudo-random permutation of range(size) that `key` selects."""
    images = np.empty(len(positions), dtype=np.int64)
    permute(np.ascontiguousarray(positions), size, key, images)
    return images


class Repeating(Protocol):
    """An order in which a record may stand at several positions of an epoch."""

    @property
    def stand_ins(self) -> Positions:
        """The rows that may take the place of a bad record."""

    def rows(self, positions: Positions) -> Positions:
        """Return the row of the dataset's table at each position of the epoch, int64."""

    def occurrences(self, positions: Positions) -> Positions:
        """Return a number for each position, int64: another one for each position of the same row, 0 for one of them."""


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
    weighted: Repeating | None = None  # draws by weights, instead of a shuffle

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

    @property
    def stand_ins(self) -> Positions | None:
        """The rows that may take the place of a bad record; None: all."""
        return None if self.weighted is None else self.weighted.stand_ins

    def batch(self, step: int) -> Positions:
        """Return the records of this rank's batch `step`, int64 [n]. Resuming at a step calls this with the step: no replay."""
        return self._records_at(self._positions(step))

    def batches(self, first: int) -> Iterator[Positions]:
        """Yield the records of this rank's batches from step `first` on, each as `batch` returns it."""
        return (records for records, _ in self.draws(first))

    def draws(self, first: int, first_draw: int = 0) -> Iterator[tuple[Positions, npt.NDArray[np.uint64]]]:
        """Yield the records of this rank's batches from step `first` on, and the keys of their random draws (`draw_keys`)."""
        for positions in self._positions_from(first):
            flat = positions.reshape(-1)
            records = self._records_at(flat)
            keys = draw_keys(records, self._occurrences(flat), first_draw)
            yield from zip(records.reshape(positions.shape), keys.reshape(positions.shape), strict=True)

    def _positions(self, step: int) -> Positions:
        """Return the positions of this rank's batch `step`; those behind the end of the epoch count on from its front."""
        start = step * self.global_batch
        left = self.records - start
        if left >= self.global_batch or self.steps is not None:
            count = self.batch_size
        else:
            count = -(-left // self.world_size)
        return np.arange(count, dtype=np.int64) + (start + self.rank * count)

    def real_images(self, step: int, images: int) -> int:
        """Return how many of the `images` records of this rank's batch `step` are not repeated to fill up the last batch."""
        left = self.records - step * self.global_batch
        return images if left >= self.global_batch else max(0, min(images, left - self.rank * images))

    def _positions_from(self, first: int) -> Iterator[Positions]:
        """Yield the positions of this rank's batches from step `first` on, a row for each batch.

        Small batches come several at a time: numpy costs more for a call than for the records of a batch.
        """
        at_once = max(1, RECORDS_AT_ONCE // self.batch_size)
        whole = len(self) if self.steps is not None else self.records // self.global_batch
        for step in range(first, whole, at_once):
            steps = np.arange(step, min(step + at_once, whole), dtype=np.int64)
            starts = steps * self.global_batch + self.rank * self.batch_size
            yield starts[:, None] + np.arange(self.batch_size, dtype=np.int64)
        for step in range(max(first, whole), len(self)):
            yield self._positions(step)[None, :]

    def _records_at(self, positions: Positions) -> Positions:
        """Return the records at positions of the epoch."""
        positions = positions % self.records
        if self.weighted is not None:
            return self.weighted.rows(positions)
        if not self.shuffle:
            return positions
        if self.block_shuffle is not None:
            return self.block_shuffle(positions)
        return permutation(positions, self.records, hashed(self.seed, self.epoch))

    def _occurrences(self, positions: Positions) -> Positions:
        """Return how often the record at each position came before. Behind the end of the epoch, records come again."""
        rounds = positions // self.records
        if self.weighted is None:
            return rounds
        return self.weighted.occurrences(positions % self.records) + rounds * self.records  # no record comes more often
