"""Copies of the script's objects that its worker processes would have: what runs here leaves the script's own untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from headrace.accelerate.recognise import FolderDataset, Unsupported

__all__ = ["WorkerCopies"]


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
