"""A training loop that changes its dataset or its transforms while it iterates gets the batches that it would get without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from deferred_helpers import described
from headrace.accelerate.script.state import state_of
from headrace.accelerate.whole.iterator import NativeIterator
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder


def transform() -> Any:
    return v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])


class Own(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg")) * 2
        self.labels = list(range(len(self.paths)))
        self.weights = np.arange(len(self.paths), dtype=np.float32)
        self.extra = torch.arange(len(self.paths))
        self.transform = transform()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), self.labels[index], self.weights[index], self.extra[index]


def own(folder: Path) -> Any:
    return Own(folder)


def wrapped(folder: Path) -> Any:
    return Subset(Own(folder), list(range(30)))


def folders(folder: Path) -> Any:
    found = ImageFolder(str(folder), transform())
    found.samples = found.samples * 2
    return found


def part_of_folders(folder: Path) -> Any:
    return Subset(folders(folder), list(range(30)))


def inner(dataset: Any) -> Any:
    return dataset.dataset if isinstance(dataset, Subset) else dataset


def new_transform(dataset: Any) -> None:
    inner(dataset).transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])


def another_size(dataset: Any) -> None:
    inner(dataset).transform.transforms[0].size = (24, 24)


def another_mean(dataset: Any) -> None:
    inner(dataset).transform.transforms[2].mean[1] = 0.25


def another_step(dataset: Any) -> None:
    inner(dataset).transform.transforms.pop()


def relabel(dataset: Any) -> None:
    if hasattr(inner(dataset), "samples"):
        inner(dataset).samples[:] = [(path, label + 7) for path, label in inner(dataset).samples]
    else:
        inner(dataset).labels[:] = [label + 7 for label in inner(dataset).labels]


def relabel_in_place(dataset: Any) -> None:
    inner(dataset).weights[3:25] += 5
    inner(dataset).extra[2:29] += 5


def new_labels(dataset: Any) -> None:
    if hasattr(inner(dataset), "samples"):
        inner(dataset).samples = [(path, label + 7) for path, label in inner(dataset).samples]
    else:
        inner(dataset).labels = [label + 7 for label in inner(dataset).labels]


def other_files(dataset: Any) -> None:
    if hasattr(inner(dataset), "samples"):
        inner(dataset).samples.reverse()
    else:
        inner(dataset).paths.reverse()


def other_targets(dataset: Any) -> None:
    inner(dataset).target_transform = lambda label: label * 10


def other_indices(dataset: Any) -> None:
    dataset.indices.reverse()


CHANGES = [new_transform, another_size, another_mean, another_step, relabel, new_labels, other_files]


def batches_of(dataset: Any, workers: int, change: Callable[[Any], None], at: int, walk: Callable[[Any], Any]) -> Any:
    """Return the batches of a loop that changes the dataset once it has `at` batches."""
    loader = DataLoader(dataset, 3, num_workers=workers)
    found = []
    for batch in walk(loader):
        found.append(described(batch))
        if len(found) == at:
            change(dataset)
    return found


def without(loader: Any) -> Any:
    """Iterate without headrace."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

    return (_MultiProcessingDataLoaderIter if loader.num_workers else _SingleProcessDataLoaderIter)(loader)


@pytest.mark.matrix
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "change"),
    [
        *((make, change) for make in (own, folders) for change in CHANGES),
        *((wrapped, change) for change in (other_indices, relabel_in_place, new_transform)),
        *((part_of_folders, change) for change in (other_indices, relabel, another_size)),
        (folders, other_targets),
    ],
)
def test_a_change_reaches_the_batch_that_it_reaches_without(
    make: Any, change: Any, workers: int, at: int, folder: Path, taken_over: list[str]
) -> None:
    theirs = batches_of(make(folder), workers, change, at, without)
    ours = batches_of(make(folder), workers, change, at, iter)
    assert ours == theirs
    assert any("taken over: decode" in line for line in taken_over), taken_over


def test_a_change_before_the_first_batch(folder: Path, taken_over: list[str]) -> None:
    found = []
    for walk in (without, iter):
        dataset = folders(folder)
        torch.manual_seed(1)
        iterator = walk(DataLoader(dataset, 3))
        another_size(dataset)
        found.append((described(list(iterator)), torch.get_rng_state().tolist()))
    assert found[0] == found[1]


def test_a_loop_that_changes_nothing_uses_what_was_made_ahead(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script_batches: list[Any] = []
    monkeypatch.setattr(NativeIterator, "_script_batch", lambda self, indices: script_batches.append(indices))
    for dataset in (own(folder), folders(folder)):
        iterator: Any = iter(DataLoader(dataset, 3))
        started: list[Any] = []
        fill = iterator._fill
        iterator._fill = lambda pending, fill=fill, started=started, **named: started.append(pending) or fill(pending, **named)
        count = len(list(iterator))
        assert len(started) == count
        assert isinstance(iterator, NativeIterator)
        assert iterator._is_native
    assert script_batches == []
    assert len(own_batches(DataLoader(folders(folder), 3))) == count


SCALE = 2


def scaled(image: Any) -> Any:
    return image.resize((SCALE, SCALE))


def offsets(values: list[int]) -> list[int]:
    return [value + SCALE for value in values]


class Slotted:
    __slots__ = ("size", "unset")


@pytest.mark.parametrize(
    "kind", ["attribute", "list", "dict", "tensor", "array", "partial", "slot", "closure", "global", "module"]
)
def test_the_state_of_an_object_changes_with_what_it_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 3
    slotted = Slotted()
    slotted.size = 1
    holder = transform()
    holder.list, holder.dict, holder.nested = [1, 2, [3]], {"a": {1}}, torch.nn.Sequential(torch.nn.Linear(2, 2))
    holder.tensor, holder.array, holder.large = torch.ones(4), np.ones(4), torch.ones(5000)
    holder.partial, holder.slotted, holder.closure = functools.partial(print, [1]), slotted, lambda: number
    holder.function, holder.itself = scaled, holder
    before = state_of(holder)
    assert state_of(holder) == before
    if kind == "attribute":
        holder.transforms[0].size = [1, 2]
    elif kind == "list":
        holder.list[2].append(4)
    elif kind == "dict":
        holder.dict["a"].add(2)
    elif kind == "tensor":
        holder.large.add_(1)
    elif kind == "array":
        holder.array[2] = 5
    elif kind == "partial":
        holder.partial.args[0][0] = 2
    elif kind == "slot":
        slotted.size = 2
    elif kind == "closure":
        number = 4
    elif kind == "global":
        monkeypatch.setitem(globals(), "SCALE", 3)
    else:
        with torch.no_grad():
            holder.nested[0].weight[0, 0] += 1
    assert state_of(holder) != before


def test_the_state_of_a_function_changes_with_what_a_comprehension_in_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_of(offsets)
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert state_of(offsets) != before


@pytest.mark.parametrize("at", [0, 2])
def test_a_transform_of_one_part_of_a_dataset_that_changes(at: int, both: Any, folder: Path) -> None:
    def script() -> Any:
        steps = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
        parts = [ImageFolder(str(folder), steps) for _ in range(2)]
        found = []
        for number, batch in enumerate(DataLoader(ConcatDataset(parts), 4)):
            found.append(batch)
            if number == at:
                parts[1].transform = v1.Compose([*steps.transforms, v1.Normalize([0.5] * 3, [0.2] * 3)])
        return found

    both(script)
