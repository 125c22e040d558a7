"""The reason for which a loader is not taken over whole names what stands in the script."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import functional

LOGGER = logging.getLogger(__name__)
TENSOR = transforms.ToTensor()


def label_of(path: str) -> int:
    return int(re.sub("[^0-9]", "", Path(path).stem))


def shuffled(values: list[int]) -> list[int]:
    random.shuffle(values)
    return values


def logged(path: str) -> int:
    print(path)
    return 0


class Logging:
    def __call__(self, tensor: Any) -> Any:
        print(tensor)
        return tensor


class Own(Dataset[Any]):
    """Items whose label, or whose image, is made by a function."""

    def __init__(self, root: Path, label: Callable[..., Any], image: Callable[..., Any]) -> None:
        self.paths = sorted(str(path) for path in root.glob("*/*.jpg"))
        self.label, self.image = label, image

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.image(image), self.label(self.paths[index])


def _tensor(image: Any) -> Any:
    return TENSOR(image)


CASES: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "re": ("its items call re.sub", label_of, _tensor),
    "compiled": ("its items call re.compile", lambda path: bool(re.compile("a").match(path)), _tensor),
    "choice": ("its items call random.choice", lambda path: random.choice([1, 2]), _tensor),
    "randint": ("its items call random.randint", lambda path: random.randint(0, 3), _tensor),
    "uniform": ("its items call random.uniform", lambda path: random.uniform(0, 3), _tensor),
    "random": ("its items call random.random", lambda path: random.random(), _tensor),
    "shuffle": ("its items call random.shuffle", lambda path: shuffled([1, 2])[0], _tensor),
    "numpy": ("its items call numpy.random.rand", lambda path: np.random.rand(), _tensor),
    "torch": ("its items call torch.rand", lambda path: torch.rand(1), _tensor),
    "json": ("its items call json.loads", lambda path: json.loads("3"), _tensor),
    "listdir": ("its items call os.listdir", lambda path: len(os.listdir(".")), _tensor),  # noqa: PTH208
    "time": ("its items call time.time", lambda path: time.time(), _tensor),
    "method": ("its items call logging.Logger.info", lambda path: LOGGER.info("x"), _tensor),
    "print": ("its items call print", logged, _tensor),
    "resize": (
        "its items call torchvision.transforms.functional.resize",
        lambda path: 0,
        lambda image: TENSOR(functional.resize(image, [32, 32])),
    ),
    "to_tensor": (
        "its items call torchvision.transforms.functional.to_tensor",
        lambda path: 0,
        lambda image: torchvision.transforms.functional.to_tensor(image),
    ),
    "own": ("its items call print", lambda path: 0, transforms.Compose([TENSOR, Logging()])),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_names_what_stands_in_the_script(name: str, folder: Path, taken_over: list[str]) -> None:
    reason, label, image = CASES[name]
    iter(DataLoader(Own(folder, label, image), 3))
    assert re.search(rf"{re.escape(reason)}[;),]", taken_over[-1]), taken_over[-1]
