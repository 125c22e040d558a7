"""Labels of a dataset by the classes of another one, and where labels are looked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.errors import SourceError

__all__ = ["labelled_by", "labels_looked_for"]

_LOOKED_FOR = {
    "tar": "labels are looked for in KEY.cls and KEY.json (label, cls or class) beside KEY.jpg, where KEY ends at the name's "
    "first dot; in a tar with neither, in the folder of each image",
    "folder": "labels are names of folders: FOLDER/CLASS/image.jpg; or open a list (.csv, .lst, .parquet) of paths and labels",
}


def labelled_by(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return the dataset with `classes` for its own, and labels that are indices into them.

    Raises SourceError for a class that is not among them, and for no labels at all. Images without a label stay so.
    """
    if not dataset.classes:
        raise SourceError(f"{dataset.root} has no labels", hint=labels_looked_for(dataset))
    label = {name: number for number, name in enumerate(classes)}
    if len(label) < len(classes):
        raise SourceError(
            f"{dataset.root} cannot be labelled by the training classes: two of these have one name",
            hint="give data with the same classes in the same order",
        )
    surplus = [name for name in dataset.classes if name not in label]
    if surplus:
        names = ", ".join(surplus[:5]) + (" …" if len(surplus) > 5 else "")
        raise SourceError(
            f"{dataset.root} has classes that the training data lacks: {names}",
            hint="use the same class folders; those that lack here may be missing or empty",
        )
    new = np.array([*(label[name] for name in dataset.classes), -1], dtype=np.int64)  # the last entry is for label -1
    table = replace(dataset.table, label=new[dataset.table.label])
    mark = fingerprint(table.keys, table.size if table.file_size is None else table.file_size, table.label)
    return replace(dataset, table=table, classes=classes, fingerprint=mark)


def labels_looked_for(dataset: Dataset) -> str | None:
    """Return where labels of a dataset of this kind are looked for, if it has none."""
    return None if dataset.classes else _LOOKED_FOR.get(dataset.kind)
