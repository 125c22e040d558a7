"""The order that a sampler gives: any iterable of record numbers, or of lists of them, asked anew for each epoch.

A loader asks the sampler once an epoch, before the first batch, for all indices of this rank. So the number of batches is
known, ranks can compare theirs, and a resumed loader can compare what the sampler gives now with what was handed out.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.loading.order.arithmetic import Positions, draw_keys

__all__ = ["SampledOrder", "Sampler", "ask", "check_sampler"]

Sampler = Iterable[Any]

MOST_INDICES = 10_000_000
"""Refuse a sampler that gives more indices an epoch than this and 100 times the records: it would never end."""


class SampledOrder:
    """One rank's batches of one epoch, as a sampler gave them.

    indices: int64 [n], rows of the dataset's table. starts: int64 [batches + 1], where each batch begins in them, and the end.
    earlier: int64 [records], how often lower ranks have each record in this epoch. Default: None, never.
    """

    def __init__(self, epoch: int, indices: Positions, starts: Positions, earlier: Positions | None = None) -> None:
        self.epoch, self.indices, self.starts = epoch, indices, starts
        self._occurrences = _occurrences(indices) + (0 if earlier is None else earlier[indices])
        self._hashed = (0, hashlib.sha256())  # number of batches, and the hash of their indices

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def stand_ins(self) -> Positions:
        """The rows that may take the place of a bad record: those of the sampler."""
        return self.indices

    def batch(self, step: int) -> Positions:
        """Return the records of batch `step`, int64 [n]."""
        return self.indices[self.starts[step] : self.starts[step + 1]].copy()

    def draws(self, first: int, first_draw: int = 0) -> Iterator[tuple[Positions, npt.NDArray[np.uint64]]]:
        """Yield the records of the batches from step `first` on, and the keys of their random draws (`draw_keys`)."""
        for step in range(first, len(self)):
            own = slice(int(self.starts[step]), int(self.starts[step + 1]))
            records = self.indices[own].copy()
            yield records, draw_keys(records, self._occurrences[own], first_draw)

    def digest(self, steps: int) -> str:
        """Return a hash of the indices of the first `steps` batches and of their sizes."""
        done, hashed = self._hashed if self._hashed[0] <= steps else (0, hashlib.sha256())
        for step in range(done, steps):
            batch = self.batch(step)
            hashed.update(len(batch).to_bytes(8, "little") + batch.astype("<i8").tobytes())
        self._hashed = (steps, hashed)
        return hashed.hexdigest()[:16]


def check_sampler(sampler: object) -> None:
    """Raise UsageError for what is no sampler."""
    if not isinstance(sampler, Iterable) or isinstance(sampler, str | bytes):
        raise UsageError(
            f"sampler must be an iterable of record numbers, not {type(sampler).__name__}",
            hint="a list, an array, a sampler of torch, or an object with __iter__",
        )
    if isinstance(sampler, Iterator):
        raise UsageError(
            "sampler is an iterator, which gives the indices of one epoch only",
            hint="give a list of it, or an object whose __iter__ begins anew",
        )


def ask(sampler: Sampler, epoch: int, *, records: int, batch_size: int, drop_last: bool) -> SampledOrder:
    """Return the batches that the sampler gives for `epoch`. A sampler with `set_epoch` is told the epoch first.

    Numbers are cut into batches of `batch_size`; of lists, each is a batch. Raises UsageError for other elements, for a number
    outside the dataset, a list of more than `batch_size`, and for no batch at all.
    """
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    elements = iter(sampler)
    first = next(elements, None)
    if first is None:
        raise UsageError(f"the sampler gave no index for epoch {epoch}", hint="an iterator cannot be asked a second time")
    if isinstance(first, bool):
        raise UsageError("the sampler gave True and False, not record numbers", hint="a mask is for data.subset(mask)")
    most = 100 * records + MOST_INDICES
    if _is_number(first):
        indices = _numbers(islice(chain([first], elements), most))
        whole = len(indices) // batch_size if drop_last else -(-len(indices) // batch_size)
        starts = np.minimum(np.arange(whole + 1, dtype=np.int64) * batch_size, len(indices))
        if not whole:
            raise UsageError(
                f"the sampler gave {len(indices)} indices for epoch {epoch}, fewer than one batch of {batch_size}",
                hint="make batch_size smaller, or pass drop_last=False",
            )
    else:
        batches = [_batch(one, batch_size) for one in islice(chain([first], elements), most)]
        indices = np.concatenate(batches)
        starts = np.concatenate([[0], np.cumsum([len(one) for one in batches])]).astype(np.int64)
    if len(indices) >= most:
        raise UsageError(f"the sampler gave {most:,} indices for one epoch, and did not end", hint="end its __iter__ somewhere")
    outside = np.flatnonzero((indices < 0) | (indices >= records))
    if len(outside):
        raise UsageError(
            f"the sampler gave the index {indices[outside[0]]}, and the dataset has {records:,} records",
            hint="indices count from 0: the rows of loader.dataset",
        )
    return SampledOrder(epoch, indices[: starts[-1]], starts)


def _is_number(element: Any) -> bool:
    try:
        operator.index(element)
    except TypeError:
        return False
    return not isinstance(element, Sized) or not _length(element)


def _length(element: Sized) -> int:
    try:
        return len(element)
    except TypeError:  # a tensor of one number
        return 0


def _numbers(elements: Iterable[Any]) -> Positions:
    """Return these numbers, int64 [n]. Raise UsageError for what is no number."""
    try:
        return np.fromiter(map(operator.index, elements), dtype=np.int64)
    except TypeError as error:
        raise UsageError(f"the sampler gave an index that is no whole number: {error}", hint="record numbers") from error


def _batch(element: Any, batch_size: int) -> Positions:
    if not isinstance(element, Iterable) or isinstance(element, str | bytes):
        raise UsageError(
            f"the sampler gave {element!r:.60}: a number or a list of numbers is needed", hint="each list is one batch"
        )
    numbers = _numbers(element)
    if not 0 < len(numbers) <= batch_size:
        raise UsageError(
            f"the sampler gave a batch of {len(numbers)} records, and batch_size is {batch_size}",
            hint="batch_size is the most that a list of the sampler may hold",
        )
    return numbers


def _occurrences(indices: Positions) -> Positions:
    """Return how often each index came before in `indices`, int64."""
    order = np.argsort(indices, kind="stable")
    values = indices[order]
    group = np.concatenate([[True], values[1:] != values[:-1]])
    place = np.arange(len(values))
    found = np.empty(len(values), dtype=np.int64)
    found[order] = place - np.maximum.accumulate(np.where(group, place, 0))
    return found
