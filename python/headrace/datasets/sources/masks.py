"""The masks of a dataset: sidecar files in its tar archives, or files of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.table import RecordTable
from headrace.datasets.sources.archives.tar import TarMember, samples
from headrace.datasets.sources.folders.folder import IMAGE_EXTENSIONS, walked
from headrace.errors import SourceError, UsageError

__all__ = ["with_masks"]


def with_masks(dataset: Dataset, mask: str | os.PathLike[str]) -> tuple[Dataset, RecordTable]:
    """Return the dataset, and a table with the location of each record's mask.

    mask: the ending of the masks in a tar or packed dataset ("mask.png" for `KEY.mask.png`), or a folder that holds `KEY.png`
        for each image `KEY.jpg` of any dataset.

    In an archive without labels, masks were records; they are removed from the dataset. Raises SourceError that names a record
    without a mask, UsageError if the dataset cannot have masks.
    """
    if dataset.stream is not None:
        raise UsageError(f"{dataset.root} is a stream; masks are not offered for streams", hint="use File mode")
    if Path(mask).is_dir():
        return dataset, _in_folder(dataset, Path(mask).absolute())
    if dataset.kind not in ("tar", "shards") or dataset.fetcher is not None:
        raise UsageError(
            f"mask: {str(mask)!r} is no folder, and {dataset.root} is no local tar dataset whose members could be masks",
            hint="give the folder that holds KEY.png for each image KEY.jpg",
        )
    return _in_archives(dataset, str(mask).lower().removeprefix("."))


def _in_folder(dataset: Dataset, folder: Path) -> RecordTable:
    keys = dataset.table.keys
    names = [f"{_stem(key)}.png" for key in keys]
    prefix_length = len(os.path.join(folder, ""))  # noqa: PTH118 (as below: a million Path objects are slow)
    existing = set[str]()
    for parent, files_here in walked(folder):
        existing.update(os.path.join(parent, file)[prefix_length:] for file in files_here)  # noqa: PTH118
    _refuse_missing(dataset, [key for key, name in zip(keys, names, strict=True) if name not in existing], f"in {folder}")
    count = len(keys)
    whole = np.full(count, -1, dtype=np.int64)
    files = tuple(str(folder / name) for name in names)
    return _table(files, np.arange(count, dtype=np.int32), np.zeros(count, dtype=np.int64), whole, dataset)


def _stem(key: str) -> str:
    """Return a key without an image's extension; keys of packed datasets have none."""
    stem, dot, end = key.rpartition(".")
    return stem if f"{dot}{end}".lower() in IMAGE_EXTENSIONS else key


def _in_archives(dataset: Dataset, ending: str) -> tuple[Dataset, RecordTable]:
    table = dataset.table
    found: dict[tuple[int, int], TarMember] = {}  # (file, offset of a member) -> the mask of its sample
    for number, path in enumerate(table.files):
        for _, parts in samples(Path(path)):
            mask = next((part for end, part in parts if end == ending), None)
            if mask is not None:
                found.update({(number, part.offset): mask for _, part in parts})
    places = list(zip(table.file.tolist(), table.offset.tolist(), strict=True))
    masks = [found.get(place) for place in places]
    images = [
        row for row, (place, mask) in enumerate(zip(places, masks, strict=True)) if mask is None or mask.offset != place[1]
    ]
    if not images:
        raise SourceError(
            f"all images of {dataset.root} end in {ending!r}: as masks they leave no image", hint="give the masks' ending"
        )
    image_masks = [(table.file[row], mask) for row in images if (mask := masks[row]) is not None]
    if len(image_masks) < len(images):
        without = [table.keys[row] for row in images if masks[row] is None]
        _refuse_missing(dataset, without, f"that ends in {ending!r} beside them")
    dataset = dataset if len(images) == len(table) else dataset.subset(images)
    return dataset, _table(
        table.files,
        np.array([file for file, _ in image_masks], dtype=np.int32),
        np.array([mask.offset for _, mask in image_masks], dtype=np.int64),
        np.array([mask.size for _, mask in image_masks], dtype=np.int64),
        dataset,
    )


def _refuse_missing(dataset: Dataset, keys: Sequence[str], where: str) -> None:
    if keys:
        raise SourceError(
            f"{len(keys)} of {len(dataset)} records of {dataset.root} have no mask {where}; the first is {keys[0]!r}",
            hint="add a mask for each image, or take those images out of the dataset",
        )


def _table(
    files: Sequence[str],
    file: npt.NDArray[np.int32],
    offset: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    dataset: Dataset,
) -> RecordTable:
    return RecordTable(files=files, file=file, offset=offset, size=size, label=dataset.table.label, keys=dataset.table.keys)
