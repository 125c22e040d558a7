"""Code of the script runs in the main process only where it is proven to do the same there as in a worker."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from deferred_helpers import described
from headrace.accelerate.whole.iterator import NativeIterator
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, default_collate, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

EVALUATE = v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
NAMES = {0: "ant", 1: "bee", 2: "cat", 3: "dog"}
SHIFT = 3
RNG = random.Random(4)


class Paths(Dataset[Any]):
    """A dataset of the script's own with a wrapper around its labels."""

    def __init__(self, folder: Path, label: Any) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.label = label

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return EVALUATE(Image.open(self.paths[index]).convert("RGB")), self.label(index % 4)


def asks_for_the_worker(y: int) -> int:
    w = get_worker_info()
    return y + 10 * (w.id + 1 if w else 0)


def asks_torch(y: int) -> int:
    return y + (torch.utils.data._utils.worker._worker_info is not None)


def imports_the_worker(y: int) -> int:
    from torch.utils.data._utils.worker import _worker_info

    return y + (_worker_info is not None)


def asks_in_one_class(y: int) -> int:
    if y == 77:
        return os.getpid()
    return y


def helper(y: int) -> int:
    return os.getpid() + y


def asks_a_helper_in_one_class(y: int) -> int:
    return helper(y) if y == 77 else y


class Numbered:
    calls = 0

    def __init__(self) -> None:
        self.seen = 0
        self.generator = np.random.default_rng(2)

    def counts(self, y: int) -> int:
        self.seen += 1
        return y + self.seen

    def draws(self, y: int) -> float:
        return y + float(self.generator.random())

    def __call__(self, y: int) -> int:
        Numbered.calls += 1
        return y + Numbered.calls


def counts_globally(y: int) -> int:
    global SHIFT
    SHIFT += 1
    return y + SHIFT


def remembers(y: int, seen: list[int] = []) -> int:  # noqa: B006
    seen.append(y)
    return len(seen)


class Sometimes:
    """It prints when it is compared."""

    def __eq__(self, other: object) -> bool:
        return os.getpid() % 2 == 0

    __hash__ = None  # type: ignore[assignment]


SOMETIMES = Sometimes()

#: Code that may differ in a worker, and what the line says of it.
UNPROVEN: dict[str, tuple[Any, str]] = {
    "worker": (asks_for_the_worker, "get_worker_info"),
    "worker of torch": (asks_torch, "_worker_info"),
    "imported worker": (imports_the_worker, "_worker_info"),
    "process": (lambda y: y + os.getpid(), "getpid"),
    "process in one class": (asks_in_one_class, "getpid"),
    "process in a helper": (asks_a_helper_in_one_class, "getpid"),
    "parent": (lambda y: y + (multiprocessing.parent_process() is not None), "parent_process"),
    "daemon": (lambda y: y + multiprocessing.current_process().daemon, "current_process"),
    "thread": (lambda y: y + threading.get_ident(), "get_ident"),
    "environment": (lambda y: y + len(os.environ.get("HOME", "")), "os.environ"),
    "draw": (lambda y: y + random.random(), "random"),
    "draw of NumPy": (lambda y: y + np.random.randint(4), "randint"),
    "draw of torch": (lambda y: y + torch.rand(1).item(), "rand"),
    "own generator": (lambda y: y + RNG.random(), "random"),
    "generator of an object": (Numbered().draws, "Generator.random"),
    "counter": (Numbered().counts, "changes something outside"),
    "counter of the class": (Numbered(), "changes something outside"),
    "global counter": (counts_globally, "global"),
    "default argument": (remembers, "append"),
    "print": (lambda y: print(y) or y, "print"),
    "file": (lambda y: len(open(os.devnull).read()) + y, "open"),  # noqa: SIM115
    "partial": (functools.partial(asks_for_the_worker), "get_worker_info"),
    "comparison": (lambda y: y + (SOMETIMES == y), "Sometimes"),  # noqa: SIM300
}


def lines_of(loader: DataLoader[Any], taken_over: list[str]) -> str:
    """Compare a pass with plain loading. Return the line of the loader."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    theirs = described(own_batches(loader))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert described(list(loader)) == theirs
    return taken_over[-1]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["target", "item"])
@pytest.mark.parametrize("name", UNPROVEN)
def test_code_that_may_differ_in_a_worker_stays_there(name: str, kind: str, folder: Path, taken_over: list[str]) -> None:
    code, words = UNPROVEN[name]
    dataset = ImageFolder(str(folder), EVALUATE, target_transform=code) if kind == "target" else Paths(folder, code)
    iterator = iter(DataLoader(dataset, 5, num_workers=1))
    assert not isinstance(iterator, NativeIterator)
    assert "in part" in taken_over[-1] and words in taken_over[-1], taken_over


def test_targets_of_each_worker_are_its_own(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE, target_transform=asks_for_the_worker)
    assert "its target_transform asks_for_the_worker" in lines_of(DataLoader(data, 4, num_workers=2), taken_over)


PROVEN: dict[str, Any] = {
    "dict": NAMES.__getitem__,
    "get": NAMES.get,
    "list": [5, 6, 7, 8].__getitem__,
    "array": np.arange(4)[::-1].__getitem__,
    "lambda": lambda y: (y * 2 + SHIFT, NAMES[y]),
    "partial": functools.partial(max, 2),
    "type": float,
    "tensor": torch.tensor,
    "composed": v1.Compose([v1.Lambda(lambda y: y + 1), float]),
    "bound": [3, 2, 1, 0].index,
}


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", PROVEN)
def test_targets_that_only_depend_on_the_data_stay_whole(name: str, workers: int, folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE, target_transform=PROVEN[name])
    assert "taken over: decode" in lines_of(DataLoader(data, 6, num_workers=workers), taken_over)


def collate_by_process(batch: list[Any]) -> Any:
    return (*default_collate(batch), os.getpid())


def collate_by_worker(batch: list[Any]) -> Any:
    info = get_worker_info()
    return (*default_collate(batch), -1 if info is None else info.id)


def collate_with_draws(batch: list[Any]) -> Any:
    images, labels = default_collate(batch)
    share = random.random()
    return images * share + images.flip(0) * (1 - share), labels


class Collate:
    def __init__(self, mix: Any = None) -> None:
        self.mix, self.calls = mix, 0

    def __call__(self, batch: list[Any]) -> Any:
        return self.mix(*default_collate(batch))

    def counting(self, batch: list[Any]) -> Any:
        self.calls += 1
        return (*default_collate(batch), self.calls)

    def plain(self, batch: list[Any]) -> Any:
        images, labels = default_collate(batch)
        return {"images": images, "labels": labels}


def described_by(batch: list[Any], default_collate: Any) -> Any:
    return default_collate(batch)


def summing(batch: list[Any]) -> Any:
    images, labels = default_collate(batch * 8)
    return images, labels, images.sum()


def writing(batch: list[Any], into: Any = torch.zeros(3, 24, 24)) -> Any:  # noqa: B008
    return torch.stack([item[0] for item in batch], out=into)


def calling(batch: list[Any], seen: Any = [].append) -> Any:
    return max([item[1] for item in batch], key=seen)


MIX = v2.CutMix(num_classes=4)
UNPROVEN_COLLATE: dict[str, tuple[Any, str]] = {
    "process": (collate_by_process, "getpid"),
    "worker": (collate_by_worker, "get_worker_info"),
    "draws": (collate_with_draws, "random"),
    "lambda": (lambda batch: MIX(*default_collate(batch)), "CutMix"),
    "instance": (Collate(v2.MixUp(num_classes=4)), "MixUp"),
    "bound method": (Collate().counting, "changes something outside"),
    "partial": (functools.partial(collate_by_worker), "get_worker_info"),
    "sum": (summing, "Tensor.sum of many values"),
    "out": (writing, "stack with `out`"),
    "key": (calling, "builtin_function_or_method"),
    "matrices": (lambda batch: batch[0][0] @ batch[0][0], "multiplies matrices"),
    "only the name": (functools.partial(described_by, default_collate=collate_by_process), "getpid"),
}


@pytest.mark.parametrize("name", UNPROVEN_COLLATE)
def test_a_collate_function_that_may_differ_in_a_worker_stays_there(name: str, folder: Path, taken_over: list[str]) -> None:
    collate, words = UNPROVEN_COLLATE[name]
    iterator = iter(DataLoader(ImageFolder(str(folder), EVALUATE), 5, num_workers=1, collate_fn=collate))
    assert not isinstance(iterator, NativeIterator)
    assert "in part" in taken_over[-1] and words in taken_over[-1], taken_over


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["draws", "lambda", "instance", "worker"])
def test_batches_of_such_a_collate_function_are_the_scripts(
    name: str, workers: int, folder: Path, taken_over: list[str]
) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    lines_of(DataLoader(data, 5, num_workers=workers, collate_fn=UNPROVEN_COLLATE[name][0]), taken_over)


PROVEN_COLLATE: dict[str, Any] = {
    "bound method": Collate().plain,
    "lambda": lambda batch: default_collate([(label, image) for image, label in batch]),
    "partial": functools.partial(described_by, default_collate=default_collate),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", PROVEN_COLLATE)
def test_a_collate_function_that_only_depends_on_its_items_stays_whole(
    name: str, workers: int, folder: Path, taken_over: list[str]
) -> None:
    loader = DataLoader(ImageFolder(str(folder), EVALUATE), 6, num_workers=workers, collate_fn=PROVEN_COLLATE[name])
    assert "taken over: decode" in lines_of(loader, taken_over)


def test_types_that_the_script_adds_to_default_collate_stay_in_the_workers(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, float, lambda batch, *, collate_fn_map=None: os.getpid())
    data = ImageFolder(str(folder), EVALUATE, target_transform=float)
    iter(DataLoader(data, 5, num_workers=1))
    assert "in part" in taken_over[-1] and "added types to torch's default_collate" in taken_over[-1]


def test_workers_that_are_not_forked_have_variables_of_their_own(folder: Path, taken_over: list[str]) -> None:
    loader: Callable[..., Any] = functools.partial(DataLoader, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert not isinstance(iter(loader(Paths(folder, NAMES.get))), NativeIterator)
    assert "in part" in taken_over[-1] and "spawn" in taken_over[-1]


class Computed(ImageFolder):
    @property
    def target_transform(self) -> Any:
        return None if get_worker_info() is None else lambda label: label + 1

    @target_transform.setter
    def target_transform(self, value: Any) -> None:
        pass


class Indices:
    """Indices that differ in a worker."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index + (0 if get_worker_info() is None else 5)


@pytest.mark.parametrize("kind", ["property", "indices"])
def test_attributes_that_code_computes_stay_in_the_workers(kind: str, folder: Path, taken_over: list[str]) -> None:
    if kind == "property":
        data: Any = Computed(str(folder), EVALUATE)
    else:
        data = Subset(ImageFolder(str(folder), EVALUATE), Indices())  # type: ignore[arg-type]
    line = lines_of(DataLoader(data, 4, num_workers=2), taken_over)
    assert "in part" in line and ("target_transform" if kind == "property" else "Indices") in line
