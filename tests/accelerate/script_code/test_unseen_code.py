"""Code of the script that runs where the text of an item does not call it, and files that an item opens without a use."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_code import SEEN, seen
from deferred_helpers import OwnImages
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
WHOLE = "the same batches, bit for bit"


class Computed:
    """A descriptor of the script's own."""

    def __get__(self, thing: Any, owner: Any) -> int:
        return seen()


class Meta(type):
    def __getattr__(cls, name: str) -> int:
        return seen()


class Settings(metaclass=Meta):
    pass


class OwnSettings:
    scale = Computed()

    def __class_getitem__(cls, name: str) -> int:
        return seen()

    @classmethod
    def known(cls) -> int:
        return 3


class Delegates:
    def __getattr__(self, name: str) -> int:
        return seen()


MADE = types.ModuleType("headrace_test_made")
MADE.__file__ = __file__  # pytest and hypothesis ask each module for it
MADE.__getattr__ = lambda name: seen()  # type: ignore[method-assign]
sys.modules[MADE.__name__] = MADE


class OwnPath:
    """A path that says itself where it lies."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __fspath__(self) -> str:
        return self.paths[seen() % len(self.paths)]


class OwnPosixPath(pathlib.PosixPath):
    def __fspath__(self) -> str:
        seen()
        return super().__fspath__()


class Based(OwnImages):
    @property
    def scale(self) -> int:
        return seen()


class Labelled(Based):
    """`label` makes the target of an item."""

    scale = 3  # type: ignore[assignment]
    sampler: Any = None

    label: Any = None

    def target(self, index: int) -> Any:
        return self.label(index)


class OfBase(Labelled):
    def target(self, index: int) -> Any:
        return super(Labelled, self).scale


class Draws(Labelled):
    def target(self, index: int) -> Any:
        for drawn in self.sampler:
            return drawn
        return None


LABELS: dict[str, Any] = {
    "descriptor of a class": lambda index: OwnSettings.scale,
    "index of a class": lambda index: OwnSettings["scale"],
    "attribute of a metaclass": lambda index: Settings.scale,
    "attribute of a module": lambda index: MADE.scale,
    "attribute of an object": lambda index: DELEGATES.scale,
}
DELEGATES = Delegates()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("label", LABELS)
def test_code_behind_an_attribute_or_index_stays_where_it_is(label: str, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        SEEN[0] = 0
        dataset = Labelled(folder, STEPS)
        dataset.label = LABELS[label]
        return [*DataLoader(dataset, 4, num_workers=workers)], SEEN[0]

    assert not any(WHOLE in line for line in both(script)[1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [OfBase, Draws])
def test_properties_of_a_base_and_samplers_in_an_item(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        SEEN[0] = 0
        dataset = kind(folder, STEPS)
        dataset.sampler = RandomSampler(range(100), replacement=True)
        return [*DataLoader(dataset, 4, num_workers=workers)], SEEN[0]

    assert not any(WHOLE in line for line in both(script)[1])


def test_class_methods_are_called(both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = Labelled(folder, STEPS)
        dataset.label = lambda index: OwnSettings.known() + index
        return list(DataLoader(dataset, 4, num_workers=1))

    assert any(WHOLE in line for line in both(script)[1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [OwnPath, OwnPosixPath])
def test_a_path_that_computes_where_it_lies_is_asked_as_often_as_in_plain(
    kind: Any, workers: int, both: Both, folder: Path
) -> None:
    def script() -> Any:
        SEEN[0] = 0
        dataset = OwnImages(folder, STEPS)
        paths = list(dataset.paths)
        dataset.paths = [OwnPath(paths) if kind is OwnPath else OwnPosixPath(path) for path in paths]  # type: ignore[misc]
        return [*DataLoader(dataset, 4, num_workers=workers)], SEEN[0]

    assert not any(WHOLE in line for line in both(script)[1])


class Tries(OwnImages):
    """The target says whether another file can be read."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.masks = list(self.paths)

    def target(self, index: int) -> Any:
        try:
            Image.open(self.masks[index]).convert("RGB")
        except OSError:
            return 0
        return 1


class Opens(Tries):
    def target(self, index: int) -> Any:
        try:
            with open(self.masks[index], "rb"):
                return 1
        except OSError:
            return 0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Tries, Opens])
def test_a_file_that_an_item_only_tries_to_open_is_opened(kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = kind(folder, STEPS)
        dataset.masks[5] = str(folder / "absent.png")  # none of the compared items
        return list(DataLoader(dataset, 4, num_workers=workers))

    _, lines = both(script)
    assert any("its items open other files than those of their tensors" in line for line in lines)
