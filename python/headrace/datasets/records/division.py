"""Which records a part of a dataset holds: by indices, by a mask, by classes, or a random share of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from headrace._native import order_numbers
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.packed_keys import packed_keys
from headrace.datasets.records.table import Tabled
from headrace.errors import RecordIndexError, UsageError
from headrace.system.text.utf8 import utf8_name

__all__ = ["chosen_rows", "class_labels", "key_numbers", "relabeled", "split_rows", "split_salt"]

Rows = npt.NDArray[np.int64]

_EXAMPLES = "indices such as [0, 5, 7] or range(100), or a mask of one bool a record"


def chosen_rows(which: Any, records: int, root: str) -> Rows:
    """Return the rows that `which` chooses of `records`: a slice, indices (negative ones count from the end), or a mask.

    Raises RecordIndexError for an index outside the dataset, UsageError for what is neither.
    """
    if isinstance(which, slice):
        return np.arange(records, dtype=np.int64)[which]
    if isinstance(which, range):
        which = np.arange(which.start, which.stop, which.step, dtype=np.int64)
    elif not hasattr(which, "__array__") and isinstance(which, Iterable) and not isinstance(which, str | bytes | Sequence):
        which = list(which)
    try:
        found = np.asarray(which)
    except (ValueError, TypeError, RuntimeError):  # a ragged list, or a tensor that is not on the CPU
        found = np.asarray(None)
    if found.ndim == 1 and not len(found):
        return np.empty(0, dtype=np.int64)
    if found.ndim != 1 or found.dtype.kind not in "biu":
        raise UsageError(f"a part of a dataset is chosen by {_EXAMPLES}, not by {_briefly(which)}")
    if found.dtype.kind == "b":
        if len(found) != records:
            raise UsageError(
                f"the mask has {len(found):,} entries, and {root} has {records:,} records",
                hint="give one bool for each record, or the indices",
            )
        return np.flatnonzero(found).astype(np.int64)
    outside = np.flatnonzero((found < -records) | (found >= records))
    if len(outside):
        raise RecordIndexError(f"{root} has {records} records: there is no record {found[outside[0]]}")
    rows = found.astype(np.int64)
    return np.where(rows < 0, rows + records, rows)


def class_labels(classes: Sequence[str], wanted: Iterable[str | SupportsIndex], root: str) -> list[int]:
    """Return the label of each class in `wanted`, given by name or label. Raise UsageError for one that does not exist."""
    if isinstance(wanted, str):
        raise UsageError(f"classes is a list of class names, not {wanted!r}", hint=f"classes=[{wanted!r}]")
    labels = []
    for one in wanted:
        name = one if not isinstance(one, str) or one in classes else utf8_name(one)
        if isinstance(name, str) and name in classes:
            labels.append(classes.index(name))
        elif not isinstance(name, str) and 0 <= name.__index__() < len(classes):
            labels.append(name.__index__())
        else:
            known = ", ".join(classes[:5]) + (" …" if len(classes) > 5 else "")
            raise UsageError(f"no class {one!r} in {root}; it has: {known or 'none'}")
    if len(set(labels)) < len(labels):
        raise UsageError("classes names a class twice")
    return labels


def relabeled(
    classes: Sequence[str], labels: npt.NDArray[np.int64], wanted: Iterable[str], root: str
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return classes and labels of a dataset with the classes `wanted` only, numbered in this order; label -1: left out."""
    chosen = class_labels(classes, wanted, root)
    new = np.full(len(classes) + 1, -1, dtype=np.int64)  # the last entry is for label -1
    new[chosen] = np.arange(len(chosen))
    return tuple(classes[label] for label in chosen), new[labels]


def split_rows(dataset: Tabled, ratio: float, seed: int, *, stratified: bool) -> tuple[Rows, Rows]:
    """Return the rows of a random share `ratio` of the records, and the others, both ascending.

    Records are chosen as `headrace pack --train-ratio RATIO --seed SEED` chooses them. stratified: the share of each class is
    `ratio`, but for rounding.
    """
    if not isinstance(ratio, float | int) or not 0 < ratio < 1:
        raise UsageError(
            f"split takes the share of the first part, between 0 and 1, not {ratio!r}",
            hint="0.9 gives nine records in ten and the rest, which splits again for a third part; data[:100] takes a number",
        )
    keys = dataset.table.keys if isinstance(dataset.table.keys, Keys) else Keys.of(dataset.table.keys)
    order = np.argsort(key_numbers(packed_keys(dataset.kind, keys), split_salt(seed)), kind="stable").astype(np.int64)
    if stratified:
        order = _by_class(order, dataset.table.label, ratio)
    first = round(len(order) * ratio)
    return np.sort(order[:first]), np.sort(order[first:])


def split_salt(seed: int) -> bytes:
    """Return what makes the random choice of one seed (0 to 2**63 - 1) differ from that of another."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise UsageError(f"seed must be a whole number from 0, below 2**63, not {seed!r}", hint="for example seed=0")
    return b"split" if seed == 0 else b"split " + seed.to_bytes(8, "little")


def key_numbers(keys: Keys, salt: bytes) -> npt.NDArray[np.uint64]:
    """Return a number for each key, uint64 [n], that depends on key and salt (at most 16 bytes) only.

    Sorting by it shuffles. NumPy's generators may change with its version.
    """
    numbers, at = np.empty(len(keys), dtype=np.uint64), 0
    for blob, start in keys.chunks():
        drawn = np.frombuffer(order_numbers(blob, start, salt.ljust(16, b"\0")), dtype=np.uint64)
        numbers[at : at + len(drawn)] = drawn
        at += len(drawn)
    return numbers


def _by_class(order: Rows, labels: npt.NDArray[np.int64], ratio: float) -> Rows:
    """Return the rows of `order`, those of the first part first: of each class its share, by the largest remainders."""
    grouped = order[np.argsort(labels[order], kind="stable")]  # by class, each in random order
    counts = np.unique(labels, return_counts=True)[1]
    wanted = counts * ratio
    share = np.floor(wanted).astype(np.int64)
    missing = round(len(order) * ratio) - int(share.sum())
    share[np.argsort(share - wanted, kind="stable")[:missing]] += 1
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)  # among those of its class
    is_first = place < np.repeat(share, counts)
    return np.concatenate([grouped[is_first], grouped[~is_first]])


def _briefly(which: Any) -> str:
    text = repr(which)
    return text if len(text) <= 60 else f"{type(which).__name__} {text[:50]} …"
