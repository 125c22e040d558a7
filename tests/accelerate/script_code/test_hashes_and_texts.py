"""Hashes, truth, texts, indices and iterators of objects of the script, which the code of an item uses without a call."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_code import SEEN, seen
from deferred_helpers import OwnImages
from torch.utils.data import DataLoader
from torchvision import transforms

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
WHOLE = "the same batches, bit for bit"


class Counting:
    """Counts how often Python asks it for anything."""

    def __hash__(self) -> int:
        return seen() * 0

    def __eq__(self, other: object) -> bool:
        return seen() > 0 and self is other

    def __len__(self) -> int:
        return seen()

    def __index__(self) -> int:
        return seen() % 3

    def keys(self) -> list[str]:
        return ["index"] * min(1, seen())

    def __getitem__(self, name: str) -> int:
        return seen()


class Text:
    def __str__(self) -> str:
        return str(seen())


class Key:
    def __init__(self, value: int) -> None:
        self.value = value + 0 * seen()

    def __lt__(self, other: Key) -> bool:
        return self.value < other.value


class Labelled(OwnImages):
    """The target of an item is what `use` makes of an object that the dataset holds."""

    use: Any = None

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.one, self.text, self.key = Counting(), Text(), Key
        self.table, self.more = {self.one: 3}, {"index": 4}
        self.pairs = [(number + more for more in range(2)) for number in range(len(self.paths))]

    def target(self, index: int) -> Any:
        return self.use(self, index)

    def same(self, index: int = 0) -> int:
        return index


def stored(data: Any, index: int) -> Any:
    found: dict[Any, int] = {}
    found[data.one] = index
    return len(found)


def asserted(data: Any, index: int) -> Any:
    assert data.one
    return index


def extended(data: Any, index: int) -> Any:
    found: list[int] = []
    found.extend(data.pairs[index])
    return len(found)


def updated(data: Any, index: int) -> Any:
    found: set[int] = set()
    found.update(data.pairs[index])
    return len(found)


def added(data: Any, index: int) -> Any:
    found: set[Any] = set()
    found.add(data.one)
    return len(found)


USES: dict[str, Any] = {
    "a dict": lambda data, index: len({data.one: index}),
    "a set": lambda data, index: len({data.one, index}),
    "a dict comprehension": lambda data, index: len({one: at for at, one in enumerate([data.one])}),
    "a set comprehension": lambda data, index: len({one for one, _ in [(data.one, 1)]}),
    "a key": lambda data, index: data.table[data.one],
    "an index": lambda data, index: [5, 6, 7][data.one],
    "a slice": lambda data, index: sum([5, 6, 7][: data.one]),
    "a text": lambda data, index: len("%s" % data.text),  # noqa: UP031
    "texts": lambda data, index: len("%s %d" % (data.text, index)),  # noqa: UP031
    "named arguments": lambda data, index: data.same(**data.one),
    "a dict of another": lambda data, index: len({**data.one}),
    "a class that sorts": lambda data, index: sorted([3, 1, index], key=data.key)[0],
    **{one.__name__: one for one in (stored, asserted, extended, updated, added)},
}


@pytest.mark.matrix(keep=6)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("workers", [0, 1])
def test_python_asks_objects_as_often_as_in_plain(use: str, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        SEEN[0] = 0
        dataset = Labelled(folder, STEPS)
        SEEN[0] = 0
        dataset.use = USES[use]
        return [*DataLoader(dataset, 4, num_workers=workers)], SEEN[0]

    assert not any(WHOLE in line for line in both(script)[1])


def test_python_asks_the_class_for_an_item(both: Both, folder: Path) -> None:
    """A method that an object has for itself is called by its name only."""

    def script() -> Any:
        dataset = Labelled(folder, STEPS)
        dataset.use = lambda data, index: index
        own = types.MethodType(lambda data, index: OwnImages.__getitem__(data, min(index, 18)), dataset)
        dataset.__getitem__ = own  # type: ignore[method-assign]
        return [*DataLoader(dataset, 4)]

    both(script)


KNOWN: dict[str, Any] = {
    "a path": lambda data, index: "%05d %s" % (index % 7, data.paths[index][-4:]),  # noqa: UP031
    "a remainder": lambda data, index: index % len(data.paths) + (index % 3) * 0.5,
    "collections": lambda data, index: (
        len({**data.more, "b": 1}),
        len({index, 1}),
        sum({one: at for at, one in enumerate((1, 2))}),
    ),
    "slices": lambda data, index: ([5, 6, 7, 8][index % 2 : 3], data.same(**data.more), {str: 4}[str]),
}


@pytest.mark.parametrize("use", KNOWN)
def test_plain_data_is_understood(use: str, both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = Labelled(folder, STEPS)
        dataset.use = KNOWN[use]
        return [*DataLoader(dataset, 1, num_workers=0)]

    assert any(WHOLE in line for line in both(script)[1])
