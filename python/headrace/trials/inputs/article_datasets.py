"""The `Dataset` classes of the articles' scripts, after what their pages say: what a DataLoader reads in a trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.images.raster import open_raster
from headrace.trials.experiment.cells import Cell

__all__ = ["SLOW_READ_S", "ImageList", "InMemory", "SlowImages", "article_dataset"]

SLOW_READ_S = 0.05
"""Seconds that each read of the slow dataset takes: the article's class sleeps so long in `__getitem__`."""


class ImageList:
    """Images of a folder tree `ROOT/CLASS/image`, opened with Pillow; a gray image becomes RGB, as in the article."""

    def __init__(self, root: Path, transform: Callable[[Any], Any]) -> None:
        self.classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        self.items = [(str(file), label) for label, name in enumerate(self.classes) for file in sorted((root / name).iterdir())]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.items[index]
        image = open_raster(path)
        if image.mode != "RGB":
            image = image.convert("RGB")
        return self.transform(image), label


class SlowImages(ImageList):
    """`ImageList` in which reading each image takes `SLOW_READ_S` longer, as on slow storage."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(SLOW_READ_S)
        return ImageList.__getitem__(self, index)


class InMemory(ImageList):
    """`ImageList` that decodes and resizes all images when it is made and keeps them in memory; only the transform is left.

    The article reads them from pickles; the work of an epoch is the same. Workers share the memory of the process that made it.
    """

    def __init__(self, root: Path, transform: Callable[[Any], Any]) -> None:
        from PIL import Image

        super().__init__(root, transform)
        self.images = [open_raster(path).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR) for path, _ in self.items]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.images[index]), self.items[index][1]


def article_dataset(cell: Cell, path: Path, transform: Callable[[Any], Any]) -> Any:
    """Return the PyTorch dataset that the DataLoader of a cell reads. path: folder of class folders."""
    if cell.data == "decoded":
        return InMemory(path, transform)
    if cell.data == "slow":
        return SlowImages(path, transform)
    if cell.transform == "caltech":
        return ImageList(path, transform)
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(path), transform)
