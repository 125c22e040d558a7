"""The dataset of a list of image files with labels, whatever the format of the list (`lst`, `table`)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.records.file_paths import FilesBelow
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.table import RecordTable
from headrace.errors import SourceError

__all__ = ["check_first_image", "listed_dataset"]


def check_first_image(path: Path, folder: Path, names: Keys) -> None:
    """Raise SourceError if the list at `path` is empty or its first image is not in `folder`."""
    if not names:
        raise SourceError(f"{path} lists no images")
    if not os.path.exists(folder / names[0]):  # noqa: PTH110 (`Path.exists` raises for a name that is too long)
        raise SourceError(
            f"{folder / names[0]}, the first image that {path} lists, does not exist",
            hint="put the list beside its images, or name their folder:  --root FOLDER; headrace.open(…, root=FOLDER)",
        )


def listed_dataset(path: Path, folder: Path, names: Keys, labels: npt.NDArray[np.int64], classes: tuple[str, ...]) -> Dataset:
    """Return the dataset of the images `names` in `folder`, which the list at `path` names."""
    sizes = np.full(len(names), -1, dtype=np.int64)
    table = RecordTable(
        files=FilesBelow(os.path.join(folder, ""), names),  # noqa: PTH118 (a text that ends in a slash)
        file=np.arange(len(names), dtype=np.int32),
        offset=np.zeros(len(names), dtype=np.int64),
        size=sizes,
        label=labels,
        keys=names,
    )
    return Dataset(str(path), "lst", table, classes, fingerprint(names, sizes, labels))
