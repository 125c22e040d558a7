"""Targets that are tensors: `default_collate` keeps the first one's dtype in a worker, and promotes dtypes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deferred_helpers import OwnImages
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])


class Mapped(OwnImages):
    """Its target is a map of three channels, which lies in memory pixel by pixel."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.maps = np.arange(len(self.paths) * 60, dtype=np.float32).reshape(-1, 4, 5, 3)

    def target(self, index: int) -> Any:
        return torch.from_numpy(self.maps[index]).permute(2, 0, 1)


class MappedByNumPy(Mapped):
    def target(self, index: int) -> Any:
        return {"map": self.maps[index].transpose(2, 0, 1), "number": index}


class Weighted(OwnImages):
    """Its targets are of two dtypes. A worker stacks them into the first one's, and cannot if that is one of integers."""

    first = torch.float32

    def target(self, index: int) -> Any:
        return torch.tensor(index / 7, dtype=self.first if index % 4 == 0 else torch.float64)


class WeightedByNumPy(Weighted):
    def target(self, index: int) -> Any:
        return np.array([index / 7], dtype=np.float32 if index % 4 == 0 else np.float64)


class WeightedByIntegers(Weighted):
    first = torch.int64


def with_default(batch: Any) -> Any:
    return default_collate(list(batch))


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("collate", [None, with_default])
@pytest.mark.parametrize("kind", [Mapped, MappedByNumPy, Weighted, WeightedByNumPy, WeightedByIntegers])
@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_beside_the_image(workers: int, kind: Any, collate: Any, both: Both, folder: Path) -> None:
    _, lines = both(lambda: list(DataLoader(kind(folder, STEPS), 4, num_workers=workers, collate_fn=collate)))
    assert any("the same batches, bit for bit" in line for line in lines)
