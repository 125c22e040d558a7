"""Datasets of torch and torchvision that a Loader reads: Subset and ConcatDataset of ours, ImageFolder without transforms."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headrace.datasets.open import open as open_dataset
from headrace.datasets.records.dataset import Dataset, joined
from headrace.datasets.records.keys import Keys
from headrace.datasets.sources.folders.listed_images import listed_dataset
from headrace.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["Data", "as_dataset"]

Data: TypeAlias = "Dataset | str | os.PathLike[str] | torch.utils.data.Dataset[Any]"


def as_dataset(data: Any) -> Dataset:
    """Return `data` as a Dataset: one of ours, a path or URL, or a dataset of torch or torchvision over such ones.

    Raises UsageError for an object that cannot be read natively, and what `headrace.open` raises.
    """
    if isinstance(data, Dataset):
        return data
    # What is not imported cannot be given. Subclasses may change what an index means.
    torch_data, vision = sys.modules.get("torch.utils.data"), sys.modules.get("torchvision.datasets")
    if torch_data is not None and type(data) is torch_data.Subset:
        return as_dataset(data.dataset).subset(data.indices)
    if torch_data is not None and type(data) is torch_data.ConcatDataset:
        return _concatenated([as_dataset(one) for one in data.datasets])
    if vision is not None and type(data) is vision.ImageFolder:
        return _of_image_folder(data, vision)
    if torch_data is not None and isinstance(data, torch_data.Dataset):
        raise UsageError(
            f"a Loader reads no {type(data).__module__}.{type(data).__name__}: its items are made by Python code",
            hint="give a path, headrace.open(path), torch's Subset or ConcatDataset of these, or an ImageFolder without "
            "transforms; or run the script as it is:  headrace run -- python train.py",
        )
    return open_dataset(data)


def _concatenated(datasets: Sequence[Dataset]) -> Dataset:
    """Return the union, in which labels stay as they are: ConcatDataset renumbers none."""
    classes = max((one.classes for one in datasets), key=len)
    other = next((one for one in datasets if one.classes != classes[: len(one.classes)]), None)
    if other is not None:
        raise UsageError(
            f"{other.root} has other classes than the first datasets of the ConcatDataset, which renumbers no label",
            hint="a + b of two headrace.Dataset matches their classes by name",
        )
    return joined([replace(one, classes=classes) for one in datasets])


def _of_image_folder(folder: Any, vision: Any) -> Dataset:
    """Return torchvision's ImageFolder as a list of its samples."""
    given = [name for name in ("transform", "target_transform", "transforms") if getattr(folder, name, None) is not None]
    if given:
        raise UsageError(
            f"the ImageFolder {folder.root} has a {given[0]}, which a Loader would not call",
            hint="ImageFolder(root) without transforms, and transform= of the Loader",
        )
    if folder.loader not in (vision.folder.default_loader, vision.folder.pil_loader):
        raise UsageError(f"the ImageFolder {folder.root} has a loader of its own", hint="ImageFolder(root): a Loader decodes")
    root = os.path.join(os.path.abspath(folder.root), "")  # noqa: PTH100, PTH118 (a text that ends in a slash)
    paths = (os.path.abspath(path) for path, _ in folder.samples)  # noqa: PTH100 (a million Path objects are slow)
    keys = Keys.of(path[len(root) :] if path.startswith(root) else path for path in paths)
    labels = np.array([label for _, label in folder.samples], dtype=np.int64)
    return listed_dataset(Path(root), Path(root), keys, labels, tuple(folder.classes))
