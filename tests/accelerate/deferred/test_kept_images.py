"""Images and tensors that a dataset keeps in memory are decoded for it once, not for each epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deferred_helpers import OwnImages, always_lazy
from headrace.accelerate.deferred import filling
from headrace.accelerate.lazy import pillow
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import functional

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
CUT = transforms.Compose([transforms.RandomCrop(20), transforms.ToTensor()])


class Keeps(OwnImages):
    """It keeps what `first` makes of a path, and makes its items of that by `then`."""

    def __init__(self, root: Path, first: Any, then: Any) -> None:
        super().__init__(root, None)
        self.first, self.then = first, then
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.first(self.paths[index])
        return self.then(self.kept[index]), index


def opened(path: str) -> Any:
    return Image.open(path).convert("RGB")


def small(path: str) -> Any:
    return opened(path).resize((24, 24))


def tensor(path: str) -> Any:
    return functional.to_tensor(small(path))


WAYS: dict[str, tuple[Any, Any]] = {
    "files": (Image.open, lambda image: CUT(image.convert("RGB"))),
    "images": (opened, CUT),
    "small images": (small, CUT),
    "tensors": (tensor, lambda made: made),
    "tensors that are changed": (tensor, lambda made: functional.normalize(made, [0.5] * 3, [0.2] * 3)),
    "tensors that are changed in place": (tensor, lambda made: made.mul_(0.5)),
}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an entry for each image that is decoded natively."""
    found: list[int] = []
    fill, pixels = filling.fill_items, pillow.pixels

    def counted(items: Any, *arguments: Any) -> Any:
        found.extend(range(len(items)))
        return fill(items, *arguments)

    def counted_pixels(*arguments: Any) -> Any:
        found.append(0)
        return pixels(*arguments)

    monkeypatch.setattr(filling, "fill_items", counted)
    monkeypatch.setattr(pillow, "pixels", counted_pixels)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_a_dataset_keeps_is_decoded_once(way: str, both: Both, folder: Path, decoded: list[int]) -> None:
    def script() -> Any:
        loader = always_lazy(DataLoader(Keeps(folder, *WAYS[way]), 4))
        found = [list(loader) for _ in range(2)]
        decoded.clear()
        return [*found, list(loader), len(decoded)]

    both(script)  # in the third epoch nothing is decoded, as in plain


@pytest.mark.parametrize("way", WAYS)
def test_what_a_worker_keeps_is_equal(way: str, both: Both, folder: Path) -> None:
    def script() -> Any:
        loader = always_lazy(DataLoader(Keeps(folder, *WAYS[way]), 4, num_workers=1, persistent_workers=True))
        return [list(loader) for _ in range(3)]

    both(script)
