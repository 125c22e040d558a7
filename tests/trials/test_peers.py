"""Loaders of other projects in trials: the same pixels where they are installed, their geometry with a stand-in where not."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from headrace.errors import UsageError
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import Source
from headrace.trials.measuring import peers
from headrace.trials.measuring.loaders import open_loader
from PIL import Image
from torchvision.transforms import RandomResizedCrop

pytestmark = pytest.mark.filterwarnings("ignore")

#: The functions of TensorFlow that the geometry uses, on NumPy arrays.
NUMPY_FOR_TENSORFLOW: Any = SimpleNamespace(
    float32=np.float64, int32=np.int64, cos=np.cos, sin=np.sin, round=np.round, minimum=np.minimum, stack=np.stack,
    zeros=np.zeros, constant=np.array, sqrt=np.sqrt, exp=np.exp, argmax=np.argmax, where=np.where,
    cast=lambda value, dtype: np.asarray(value).astype(dtype),
    random=SimpleNamespace(uniform=lambda shape, low=0.0, high=1.0: np.random.default_rng(3).uniform(low, high, shape)),
)  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six smooth photographs of two classes, none of them square."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(6):
        height, width = 260 + 20 * number, 400 - 15 * number
        y, x = np.mgrid[:height, :width]
        waves = [127 + 100 * np.sin(x / (20 + number) + channel) * np.cos(y / (30 + channel)) for channel in range(3)]
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.stack(waves, axis=2).astype(np.uint8)).save(folder / f"{number}.jpg", quality=90)
    return root


def pixels(cell: Cell, tree: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    batches = list(open_loader(cell, Source(tree, fixed=True)))
    return np.concatenate([np.asarray(images) for images, _ in batches]), [int(label) for _, some in batches for label in some]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("loader", "package", "transform", "load"),
    [
        ("tfdata", "tensorflow", "augmentation-load", 3),
        ("tfdata", "tensorflow", "imagenet", 1),
        ("dali-cpu", "nvidia.dali", "augmentation-load", 3),
    ],
)
def test_a_peer_gives_the_pixels_and_labels_of_pytorch(
    loader: str, package: str, transform: str, load: int, tree: Path
) -> None:
    if importlib.util.find_spec(package.partition(".")[0]) is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    wanted, labels = pixels(Cell(loader="pytorch", transform=transform, load=load, workers=0, batch_size=4), tree)
    cell = Cell(loader=loader, transform=transform, load=load, workers=2, batch_size=4)
    found, their_labels = pixels(cell, tree)
    assert found.dtype == np.uint8 and found.shape == wanted.shape and their_labels == labels
    assert np.abs(found.astype(int) - wanted).mean() <= 1.0  # what a trial takes for the same work
    loader_of_epochs = open_loader(cell, Source(tree))
    for _ in range(2):
        epoch = [(np.asarray(images), len(some)) for images, some in loader_of_epochs]
        assert [count for _, count in epoch] == [4, 2]
        assert all(images.dtype == np.float32 and images.shape[1:] == (3, 224, 224) for images, _ in epoch)


def test_the_rotation_of_tf_data_is_that_of_pillow() -> None:
    values = np.random.default_rng(0).integers(0, 255, (31, 46), dtype=np.uint8)
    a, b, c, d, e, f, *_ = peers._rotation(NUMPY_FOR_TENSORFLOW, math.radians(5.0), values.shape)
    y, x = np.mgrid[: values.shape[0], : values.shape[1]]
    from_x, from_y = np.round(a * x + b * y + c).astype(int), np.round(d * x + e * y + f).astype(int)
    inside = (from_x >= 0) & (from_x < values.shape[1]) & (from_y >= 0) & (from_y < values.shape[0])
    turned = np.where(inside, values[from_y.clip(0, values.shape[0] - 1), from_x.clip(0, values.shape[1] - 1)], 0)
    wanted = np.asarray(Image.fromarray(values).rotate(5.0, Image.Resampling.NEAREST))
    assert (turned == wanted).mean() > 0.99  # a centre on the edge between two pixels may fall to either
    assert (values == wanted).mean() < 0.5


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (200, 30), (30, 200), (32, 32)])
def test_the_box_of_tf_data_is_that_of_torchvision(size: tuple[int, int]) -> None:
    width, height = size
    image = Image.new("RGB", size)
    fixed = RandomResizedCrop.get_params(image, [1.0, 1.0], [1.0, 1.0])
    assert tuple(peers._box(NUMPY_FOR_TENSORFLOW, (height, width, 3), True)) == tuple(fixed)
    y, x, h, w = peers._box(NUMPY_FOR_TENSORFLOW, (height, width, 3), False)
    assert 0 <= y <= height - h and 0 <= x <= width - w and h > 0 and w > 0
    if 3 / 4 <= width / height <= 4 / 3:
        assert 0.06 <= h * w / (width * height) <= 1.0


@pytest.mark.parametrize(("loader", "transform"), [("ffcv", "imagenet"), ("tfdata", "caltech"), ("dali-cpu", "imagenet")])
def test_a_peer_refuses_operations_that_it_has_no_form_of(loader: str, transform: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{loader} has no form of '{transform}'"):
        open_loader(Cell(loader=loader, transform=transform), Source(tmp_path))
