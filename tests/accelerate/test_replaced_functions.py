"""Functions that a script has replaced are called by its own code alone, and by all of its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deferred_helpers import OwnImages, always_lazy
from headrace.accelerate.deferred import filling
from headrace.accelerate.lazy import opening
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets import folder as folders
from torchvision.transforms import v2

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]


class Halved:
    """A transform that headrace does not understand."""

    def __call__(self, image: Any) -> Any:
        return image * 0.5


CUT = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor(), Halved()])
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
CUT_TENSORS = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(24, antialias=True), TO_FLOAT, Halved()])


class Replacement:
    """A function of the script in the place of a library's: it counts its calls, and changes each seventh result."""

    def __init__(self, original: Any, change: Any) -> None:
        self.original, self.change, self.calls = original, change, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        made = self.original(*arguments, **named)
        return self.change(made) if self.calls % 7 == 0 else made


def mirrored(image: Any) -> Any:
    return ImageOps.mirror(image.convert("RGB"))


REPLACED: dict[str, tuple[Any, str, Any]] = {
    "Pillow's open": (Image, "open", mirrored),
    "torchvision's reader": (folders, "pil_loader", mirrored),
    "a draw": (transforms.RandomResizedCrop, "get_params", lambda box: (0, 0, 9, 9)),
    "torch's stack": (torch, "stack", lambda batch: batch + 1),
    "NumPy's array": (np, "array", lambda made: made[::-1].copy() if made.ndim == 3 else made),
}


@pytest.mark.parametrize("steps", [CUT, CUT_TENSORS], ids=["images", "tensors"])
@pytest.mark.parametrize("kind", [ImageFolder, OwnImages])
@pytest.mark.parametrize("name", REPLACED)
def test_a_replacement_is_called_as_often_as_in_plain(
    name: str, kind: Any, steps: Any, both: Both, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, own, change = REPLACED[name]
    opening._compare_operations.cache_clear()
    filling._first_images.compare_again()  # as in a new process

    def script() -> Any:
        with monkeypatch.context() as patched:
            replacement = Replacement(getattr(owner, own), change)
            static = isinstance(owner, type)
            patched.setattr(owner, own, staticmethod(lambda *given: replacement(*given)) if static else replacement)
            loader = always_lazy(DataLoader(kind(folder, steps), 5))
            return [[*batch] for _ in range(2) for batch in loader], replacement.calls

    both(script)
