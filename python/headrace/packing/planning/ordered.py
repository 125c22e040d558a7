"""Columns in the order of a listing. Listings of the same records, such as the parts of a split, share the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.keys import Keys

__all__ = ["OrderedColumn", "OrderedKeys", "Positions"]

Positions = npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Positions in a column, counted from 0."""

_CHUNK = 1 << 16  # values that are added up together


class OrderedColumn:
    """A column of numbers in the order `order` (None: as stored), without a copy. A slice or positions give an array."""

    __slots__ = ("column", "order")

    def __init__(self, column: npt.NDArray[np.int64], order: Positions | None) -> None:
        self.column, self.order = column, order

    def __len__(self) -> int:
        return len(self.column if self.order is None else self.order)

    @overload
    def __getitem__(self, at: int) -> np.int64: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int] | Positions) -> npt.NDArray[np.int64]: ...
    def __getitem__(self, at: int | slice | Sequence[int] | Positions) -> np.int64 | npt.NDArray[np.int64]:
        found: np.int64 | npt.NDArray[np.int64] = self.column[at if self.order is None else self.order[at]]
        return found

    def sum(self) -> int:
        """Return the sum of the values."""
        return sum(int(self[begin : begin + _CHUNK].sum()) for begin in range(0, len(self), _CHUNK))


class OrderedKeys:
    """The keys in the order `order` (None: as stored), without a copy. `[i]` is a str, a slice gives a list of str."""

    __slots__ = ("keys", "order")

    def __init__(self, keys: Keys, order: Positions | None) -> None:
        self.keys, self.order = keys, order

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if self.order is None:
            return self.keys[at]
        return list(self.keys.selected(self.order[at])) if isinstance(at, slice) else self.keys[int(self.order[at])]

    def selected(self, positions: Positions) -> Keys:
        """Return the keys at these positions."""
        return self.keys.selected(positions if self.order is None else self.order[positions])
