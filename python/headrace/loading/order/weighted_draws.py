"""Draws by weights: an epoch of as many draws as there are records, in which each record comes as often as its weight says.

The draws of an epoch are a systematic sample (Madow 1949) of the records in random order: a record with the share p of all
weights comes floor(n p) or ceil(n p) times among n draws, n p times on average. So equal weights give each record once, and the
shares of the classes hardly vary. The draws are then shuffled. All is a pure function of (seed, epoch, weights): any position
can be computed at any time, and ranks divide the positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.loading.order.arithmetic import Positions, hashed, permutation

__all__ = ["RecordWeights", "WeightedDraws", "Weights", "record_weights"]

Weights = Mapping[str, float] | Sequence[float] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RecordWeights:
    """The weight of each record of a dataset."""

    weight: npt.NDArray[np.float64]  # [n] 0 or more; the sum is positive
    digest: str  # identifies the weights in a saved state

    def draws(self, seed: int, epoch: int) -> WeightedDraws:
        """Return the draws of an epoch, the same on every machine."""
        return _draws(self, hashed(seed, epoch))

    def describe(self) -> str:
        """Return how records are drawn, in words for `explain`."""
        never = int((self.weight == 0).sum())
        most = float(self.weight.max() / self.weight.mean())
        left_out = f"; {never:,} are never drawn" if never else ""
        return f"records drawn by weights, up to {most:,.1f} times an epoch on average{left_out}"


@dataclass(frozen=True, slots=True, eq=False)
class WeightedDraws:
    """The draws of one epoch, in random order: a map from positions to rows."""

    key: int
    first: npt.NDArray[np.int64]  # [n + 1] number of the first draw of each record, in an order that `key` selects, and the end
    stand_ins: Positions  # rows that may take the place of a bad record: those that can be drawn

    def rows(self, positions: Positions) -> Positions:
        """Return the rows at `positions` of the epoch, int64."""
        place, _ = self._places(positions)
        return permutation(place, len(self.first) - 1, self.key)

    def occurrences(self, positions: Positions) -> Positions:
        """Return the number of each draw among those of its record, int64: 0 for one of them, 1 for another, and so on."""
        place, draw = self._places(positions)
        return draw - self.first[place]

    def _places(self, positions: Positions) -> tuple[Positions, Positions]:
        draw = permutation(positions, len(self.first) - 1, hashed(self.key, 1))
        return np.searchsorted(self.first, draw, side="right") - 1, draw


@lru_cache(maxsize=2)
def _draws(weights: RecordWeights, key: int) -> WeightedDraws:
    count = len(weights.weight)
    reached = np.cumsum(weights.weight[permutation(np.arange(count, dtype=np.int64), count, key)])
    start = (hashed(key, 2) >> 11) * 2.0**-53  # draw number d falls to the record in whose part of [0, count) d + start lies
    ends = np.ceil(reached / reached[-1] * count - start).astype(np.int64)
    return WeightedDraws(key, np.concatenate([[0], np.clip(ends, 0, count)]), np.flatnonzero(weights.weight > 0))


def record_weights(weights: Weights, dataset: Dataset) -> RecordWeights:
    """Return the weight of each record. weights: one for each record, one for each class, or a mapping of class names.

    Raises UsageError for another number of weights, for one that is negative or not finite, and if none is positive.
    """
    records, classes, labels = len(dataset), dataset.classes, dataset.table.label
    what = f"weights are {records:,} numbers, one a record, or {len(classes):,}, one a class"
    if isinstance(weights, Mapping):
        unnamed = [name for name in classes if name not in weights]
        unknown = [name for name in weights if name not in classes]
        if unnamed or unknown:
            problem = f"no weight for class {unnamed[0]!r}" if unnamed else f"no class {unknown[0]!r}"
            raise UsageError(f"weights: {problem} of {dataset.root}", hint="give each class one: 0 leaves its records out")
        weights = [weights[name] for name in classes]
    try:
        given = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{what}, not {type(weights).__name__}", hint="or a dict of class names") from None
    if given.ndim != 1 or len(given) not in (records, len(classes)):
        raise UsageError(f"{what}, not of shape {list(given.shape)}", hint="or a dict of class names")
    if not np.isfinite(given).all() or (given < 0).any():
        raise UsageError(f"weight {given[~(np.isfinite(given) & (given >= 0))][0]} is no number from 0", hint="0: never drawn")
    if len(given) != records:
        if (labels < 0).any():
            raise UsageError(f"{dataset.root} has records without a label, which have no class's weight", hint=what)
        given = given[labels]
    if not given.sum() > 0:
        raise UsageError(f"no record of {dataset.root} has a weight above 0", hint="give some records a positive weight")
    return RecordWeights(given, hashlib.sha256(given.astype("<f8").tobytes()).hexdigest()[:16])
