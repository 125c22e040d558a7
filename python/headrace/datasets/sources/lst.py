"""Lists of im2rec (`.lst`): lines of `NUMBER <tab> LABEL <tab> PATH`, paths relative to a folder of images."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.keys import Keys
from headrace.datasets.sources.archives.containers import MAX_CLASSES, class_count
from headrace.datasets.sources.folders.folder import OnListed, counted
from headrace.datasets.sources.folders.listed_images import check_first_image, listed_dataset
from headrace.errors import FormatError
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.printable import value_text
from headrace.system.text.size_limits import lines_of

__all__ = ["open_lst"]


def open_lst(path: Path, root: Path | None = None, on_listed: OnListed | None = None) -> Dataset:
    """Open a list of images. Its paths are relative to `root`, by default the folder of the list.

    on_listed: called with the number of lines just read. Default: None.
    Only the first image is checked for existence; reading reports other missing ones. Raises FormatError for a line of another
    form, SourceError for an empty list or a missing first image.
    """
    folder = root if root is not None else path.parent
    labels = array("q")
    keys = Keys.of(counted(_names(path, labels), on_listed))
    check_first_image(path, folder, keys)
    column = np.frombuffer(labels, dtype=np.int64)
    return listed_dataset(path, folder, keys, column, tuple(map(str, range(class_count(column)))))


def _names(path: Path, labels: array[int]) -> Iterator[str]:
    """Yield the path of each line, and append its label to `labels`."""
    with open(path, encoding="utf-8", errors="surrogateescape", opener=regular_opener) as file:
        for number, line in enumerate(lines_of(file), 1):
            if line.strip():
                label, name = _parsed(path, number, line.rstrip("\r\n").split("\t"))
                labels.append(label)
                yield name


def _parsed(path: Path, number: int, fields: list[str]) -> tuple[int, str]:
    if len(fields) < 3:
        raise FormatError(f"{path}, line {number}: number, label and path are expected, with tabs between")
    if len(fields) > 3:
        raise FormatError(f"{path}, line {number} has {len(fields) - 2} labels; headrace packs one class label an image")
    if "\0" in fields[2]:
        raise FormatError(f"{path}, line {number}: the path holds a NUL byte")
    try:
        label = float(fields[1])
        if label != int(label) or not 0 <= label < MAX_CLASSES:
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path}, line {number}: label {value_text(fields[1])} is not a whole number from 0") from error
    return int(label), fields[2]
