"""Where datasets come from: one file for each kind of source; `open_dataset` tells them apart."""

from __future__ import annotations

import os

from headrace.records import Dataset, existing
from headrace.sources.folder import open_folder
from headrace.sources.shards import is_packed, open_shards

__all__ = ["open_dataset"]


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Opens the dataset at `path`: an image folder (`root/CLASS/*.jpg`) or a packed dataset (`headrace pack`).

    Raises SourceError when there is nothing that can be read, with what was found instead, FormatError when a packed
    dataset contradicts itself.
    """
    found = existing(path)
    if is_packed(found):
        return open_shards(found)
    return open_folder(found)
