"""Copies of folder datasets as worker processes have them, unaffected by later changes in the training loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script_code.deep_copies import DeepCopies, NotKept
from headrace.accelerate.whole.folders import FolderDataset, kept_indices

__all__ = ["WorkerCopies"]


class WorkerCopies:
    """Copies of a loader's dataset and of the folder datasets in it, made when a pass begins.

    `samples`: for each folder dataset its samples when the pass begins. Without workers (`has_workers`) the script's own
    datasets are asked. Raise `Unsupported` if a transform cannot be copied. `whole`: the loader's dataset.
    """

    def __init__(
        self, dataset: Any, folders: Sequence[FolderDataset], samples: Sequence[list[Any]], *, has_workers: bool
    ) -> None:
        self._datasets: dict[int, Any] = {}
        for folder, own in zip(folders, samples, strict=True) if has_workers else ():
            made = copy.copy(folder.dataset)
            made.transform = _copied(folder.dataset.transform)
            holder = made
            if hasattr(made, "reader"):  # timm's datasets
                holder = made.reader = copy.copy(made.reader)
            holder.samples = own
            self._datasets[id(folder.dataset)] = made
        self.whole = self._whole(dataset) if has_workers else dataset

    def dataset(self, folder: FolderDataset) -> Any:
        """Return the dataset that a worker would read: the copy, or the original for a loader without workers."""
        return self._datasets.get(id(folder.dataset), folder.dataset)

    def _whole(self, dataset: Any) -> Any:
        """Return a dataset made of folder datasets as a worker would read it: with the indices that it has now."""
        data = torch.utils.data
        if type(dataset) not in (data.Subset, data.ConcatDataset):
            return self._datasets[id(dataset)]
        made = copy.copy(dataset)
        if type(dataset) is data.Subset:
            made.dataset, made.indices = self._whole(dataset.dataset), kept_indices(dataset.indices)
        else:
            made.datasets, made.cumulative_sizes = [*map(self._whole, dataset.datasets)], [*dataset.cumulative_sizes]
        return made


def _copied(transform: Any) -> Any:
    try:
        return DeepCopies(None, [transform]).copy(transform, "its transform")
    except NotKept as error:
        raise Unsupported(f"{error.place} is {error.what}, which headrace cannot copy") from error
