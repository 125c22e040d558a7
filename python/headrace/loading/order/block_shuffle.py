"""The block shuffle: shards in random order, and their records shuffled within a window of shards.

It is for shards that are read whole from an object store: the next shards are known long before they are needed. The order of
an epoch is a pure function of (seed, epoch, dataset, window): any position can be computed at any time, with no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.table import RecordTable
from headrace.errors import UsageError
from headrace.loading.order.arithmetic import Positions, hashed, permutation
from headrace.loading.statistics.stats import ShuffleQuality
from headrace.system.text.sizes import parse_size, size_text

__all__ = ["WINDOW", "BlockLayout", "BlockOrder", "window_bytes"]

WINDOW = "2GiB"  # default window: 16 shards of the packer's default size
_MIN_BLOCKS = 8  # cut shards so that a window holds at least this many blocks


def window_bytes(shuffle: bool | str | None, default: str = WINDOW) -> int | None:
    """Return the window of `shuffle="block"` or `"block:SIZE"` in bytes, None for True and False.

    Raises UsageError for anything else.
    """
    if not isinstance(shuffle, str):
        return None
    kind, colon, size = shuffle.partition(":")
    try:
        window = parse_size(size if colon else default)
    except ValueError:
        window = 0
    if kind != "block" or window < 1:
        raise UsageError(f"shuffle must be True, False, 'block' or 'block:SIZE' (such as 'block:{default}'), not {shuffle!r}")
    return window


@dataclass(frozen=True, slots=True, eq=False)
class BlockLayout:
    """The blocks of a dataset: runs of rows, each a shard or a part of a large one. `window` blocks are shuffled together."""

    start: npt.NDArray[np.int64]  # [blocks + 1] first row of each block, and the end
    window: int  # number of blocks that are shuffled together
    window_bytes: int

    @staticmethod
    def from_table(table: RecordTable, window_bytes: int) -> BlockLayout:
        """Return the blocks of a table of records. Raises UsageError if each record is a file of its own."""
        if np.any(table.size < 0):
            raise UsageError(
                "shuffle='block' is for shards; these images are files of their own",
                hint="shuffle=True, or headrace pack",
            )
        records = len(table)
        ends = np.cumsum(table.size)
        new = np.ones(records, dtype=bool)
        new[1:] = table.file[1:] != table.file[:-1]
        first = np.flatnonzero(new)
        before = (ends - table.size)[first]  # bytes of the records before each shard
        inside = ends - table.size - np.repeat(before, np.diff(np.append(first, records)))
        piece = inside // max(1, window_bytes // _MIN_BLOCKS)
        new[1:] |= piece[1:] != piece[:-1]
        start = np.append(np.flatnonzero(new), records).astype(np.int64)
        blocks = len(start) - 1
        mean = int(ends[-1]) / blocks if records else 1
        return BlockLayout(start, max(1, min(blocks, round(window_bytes / max(1.0, mean)))), window_bytes)

    def __len__(self) -> int:
        return len(self.start) - 1

    def order(self, seed: int, epoch: int) -> BlockOrder:
        """Return the shuffled order of an epoch, the same on every machine."""
        return _order(self, hashed(seed, epoch))

    def quality(self, labels: npt.NDArray[np.int64], seed: int, epoch: int) -> ShuffleQuality:
        """Return how well the order of an epoch is shuffled. labels: [n] class of each record."""
        order = self.order(seed, epoch)
        shard = np.repeat(np.arange(len(self)), np.diff(self.start))
        windows = list(order.windows())
        return ShuffleQuality(
            same_shard=_mean_concentration(windows, shard),
            uniform_same_shard=_concentration(shard),
            same_class=_mean_concentration(windows, labels),
            uniform_same_class=_concentration(labels),
        )

    def describe(self) -> str:
        """Return the number of blocks, and the size of the window in blocks and bytes, in words for `explain`."""
        window = f"{self.window} shuffled at a time ({size_text(self.window_bytes)})"
        return f"blocks: {len(self)} runs of records in random order, {window}"


@dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """The block-shuffled order of one epoch, a map from positions to rows of the dataset's table."""

    key: int
    first_row: npt.NDArray[np.int64]  # [blocks] first row of each block, in the epoch's order of blocks
    first_position: npt.NDArray[np.int64]  # [blocks + 1] first position of each block in the epoch, and the end
    window_position: npt.NDArray[np.int64]  # [windows + 1] first position of each window, and the end

    def rows(self, positions: Positions) -> Positions:
        """Return the rows at `positions` of the epoch, int64."""
        shuffled = np.empty_like(positions)
        windows = self.window_of(positions)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            begin, end = int(self.window_position[window]), int(self.window_position[window + 1])
            shuffled[chosen] = permutation(positions[chosen] - begin, end - begin, hashed(self.key, window)) + begin
        return self._in_block_order(shuffled)

    def window_of(self, positions: Positions) -> Positions:
        """Return the number of the window that each position lies in."""
        return np.searchsorted(self.window_position, positions, side="right") - 1

    def windows(self) -> Iterator[Positions]:
        """Yield the rows of each window, in the order of the blocks."""
        for begin, end in zip(self.window_position[:-1].tolist(), self.window_position[1:].tolist(), strict=True):
            yield self._in_block_order(np.arange(begin, end, dtype=np.int64))

    def _in_block_order(self, positions: Positions) -> Positions:
        block = np.searchsorted(self.first_position, positions, side="right") - 1
        return self.first_row[block] + positions - self.first_position[block]


@lru_cache(maxsize=8)
def _order(blocks: BlockLayout, key: int) -> BlockOrder:
    count = len(blocks)
    order = permutation(np.arange(count, dtype=np.int64), count, key)
    first_position = np.concatenate([[0], np.cumsum(np.diff(blocks.start)[order])]).astype(np.int64)
    windows = max(1, -(-count // blocks.window))
    cuts = np.arange(windows + 1) * count // windows  # equal windows: a small last one would hardly be shuffled
    return BlockOrder(key, blocks.start[:-1][order], first_position, first_position[cuts])


def _concentration(kinds: npt.NDArray[np.int64]) -> float:
    """Return the chance that two different members of `kinds` are equal; 0 for fewer than two members."""
    counts = np.unique(kinds, return_counts=True)[1].astype(np.float64)
    total = float(len(kinds))
    return float((counts * (counts - 1)).sum() / (total * (total - 1))) if total > 1 else 0.0


def _mean_concentration(windows: list[Positions], kinds: npt.NDArray[np.int64]) -> float:
    """Return the mean concentration of the windows, weighted by their records."""
    total = sum(map(len, windows))
    return sum(_concentration(kinds[rows]) * len(rows) for rows in windows) / total if total else 0.0
