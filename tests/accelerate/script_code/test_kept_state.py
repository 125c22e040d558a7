"""With workers, the items of a pass see what the script has when the pass begins, whatever its loop changes meanwhile."""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import random
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import own_batches
from deferred_helpers import described
from headrace.accelerate.script_code import deep_copies
from headrace.accelerate.script_code.deep_copies import DeepCopies, NotKept
from headrace.accelerate.whole.item_iterator import ItemIterator
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

STEPS = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
GLOBAL = 1
TABLE: dict[str, Any] = {"a": [1, 2], "b": {"c": 3}}
ARGS = argparse.Namespace(scale=1, classes=["x", "y"])
CONFIG = types.ModuleType("headrace_test_config")
CONFIG.SCALE, CONFIG.LIST = 1, [1, 2]  # type: ignore[attr-defined]
sys.modules[CONFIG.__name__] = CONFIG


def looked_up(index: int) -> int:
    return int(TABLE["a"][0]) + index


@dataclass
class Options:
    scale: int = 1
    nested: list[list[int]] = field(default_factory=lambda: [[1], [2]])


class Inner:
    def __init__(self) -> None:
        self.options = Options()
        self.value = 1


class Scale:
    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return value * self.by


def make_label() -> Any:
    captured, number = [1], 1

    def label(index: int, given: list[int] = [1]) -> Any:  # noqa: B006
        return index + captured[0] + given[0] + number

    def change() -> None:
        nonlocal number
        captured[0], number = 50, 60

    return label, change


class Many(Dataset[Any]):
    """Its items read from everywhere."""

    shared = 1
    names: list[str] = ["a", "b"]  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg")) * 2
        self.records = [{"label": number, "boxes": [number, number]} for number in range(len(self.paths))]
        self.pairs = [[path, number] for number, path in enumerate(self.paths)]
        self.nested = {"levels": {"deep": [[1], [2]]}}
        self.inner = Inner()
        self.scale = Scale(2)
        self.label, self.change_label = make_label()
        self.steps = STEPS
        self.weights = [np.arange(4), torch.arange(4)]
        self.lookup = {number: (number, [number]) for number in range(len(self.paths))}.get
        self.queue = collections.deque([[1], [2]])

    def __len__(self) -> int:
        return len(self.paths)

    def own(self) -> int:
        return self.shared + type_of(self)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.steps(image), {
            "global": GLOBAL,
            "function": looked_up(index),
            "table": TABLE["b"]["c"],
            "arguments": (ARGS.scale, len(ARGS.classes)),
            "module": (CONFIG.SCALE, CONFIG.LIST[0]),
            "class": (self.shared, self.names[0], Many.shared, self.own()),
            "record": (self.records[index]["label"], self.records[index]["boxes"][1]),
            "pair": self.pairs[index][1],
            "nested": self.nested["levels"]["deep"][0][0],
            "inner": (self.inner.options.scale, self.inner.options.nested[1][0], self.inner.value),
            "slot": self.scale(3),
            "label": self.label(index),
            "weights": (int(self.weights[0][1]), int(self.weights[1][1])),
            "lookup": self.lookup(index)[1][0],
            "queue": self.queue[0][0],
        }


def type_of(dataset: Any) -> int:
    return len(dataset.names)


def change_global(_: Many) -> None:
    global GLOBAL
    GLOBAL += 1
    TABLE["a"][0] += 5
    TABLE["b"]["c"] += 5


def change_arguments(_: Many) -> None:
    ARGS.scale += 1
    ARGS.classes.append("z")


def change_module(_: Many) -> None:
    CONFIG.SCALE += 1  # type: ignore[attr-defined]
    CONFIG.LIST[0] += 1  # type: ignore[attr-defined]


def change_class(_: Many) -> None:
    Many.shared += 1
    Many.names[0] += "a"
    Many.names.append("c")


def change_records(data: Many) -> None:
    for record in data.records:
        record["label"] += 100
        record["boxes"][1] += 100


def change_pairs(data: Many) -> None:
    for pair in data.pairs:
        pair[1] += 100


def change_nested(data: Many) -> None:
    data.nested["levels"]["deep"][0][0] += 100
    data.queue[0][0] += 7


def change_objects(data: Many) -> None:
    data.inner.options.scale += 1
    data.inner.options.nested[1][0] += 5
    data.inner.value += 1
    data.scale.by = 9


def change_captured(data: Many) -> None:
    data.change_label()
    data.label.__defaults__[0][0] += 30


def change_arrays(data: Many) -> None:
    data.weights[0][1] += 4
    data.weights[1][1] += 4
    data.lookup(3)[1][0] += 7
    for index in range(len(data)):
        data.lookup(index)[1][0] += 7


def change_function(_: Many) -> None:
    Many.own = lambda self: -1  # type: ignore[method-assign]
    globals()["looked_up"] = lambda index: -2


CHANGES = [
    *(change_global, change_arguments, change_module, change_class, change_records, change_pairs, change_nested),
    *(change_objects, change_captured, change_arrays, change_function),
]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that brings back what the changes reach outside of a dataset."""
    own, function = Many.own, looked_up

    def restore() -> None:
        global GLOBAL
        GLOBAL = 1
        TABLE.update({"a": [1, 2], "b": {"c": 3}})
        ARGS.scale, ARGS.classes = 1, ["x", "y"]
        CONFIG.SCALE, CONFIG.LIST = 1, [1, 2]  # type: ignore[attr-defined]
        Many.shared, Many.names, Many.own = 1, ["a", "b"], own  # type: ignore[method-assign]
        globals()["looked_up"] = function

    yield restore
    restore()


def passes(loader: Any, change: Any, at: int, walk: Any) -> list[Any]:
    """Return the batches of two passes. The loop changes the dataset in the first one."""
    found = []
    for batch in itertools.chain(walk(loader), walk(loader)):
        found.append(described(batch))
        if len(found) == at:
            change(loader.dataset)
    return found


def without(loader: Any) -> Any:
    """Iterate without headrace."""
    from torch.utils.data.dataloader import DataLoader as Plain
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

    kind = _MultiProcessingDataLoaderIter if loader.num_workers else _SingleProcessDataLoaderIter
    if not loader.persistent_workers:
        return kind(loader)
    if loader._iterator is None:
        loader._iterator = kind(loader)
    else:
        loader._iterator._reset(loader)
    assert isinstance(loader, Plain)
    return loader._iterator


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (2, False), (2, True), pytest.param(0, True, marks=pytest.mark.skip("no workers"))],
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reaches_the_items_that_it_reaches_without(
    change: Any, workers: int, persistent: bool, folder: Path, taken_over: list[str], restored: Any
) -> None:
    found = []
    for walk in (without, iter):
        restored()
        loader = DataLoader(Many(folder), 4, num_workers=workers, persistent_workers=persistent)
        found.append(passes(loader, change, 3, walk))
    assert found[0] == found[1]
    assert "taken over: decode" in taken_over[-1], taken_over


def test_nothing_of_the_script_is_another_afterwards(folder: Path, taken_over: list[str], restored: Any) -> None:
    data = Many(folder)
    before = (data.records, TABLE["a"], ARGS.classes, Many.names, data.label.__defaults__, CONFIG.LIST)
    list(DataLoader(data, 4, num_workers=1))
    after = (data.records, TABLE["a"], ARGS.classes, Many.names, data.label.__defaults__, CONFIG.LIST)
    assert all(one is other for one, other in zip(before, after, strict=True))


def target(label: int) -> int:
    return label * GLOBAL + TABLE["a"][0]


def collate(items: list[Any]) -> Any:
    images, labels = default_collate(items)
    return images, labels, GLOBAL, TABLE["b"]["c"]


def test_targets_and_batches_see_the_beginning_of_the_pass(folder: Path, taken_over: list[str], restored: Any) -> None:
    found = []
    for walk in (without, iter):
        restored()
        loader = DataLoader(ImageFolder(str(folder), STEPS, target), 4, num_workers=2, collate_fn=collate)
        found.append(passes(loader, change_global, 2, walk))
    assert found[0] == found[1]
    assert "taken over: decode" in taken_over[-1]


@pytest.mark.parametrize("kind", ["items", "folder"])
def test_images_that_the_script_decodes_see_the_beginning_of_the_pass(
    kind: str, folder: Path, taken_over: list[str], restored: Any
) -> None:
    """The folder has CMYK files and a PNG named .jpg."""

    def change(data: Any) -> None:
        data.transform.transforms[0].size = (16, 8)
        data.transform.transforms[2].mean[0] = 0.9
        if kind == "items":
            change_global(data)

    def steps() -> Any:
        return v1.Compose([v1.Resize((16, 16)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])

    found = []
    for walk in (without, iter):
        restored()
        data = ImageFolder(str(folder), steps(), target if kind == "items" else None)
        found.append(passes(DataLoader(data, 4, num_workers=1), change, 1, walk))
    assert found[0] == found[1]
    assert "taken over: decode" in taken_over[-1]


def test_samples_that_are_lists_are_kept(folder: Path, taken_over: list[str]) -> None:
    def lists() -> Any:
        data = ImageFolder(str(folder), STEPS)
        data.samples = [list(sample) for sample in data.samples]
        return data

    def change(data: Any) -> None:
        for sample in data.samples:
            sample[1] += 10
        data.samples[19][0] = data.samples[0][0]

    for workers in (0, 2):
        theirs = passes(DataLoader(lists(), 4, num_workers=workers), change, 2, without)
        assert passes(DataLoader(lists(), 4, num_workers=workers), change, 2, iter) == theirs
    assert "taken over: decode" in taken_over[-1]


class Records(Dataset[Any]):
    """Its items hold what the dataset holds, as those of detection do."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.records = [{"boxes": [[0.0, 1.0]], "name": [number]} for number in range(len(self.paths))]
        self.array = np.arange(8.0)
        self.inner = Inner()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = STEPS(Image.open(self.paths[index]).convert("RGB"))
        return image, self.records[index], torch.tensor([index]), self.array[1:3], self.inner


class Shared(Records):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.tensor[1:3]

    tensor = torch.arange(8.0)


def apart(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_loop_may_change_the_batches_that_it_gets(
    workers: int, persistent: bool, folder: Path, taken_over: list[str]
) -> None:
    """Such as `target["boxes"] = target["boxes"].cuda()`: workers send copies."""
    found = []
    for walk in (without, iter):
        loader = DataLoader(Records(folder), 4, num_workers=workers, persistent_workers=persistent, collate_fn=apart)
        seen = []
        for _ in range(3):
            for images, records, parts, arrays, inner in walk(loader):
                seen.append(described([images, records, parts, arrays, inner[0].value]))
                assert workers == 0 or inner[0] is inner[1]
                for record, part, array, one in zip(records, parts, arrays, inner, strict=True):
                    record["boxes"][0][1] += 1
                    record["name"].append(3)
                    record["new"] = 3
                    part += 1
                    array += 1
                    one.value += 1
        found.append((seen, described([loader.dataset.records, loader.dataset.array])))
    assert found[0] == found[1]
    assert "taken over: decode" in taken_over[-1]


def test_tensors_that_a_worker_would_share_are_left_to_it(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Shared(folder), 4, num_workers=1, collate_fn=apart)
    assert not isinstance(iter(loader), ItemIterator)
    assert "in part" in taken_over[-1] and "a tensor of the dataset itself" in taken_over[-1]


class Holding(Dataset[Any]):
    def __init__(self, folder: Path, held: Any) -> None:
        self.paths, self.held, self.unread = sorted(str(path) for path in folder.rglob("*.jpg")), held, threading.Lock()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return STEPS(Image.open(self.paths[index]).convert("RGB")), 0 if self.held is None else 1


class Compared:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


HELD: dict[str, Any] = {
    "lock": threading.Lock(),
    "generator": random.Random(3),
    "iterator": iter([1, 2]),
    "generator function": (one for one in [1]),
    "shared tensor": torch.zeros(4).share_memory_(),
    "shared array": np.frombuffer(multiprocessing.Array("d", 4).get_obj()),
    "tensor of a shared array": torch.frombuffer(multiprocessing.Array("d", 4).get_obj(), dtype=torch.float64),
    "object array": np.array([[1], None], dtype=object),
    "memory map": np.zeros(4).view(np.recarray),
    "comparing": Compared(),
    "nested": {"a": [{"b": threading.Lock()}]},
}


@pytest.mark.parametrize("name", HELD)
def test_what_cannot_be_copied_is_left_to_the_workers(name: str, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Holding(folder, HELD[name]), 5, num_workers=1)
    assert not isinstance(iter(loader), ItemIterator)
    assert "in part" in taken_over[-1] and "Holding.held" in taken_over[-1], taken_over


def test_what_no_code_reads_does_not_count(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Holding(folder, None), 5, num_workers=1)
    assert described(list(loader)) == described(own_batches(loader))
    assert "taken over: decode" in taken_over[-1]


def copied(thing: Any) -> Any:
    return DeepCopies(frozenset(("value", "list"))).copy(thing, "it")


def test_copies_share_what_cannot_be_changed_and_nothing_else() -> None:
    plain = ("a", 1, (2.5, None))
    assert copied(plain) is plain
    samples = [plain] * 1000
    made = copied(samples)
    assert made == samples and made is not samples and made[0] is plain
    mixed = ([1], plain)
    made = copied(mixed)
    assert made == mixed and made[0] is not mixed[0] and made[1] is plain
    looped: list[Any] = [1]
    looped.append(looped)
    made = copied(looped)
    assert made[1] is made
    twice = [1]
    one, other = copied([twice, twice, ("x",)])[:2]
    assert one is other is not twice
    counted = collections.defaultdict(list, {"a": [1]})
    made = copied(counted)
    assert made == counted and type(made) is type(counted) and made["a"] is not counted["a"]


def test_copies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    million = [(f"{number}.jpg", number) for number in range(300_000)]
    assert copied(million) == million
    monkeypatch.setattr(deep_copies, "MOST_CONTAINERS", 10)
    monkeypatch.setattr(deep_copies, "MOST_VISITS", 100)
    monkeypatch.setattr(deep_copies, "MOST_BYTES", 1000)
    for large in ([[1]] * 11, [{"a": 1}] * 11, [[[1]] for _ in range(60)], np.zeros(200), [np.zeros(30)] * 5 + [np.zeros(101)]):
        with pytest.raises(NotKept):
            copied(large)
    assert len(copied([[1]] * 10)) == 10
