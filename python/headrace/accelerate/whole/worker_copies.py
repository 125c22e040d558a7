"""Copies of folder datasets as worker processes have them, unaffected by later changes in the training loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script_code.deep_copies import DeepCopies, NotKept
from headrace.accelerate.whole.folders import FolderDataset

__all__ = ["WorkerCopies"]


class WorkerCopies:
    """Copies of a loader's folder datasets, made when a pass begins.

    `samples`: for each dataset its samples when the pass begins. Without workers (`has_workers`) the script's own datasets are
    asked. Raise `Unsupported` if a transform cannot be copied.
    """

    def __init__(self, folders: Sequence[FolderDataset], samples: Sequence[list[Any]], *, has_workers: bool) -> None:
        self._datasets: dict[int, Any] = {}
        for folder, own in zip(folders, samples, strict=True) if has_workers else ():
            made = copy.copy(folder.dataset)
            made.transform = _copied(folder.dataset.transform)
            holder = made
            if hasattr(made, "reader"):  # timm's datasets
                holder = made.reader = copy.copy(made.reader)
            holder.samples = own
            self._datasets[id(folder.dataset)] = made

    def dataset(self, folder: FolderDataset) -> Any:
        """Return the dataset that a worker would read: the copy, or the original for a loader without workers."""
        return self._datasets.get(id(folder.dataset), folder.dataset)


def _copied(transform: Any) -> Any:
    try:
        return DeepCopies(None, [transform]).copy(transform, "its transform")
    except NotKept as error:
        raise Unsupported(f"{error.place} is {error.what}, which headrace cannot copy") from error
