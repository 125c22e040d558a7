"""Items whose code calls `map` with a lambda, as SwAV's code does to make its crops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate_helpers import assert_same, own_batches
from headrace.accelerate.whole.item_iterator import ItemIterator
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

VIEWS = [v1.Compose([v1.Resize((side, side)), v1.ToTensor()]) for side in (32, 24)]


class Mapped(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image = self.loader(self.samples[index][0])
        return list(map(lambda view: view(image), VIEWS))  # noqa: C417


class MappedBackwards(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image = self.loader(self.samples[index][0])

        def map(function: Callable[[Any], Any], values: list[Any]) -> Iterator[Any]:
            return (function(value) for value in reversed(values))

        return list(map(lambda view: view(image), VIEWS))


class MapOfTwo(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image = self.loader(self.samples[index][0])
        return list(map(lambda view, _: view(image), VIEWS, (0, 1)))


@pytest.mark.parametrize("workers", [0, 1])
def test_map_with_a_lambda_is_understood(folder: Path, taken_over: list[str], workers: int) -> None:
    made, own = (DataLoader(Mapped(str(folder)), 5, num_workers=workers) for _ in range(2))
    iterator = iter(made)
    assert isinstance(iterator, ItemIterator), taken_over
    assert_same(list(iterator), own_batches(own))


@pytest.mark.parametrize("kind", [MappedBackwards, MapOfTwo])
def test_another_map_is_not(folder: Path, taken_over: list[str], kind: type[ImageFolder]) -> None:
    made, own = (DataLoader(kind(str(folder)), 5) for _ in range(2))
    iterator = iter(made)
    assert not isinstance(iterator, ItemIterator)
    assert_same(list(iterator), own_batches(own))
