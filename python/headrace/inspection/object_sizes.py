"""The sizes of the objects that an object store would hold: the image files of a folder, or the shards and containers.

A request to an object store costs a wait of its own, whatever the object's size. Objects below 1 MiB are paid for in waits and
requests; objects above 128 MiB divide badly over hosts and readers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.system.text.sizes import count_text, percent_text, size_text

__all__ = ["ObjectSizes", "SizeBin", "object_sizes"]

SMALLEST, LARGEST = 1 << 20, 128 << 20
"""Advise against objects outside these sizes: the range of file sizes that AWS's articles on input for SageMaker name."""

SAMPLE = 10_000
"""Read the sizes of at most this many files: each takes one request on a network file system."""

NOTICEABLE = 0.05
"""Say nothing while a smaller share of the objects lies outside the range, such as the last shard of a dataset."""


@dataclass(frozen=True, slots=True)
class SizeBin:
    """The number of objects of at least `from_bytes` and less than `below_bytes`."""

    from_bytes: int
    below_bytes: int
    objects: int


@dataclass(frozen=True, slots=True)
class ObjectSizes:
    """The sizes of a dataset's objects. below_share, above_share: share of the sampled objects below 1 MiB, above 128 MiB.

    remark: what to do about objects outside the range; None where there is nothing to do.
    """

    objects: int
    sampled: int
    median_bytes: float
    below_share: float
    above_share: float
    histogram: tuple[SizeBin, ...]
    remark: str | None


def object_sizes(dataset: Dataset) -> ObjectSizes | None:
    """Return the sizes of the files or shards that hold a dataset's images; None where no size is known.

    Example: `object_sizes(headrace.open("photos")).remark`.
    """
    used = np.unique(dataset.table.file)
    chosen = used[np.unique(np.linspace(0, len(used) - 1, min(SAMPLE, len(used))).astype(np.int64))] if len(used) else used
    sizes = _remote_sizes(dataset, chosen) if dataset.fetcher is not None else _file_sizes(dataset, chosen)
    if not len(sizes):
        return None
    below, above = float((sizes < SMALLEST).mean()), float((sizes > LARGEST).mean())
    return ObjectSizes(
        objects=len(used),
        sampled=len(sizes),
        median_bytes=float(np.median(sizes)),
        below_share=below,
        above_share=above,
        histogram=_histogram(sizes),
        remark=_remark(len(used), float(sizes.mean()) * len(used), below, above),
    )


def _file_sizes(dataset: Dataset, chosen: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    found = []
    for number in chosen:
        try:
            found.append(Path(dataset.table.files[number]).stat().st_size)
        except OSError:  # reported as unreadable, if the sample of images meets it
            continue
    return np.array(found, dtype=np.int64)


def _remote_sizes(dataset: Dataset, chosen: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return where the last record of each object ends: its size but for a few bytes. The objects are not on local disk."""
    table = dataset.table
    ends = np.zeros(len(table.files), dtype=np.int64)
    np.maximum.at(ends, table.file, table.offset + np.maximum(table.size, 0))
    return ends[chosen]


def _histogram(sizes: npt.NDArray[np.int64]) -> tuple[SizeBin, ...]:
    """Return counts by powers of four, from the smallest to the largest that occur."""
    exponents = np.maximum(0, np.floor(np.log2(np.maximum(sizes, 1)) / 2)).astype(np.int64)
    first, last = int(exponents.min()), int(exponents.max())
    counts = np.bincount(exponents - first, minlength=last - first + 1)
    return tuple(SizeBin(4 ** (first + at) if first + at else 0, 4 ** (first + at + 1), int(n)) for at, n in enumerate(counts))


def _remark(objects: int, total: float, below: float, above: float) -> str | None:
    shards = max(1, math.ceil(total / LARGEST))
    if below > NOTICEABLE and objects > shards:
        return (
            f"{percent_text(below)} of {count_text(objects, 'object')} are smaller than 1 MiB: from an object store each "
            f"of them is a request with a wait of its own in every epoch. headrace pack makes {count_text(shards, 'shard')} "
            f"of up to {size_text(LARGEST)} of them."
        )
    if above > NOTICEABLE:
        return (
            f"{percent_text(above)} of {count_text(objects, 'object')} are larger than {size_text(LARGEST)}: hosts and readers "
            f"divide whole objects, so some wait for others. headrace pack makes {count_text(shards, 'shard')} of them."
        )
    return None
