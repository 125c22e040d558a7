"""The comparison of lazy with ordinary items during the first batches: CPU time an item, on the script's own data.

The items are equal either way, so a process may make some batches with lazy images and others without. The processes of a
loader add what they measure to memory that they share. The first process that knows enough decides for all, and for later
epochs.
"""

from __future__ import annotations

import enum
import multiprocessing.sharedctypes
from typing import Any

__all__ = ["ENOUGH_ITEMS", "Trial", "TrialState"]

ENOUGH_ITEMS = 24
"""Decide when so many items of each kind have been measured, and one kind clearly costs less."""

MOST_ITEMS = 96
"""Decide at the latest when so many items of each kind have been measured."""

CLEAR = 0.8
"""Lazy items are clearly faster below this share of the ordinary CPU time."""

WORTHWHILE = 0.98
"""Keep lazy items if they take less than this share of the ordinary CPU time."""

_FIELDS = 4


class TrialState(enum.IntEnum):
    """What is known about a loader."""

    MEASURING = 0
    LAZY = 1
    NOT_FASTER = 2
    NO_JPEG = 3


class Trial:
    """What the processes of one loader have measured, in shared memory. It can be passed to a process that is being started.

    `workers`: number of processes that make items; 0: the main process does.
    """

    def __init__(self, workers: int) -> None:
        self._rows = max(1, workers)
        self._state = multiprocessing.sharedctypes.RawValue("i", TrialState.MEASURING)
        self._values = multiprocessing.sharedctypes.RawArray("d", self._rows * _FIELDS)

    @property
    def state(self) -> TrialState:
        """The decision so far."""
        return TrialState(self._state.value)

    def add(self, worker: int, *, lazy: bool, items: int, cpu_s: float) -> TrialState | None:
        """Add a measured batch of a process. Return the decision if this batch made it, else None."""
        at = worker % self._rows * _FIELDS + (2 if lazy else 0)
        self._values[at] += cpu_s
        self._values[at + 1] += items
        if self.state is not TrialState.MEASURING:
            return None
        state = self._decision()
        self._state.value = state
        return None if state is TrialState.MEASURING else state

    def give_up(self, state: TrialState) -> TrialState:
        """Record and return a decision that needs no measurement."""
        self._state.value = state
        return state

    def cpu_share(self) -> float:
        """Return the CPU time of a lazy item as a share of an ordinary one's. Not a number before both are measured."""
        plain_s, plain_items, lazy_s, lazy_items = self._sums()
        if not plain_s or not lazy_items:
            return float("nan")
        return (lazy_s / lazy_items) / (plain_s / plain_items)

    def _sums(self) -> tuple[float, ...]:
        return tuple(sum(self._values[field::_FIELDS]) for field in range(_FIELDS))

    def _decision(self) -> TrialState:
        _, plain_items, _, lazy_items = self._sums()
        share: Any = self.cpu_share()
        fewest = min(plain_items, lazy_items)
        if fewest >= ENOUGH_ITEMS and share < CLEAR:
            return TrialState.LAZY
        if fewest < MOST_ITEMS:
            return TrialState.MEASURING
        return TrialState.LAZY if share < WORTHWHILE else TrialState.NOT_FASTER
