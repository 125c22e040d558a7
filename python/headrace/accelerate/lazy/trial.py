"""Measure on the first batches whether lazy images save CPU time, and decide for the whole loader.

The items are equal either way, so a process may make some items with lazy images and others without. At first each process
makes a few ordinary items at the beginning of a batch. Where lazy items clearly cost less, that is enough. Otherwise whole
batches are made in turn, and their collate function counts too, and so does what receiving such a batch costs the training
process. The processes of a loader add what they measure to memory that they share. The first process that knows enough decides
for all, and for later epochs.
"""

from __future__ import annotations

import enum
import multiprocessing.sharedctypes
from collections.abc import Callable, Iterable
from typing import Any

from headrace.accelerate.lazy.native_work import WORK

__all__ = ["ENOUGH_ITEMS", "FEWEST_TO_DIVIDE", "Trial", "TrialState"]

ENOUGH_ITEMS = 24
"""Decide once this many lazy and this many ordinary items are measured, if lazy items clearly save CPU time (`CLEAR`)."""

MOST_ITEMS = 96
"""Decide in any case once this many lazy and this many ordinary items are measured."""

FEWEST_TO_DIVIDE = 16
"""Smaller batches are made with lazy images or without, not half and half."""

CLEAR = 0.8
"""Lazy items are clearly faster if they take less than this share of the CPU time of ordinary ones."""

CLEAR_SAVING_S = 0.0005
"""Decide by items alone only if a lazy item saves at least this CPU time in seconds.

Smaller images save less than receiving their batches may cost the training process, which items alone do not tell. JPEGs of 32
pixels were loaded at 0.87 of the plain rate.
"""

WORTHWHILE = 0.95
"""Use lazy items if they take less than this share of the CPU time of ordinary ones.

The margin covers the error of so few items, and the first use of a batch's memory, which is not measured.
"""

LONGEST_TEXT = 4096
"""Size in bytes of the buffer in which workers pass log lines to the training process. What does not fit is lost."""

_FIELDS = 4


class TrialState(enum.IntEnum):
    """Whether the images of one loader are opened lazily: still being measured, yes, or no for one of two reasons."""

    MEASURING = 0
    LAZY = 1
    NOT_FASTER = 2
    NO_JPEG = 3


class Trial:
    """Measured CPU times of lazy and ordinary items of one loader, in memory that its processes share.

    `workers`: number of processes that make items; 0: the main process does.
    """

    def __init__(self, workers: int) -> None:
        self._rows = max(1, workers)
        self._state = multiprocessing.sharedctypes.RawValue("i", TrialState.MEASURING)
        self._values = multiprocessing.sharedctypes.RawArray("d", self._rows * _FIELDS)
        self._batches = multiprocessing.sharedctypes.RawArray("i", self._rows)
        self._received = multiprocessing.sharedctypes.RawArray("d", _FIELDS)
        self._divided = multiprocessing.sharedctypes.RawArray("d", self._rows * _FIELDS)
        self._work = multiprocessing.sharedctypes.RawArray("b", len(WORK))
        self._lines = multiprocessing.sharedctypes.RawArray("c", LONGEST_TEXT)

    @property
    def state(self) -> TrialState:
        """The decision so far: `MEASURING`, `LAZY`, or why images are opened as usual (`NOT_FASTER`, `NO_JPEG`)."""
        return TrialState(self._state.value)

    def ordinary_items(self, items: int) -> int:
        """Return how many of the next batch's `items` to make without lazy images first. 0: make the batch in one piece."""
        left = ENOUGH_ITEMS - _sums(self._divided)[1]
        if left <= 0 or items < FEWEST_TO_DIVIDE:
            return 0
        return min(items // 2, -(-ENOUGH_ITEMS // self._rows))

    def next_is_lazy(self) -> bool:
        """Return whether to make the next measured batch lazily: the kind of which fewer items have been measured.

        Workers of short epochs make two or three batches each, and the next epoch's go on from there.
        """
        _, ordinary, _, lazy = _sums(self._values)
        return lazy <= ordinary

    def add(self, worker: int, *, lazy: bool, items: int, cpu_s: float) -> TrialState | None:
        """Add the CPU time of a batch made in one piece. Return the decision if this batch settled it, else None."""
        self._batches[worker % self._rows] += 1
        return self._add(self._values, worker, [0.0, 0, cpu_s, items] if lazy else [cpu_s, items, 0.0, 0], self._decision)

    def add_received(self, *, lazy: bool, cpu_s: float, batches: int = 1) -> None:
        """Add the CPU time, in seconds, of a batch in the training process. `batches`: 0 for more time of the same batch."""
        at = 2 if lazy else 0
        self._received[at] += cpu_s
        self._received[at + 1] += batches

    def add_divided(self, worker: int, ordinary: tuple[float, int], lazy: tuple[float, int]) -> TrialState | None:
        """Add a batch made in two pieces, ordinary items first: (CPU time in seconds, number of items) of each piece.

        Return the decision if this batch settled it, else None. It can only be that lazy items clearly cost less: the collate
        function counts with them alone.
        """
        return self._add(self._divided, worker, [*ordinary, *lazy], self._early_decision)

    def _add(self, values: Any, worker: int, measured: list[float], decision: Callable[[], TrialState]) -> TrialState | None:
        at = worker % self._rows * _FIELDS
        for field, value in enumerate(measured):
            values[at + field] += value
        if self.state is not TrialState.MEASURING:
            return None
        state = decision()
        self._state.value = state
        return None if state is TrialState.MEASURING else state

    def give_up(self, state: TrialState) -> TrialState:
        """Set the decision without further measurements, and return it."""
        self._state.value = state
        return state

    def note(self, work: Iterable[str]) -> None:
        """Record that a process has done these kinds of work (names in `native_work.WORK`) natively."""
        for name in work:
            self._work[WORK.index(name)] = 1

    def work(self) -> set[str]:
        """Return the kinds of work (names in `native_work.WORK`) that any process has done natively."""
        return {name for name, noted in zip(WORK, self._work, strict=True) if noted}

    def hand_over(self, line: str) -> None:
        """Pass a log line of a worker to the training process, which prints it. What does not fit in the buffer is lost."""
        lines = self._lines.value
        self._lines.value = (lines + line.encode() + b"\n")[: LONGEST_TEXT - 1]

    def lines(self) -> list[str]:
        """Return the lines of headrace's log that workers have passed to the training process since the last call."""
        lines: bytes = self._lines.value
        if lines:
            self._lines.value = b""
        return lines.decode(errors="replace").splitlines()

    def measured(self) -> tuple[float, int] | None:
        """Return the CPU time of a lazy item as a share of an ordinary item's, and how many items of each kind were measured.

        None if too few were measured.
        """
        values = self._values if _fewest(self._values) >= ENOUGH_ITEMS else self._divided
        fewest = int(_fewest(values))
        return (self._share_of(values), fewest) if fewest >= ENOUGH_ITEMS else None

    def cpu_share(self) -> float:
        """Return the CPU time of a lazy item as a share of an ordinary item's. NaN before both are measured."""
        return self._share_of(self._values)

    def _share_of(self, values: Any) -> float:
        """Return the CPU time of a lazy item over that of an ordinary item, in all processes; NaN until both are measured."""
        plain_s, plain_items, lazy_s, lazy_items = _sums(values)
        if not plain_s or not lazy_items:
            return float("nan")
        plain_received_s, lazy_received_s = self._received_s()
        return (lazy_s / lazy_items + lazy_received_s) / (plain_s / plain_items + plain_received_s)

    def _received_s(self) -> tuple[float, float]:
        """Return the CPU seconds of an ordinary and of a lazy item in the training process; zeros until both are measured."""
        plain_s, plain_batches, lazy_s, lazy_batches = self._received
        items, batches = sum(_sums(self._values)[1::2]), sum(self._batches)
        if not (plain_batches and lazy_batches and batches):
            return 0.0, 0.0
        return plain_s / plain_batches * batches / items, lazy_s / lazy_batches * batches / items

    def _early_decision(self) -> TrialState:
        if _fewest(self._divided) < ENOUGH_ITEMS:
            return TrialState.MEASURING
        plain_s, plain_items, lazy_s, lazy_items = _sums(self._divided)
        saved_s = plain_s / plain_items - lazy_s / lazy_items
        is_clear = saved_s >= CLEAR_SAVING_S and self._share_of(self._divided) < CLEAR
        return TrialState.LAZY if is_clear else TrialState.MEASURING

    def _decision(self) -> TrialState:
        fewest, share = _fewest(self._values), self._share_of(self._values)
        if fewest >= ENOUGH_ITEMS and share < CLEAR:
            return TrialState.LAZY
        if fewest < MOST_ITEMS:
            return TrialState.MEASURING
        return TrialState.LAZY if share < WORTHWHILE else TrialState.NOT_FASTER


def _sums(values: Any) -> list[float]:
    """Return CPU seconds and number of ordinary items, then of lazy items, summed over all processes."""
    return [sum(values[field::_FIELDS]) for field in range(_FIELDS)]


def _fewest(values: Any) -> float:
    _, plain_items, _, lazy_items = _sums(values)
    return min(plain_items, lazy_items)
