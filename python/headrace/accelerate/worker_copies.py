"""Copies of the script's objects that its worker processes would have: what runs here leaves the script's own untouched."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.accelerate.hf_datasets import is_rows_dataset
from headrace.accelerate.recognise import FolderDataset, Unsupported

__all__ = ["WorkerCopies", "as_workers_have_it"]

MOST_BYTES = 256 << 20
"""Larger arrays and tensors of a dataset are not copied."""


class WorkerCopies:
    """The folder datasets and the collate function of a loader, as its workers would see them.

    A worker has copies of the dataset, so a target transform that counts its calls never counts them in the script's own
    process. Without workers (`has_workers`) the script's own objects are called. Raise `Unsupported` if an object cannot be
    copied.
    """

    def __init__(self, folders: Sequence[FolderDataset], collate: Callable[[Any], Any], *, has_workers: bool) -> None:
        self.collate = _copied(collate, "collate_fn") if has_workers else collate
        self._datasets: dict[int, Any] = {}
        for folder in folders if has_workers else ():
            changed = copy.copy(folder.dataset)
            changed.target_transform = _copied(folder.target_transform, "target_transform")
            self._datasets[id(folder.dataset)] = changed

    def dataset(self, folder: FolderDataset) -> Any:
        """Return the dataset whose items a worker would make."""
        return self._datasets.get(id(folder.dataset), folder.dataset)


def _copied(thing: Any, name: str) -> Any:
    try:
        return copy.deepcopy(thing)
    except Exception as error:
        raise Unsupported(f"its {name} cannot be copied ({type(error).__name__}: {error})") from error


def as_workers_have_it(dataset: Any) -> Any:
    """Return a copy of any dataset that keeps what it is now, as a worker process does, also the function of `set_transform`.

    Copied are the dataset, the datasets that it holds, and the lists, dicts, sets, arrays, tensors and tables among their
    attributes, one level deep. All else is shared: transforms, and what lies deeper.
    """
    return _dataset_copy(dataset, {})


def _dataset_copy(dataset: Any, copies: dict[int, Any]) -> Any:
    made = copies[id(dataset)] = copy.copy(dataset)
    for name, value in list(getattr(made, "__dict__", {}).items()):
        made.__dict__[name] = _attribute_copy(value, copies)
    return made


def _attribute_copy(value: Any, copies: dict[int, Any]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    kind = type(value)
    if isinstance(value, torch.utils.data.Dataset) or is_rows_dataset(value):
        return _dataset_copy(value, copies)
    made = value
    if kind is list and value and isinstance(value[0], torch.utils.data.Dataset):  # of a ConcatDataset
        made = [_attribute_copy(one, copies) for one in value]
    elif kind in (list, dict, set, bytearray) or _is_table(kind) or (kind is np.ndarray and value.nbytes <= MOST_BYTES):
        made = value.copy()
    elif kind is torch.Tensor and value.device.type == "cpu" and value.nbytes <= MOST_BYTES and not value.requires_grad:
        made = value.clone()
    if made is not value:
        copies[id(value)] = made
    return made


def _is_table(kind: type) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and kind in (pandas.DataFrame, pandas.Series)
