"""The lines of `headrace run` name the libraries that the items are read with, not those that are merely imported."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.io
from headrace.accelerate.lazy.loader import native_steps
from headrace.accelerate.lazy.used_readers import readers_used
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import read_image as read

cv2 = types.SimpleNamespace(imread=lambda path: path, imdecode=lambda data, flags: data)


@pytest.fixture(autouse=True)
def opencv_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", types.ModuleType("cv2"))


def open_with_pillow(path: str) -> Any:
    return Image.open(path).convert("RGB")


def read_with_opencv(path: str) -> Any:
    return cv2.imread(path)


class Items(Dataset[Any]):
    """A dataset of a script's own, whose files a function reads."""

    def __init__(self, read: Any) -> None:
        self.read = read
        self.paths = ["a"] * 100

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.paths[index])


class Named(Items):
    def __getitem__(self, index: int) -> Any:
        return torchvision.io.read_image(self.paths[index])


class Renamed(Items):
    def __getitem__(self, index: int) -> Any:
        return read(self.paths[index])


class ByMethod(Items):
    def __getitem__(self, index: int) -> Any:
        return [self._one(path) for path in self.paths[:index]]

    @staticmethod
    def _one(path: str) -> Any:
        return (lambda: cv2.imdecode(np.zeros(3), 1))()


itk = types.SimpleNamespace(imread=lambda path: path)


class OfAnotherLibrary(Items):
    def __getitem__(self, index: int) -> Any:
        return itk.imread(self.paths[index])


class ImportedInside(Items):
    def __getitem__(self, index: int) -> Any:
        from torchvision.io import decode_image

        return decode_image(self.paths[index])


class Both(Items):
    def __getitem__(self, index: int) -> Any:
        return open_with_pillow(self.paths[index]), torchvision.io.decode_image(index)


class Shouting:
    """An object that answers every question about itself with an error."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nobody asks me")


def paths(items: list[Any]) -> Any:
    return [read_with_opencv(item) for item in items]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: Items(open_with_pillow), ["Pillow"]),
        (lambda: Items(functools.partial(open_with_pillow)), ["Pillow"]),
        (lambda: Items(read_with_opencv), ["OpenCV"]),
        (lambda: Subset(Items(read_with_opencv), [1, 2]), ["OpenCV"]),
        (lambda: ConcatDataset([Items(open_with_pillow), Items(read_with_opencv)]), ["Pillow", "OpenCV"]),
        (lambda: Items(transforms.Compose([transforms.Lambda(read_with_opencv)])), ["OpenCV"]),
        (lambda: Named(None), ["torchvision.io"]),
        (lambda: Renamed(None), ["torchvision.io"]),
        (lambda: ByMethod(None), ["OpenCV"]),
        (lambda: OfAnotherLibrary(None), ["Pillow"]),
        (lambda: ImportedInside(None), ["torchvision.io"]),
        (lambda: Both(None), ["Pillow", "torchvision.io"]),
        (lambda: Items({"read": Shouting(), "further": [read_with_opencv]}), ["OpenCV"]),
        (lambda: Items(transforms.ToTensor()), ["Pillow"]),
    ],
)
def test_the_code_of_the_items_tells(dataset: Callable[[], Any], expected: list[str]) -> None:
    assert readers_used(DataLoader(dataset(), 4)) == expected


def test_the_code_of_the_collate_function_tells() -> None:
    assert readers_used(DataLoader(Items(Shouting()), 4, collate_fn=paths)) == ["OpenCV"]


def test_image_folders_are_read_with_pillow(folder: Path) -> None:
    steps = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
    loader = DataLoader(ImageFolder(str(folder), steps), 4)
    assert readers_used(loader) == ["Pillow"]
    assert native_steps(loader) == "the decode, crop and resize of JPEGs that Pillow opens"
    assert native_steps(DataLoader(Renamed(None))) == "the decode of JPEGs that torchvision.io reads"


def test_a_library_that_is_not_imported_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cv2")
    assert readers_used(DataLoader(Items(read_with_opencv), 4)) == ["Pillow"]
