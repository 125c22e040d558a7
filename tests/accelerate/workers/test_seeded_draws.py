"""Loaders that are taken over whole give plain's batches bit for bit: each transform's random draws, in plain's order."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from seeded import require_equal_passes, taken_over_whole, torchs_own
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

CROP = [v1.RandomResizedCrop(48, (0.2, 0.9)), v1.RandomHorizontalFlip(0.3)]
FLOATS = [v1.ToTensor(), v1.Normalize([0.4], [0.2])]
NEAREST, BICUBIC = v1.InterpolationMode.NEAREST, v1.InterpolationMode.BICUBIC


class MocoBlur:
    """As MoCo v2 has it."""

    def __call__(self, image: Any) -> Any:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class DinoBlur:
    """As DINO has it."""

    def __init__(self, p: float) -> None:
        self.prob = p

    def __call__(self, image: Any) -> Any:
        do_it = random.random() <= self.prob
        if not do_it:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class BarlowBlur:
    """As Barlow Twins has it."""

    def __call__(self, image: Any) -> Any:
        if random.random() < 0.4:
            sigma = random.random() * 1.9 + 0.1
            return image.filter(ImageFilter.GaussianBlur(sigma))
        return image


class NumpySolarize:
    """It draws from NumPy's generator, and decides the other way round."""

    def __call__(self, image: Any) -> Any:
        if np.random.rand() > 0.4:
            return image
        return ImageOps.solarize(image)


class TorchMirror:
    """It compares a tensor of single precision."""

    def __call__(self, image: Any) -> Any:
        return ImageOps.mirror(image) if torch.rand(1) < 0.7 else image


class TorchGray:
    """It compares a number of torch's, and hands over to a transform that draws."""

    def __init__(self) -> None:
        self.inner = v1.RandomGrayscale(0.5)

    def __call__(self, image: Any) -> Any:
        return self.inner(image) if torch.rand(1).item() < 0.7 else image


STACKS: dict[str, list[Any]] = {
    "evaluation": [v1.Resize(60), v1.CenterCrop(48), v1.ToTensor()],
    "training": [*CROP, *FLOATS],
    "two crops of one image": [v1.RandomResizedCrop(90), v1.RandomResizedCrop(30, ratio=(0.5, 3.0)), *FLOATS],
    "a scale that often fails": [v1.RandomResizedCrop(24, scale=(0.9, 3.0), ratio=(0.2, 5.0)), *FLOATS],
    "v2, bicubic": [v2.RandomResizedCrop(48, interpolation=BICUBIC), v2.RandomVerticalFlip(), v2.PILToTensor()],
    "colour": [v1.RandomResizedCrop(48), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomHorizontalFlip(), v1.ToTensor()],
    "a jitter of nothing": [v1.ColorJitter(), *CROP, v2.ColorJitter(), v1.ToTensor()],
    "v2, some colour": [
        v2.Resize((50, 40)),
        v2.ColorJitter(contrast=(0.5, 3.0), hue=0.5),
        v2.RandomGrayscale(0.3),
        v2.PILToTensor(),
    ],
    "cut and flipped": [v1.Resize((70, 80)), v1.RandomCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor()],
    "cut where one side fits": [v1.Resize((48, 80)), v1.RandomCrop(48), v1.ToTensor()],
    "v2, cut where one side fits": [v2.Resize((48, 80)), v2.RandomCrop(48), v2.PILToTensor()],
    "cut where both sides fit": [v1.Resize((48, 48)), v1.RandomCrop(48), v2.RandomCrop(48), v1.ToTensor()],
    "padded": [v1.RandomCrop(90, padding=(1, 2, 3, 4), pad_if_needed=True), v1.ToTensor()],
    "v2, padded": [v2.RandomCrop(90, padding=(1, 2, 3, 4), pad_if_needed=True), v2.PILToTensor()],
    "turned": [v1.RandomRotation(20), v1.RandomResizedCrop(48), v1.ToTensor()],
    "v2, moved": [
        v2.Resize((60, 50)),
        v2.RandomAffine(9, (0.1, 0.2), (0.8, 1.3), (1, 2, 3, 4), "bilinear", 99),
        v2.PILToTensor(),
    ],
    "moved": [v1.Resize((60, 50)), v1.RandomAffine(9, (0.1, 0.2), shear=7), v1.ToTensor()],
    "tones": [
        *(v1.Resize((60, 50)), v1.RandomInvert(0.3), v1.RandomSolarize(80, 0.6), v1.RandomPosterize(3, 0.1)),
        *(v1.RandomAutocontrast(0.7), v1.RandomEqualize(0.9), v1.RandomAdjustSharpness(2.0, 0.2), v1.ToTensor()),
    ],
    "v2, tones": [
        *(v2.Resize((60, 50)), v2.RandomInvert(0.3), v2.RandomSolarize(80, 0.6), v2.RandomPosterize(3, 0.1)),
        *(v2.RandomAutocontrast(0.7), v2.RandomEqualize(0.9), v2.RandomAdjustSharpness(2.0, 0.2), v2.PILToTensor()),
    ],
    "TrivialAugmentWide": [v1.Resize((60, 50)), v1.TrivialAugmentWide(), v1.ToTensor()],
    "v2, TrivialAugmentWide": [v2.Resize((60, 50)), v2.TrivialAugmentWide(), v2.PILToTensor()],
    "RandAugment": [v1.Resize((60, 50)), v1.RandAugment(3), v1.ToTensor()],
    "v2, RandAugment": [v2.Resize((60, 50)), v2.RandAugment(3), v2.PILToTensor()],
    **{
        f"{name}, AutoAugment {policy.value}": [module.Resize((60, 50)), module.AutoAugment(policy), module.PILToTensor()]
        for name, module in (("v1", v1), ("v2", v2))
        for policy in v1.AutoAugmentPolicy
    },
    "SimCLR": [
        *(v1.RandomResizedCrop(48), v1.RandomHorizontalFlip()),
        *(v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), v1.RandomGrayscale(p=0.2)),
        *(v1.RandomApply([v1.GaussianBlur(5, (0.1, 2.0))], p=0.5), v1.ToTensor()),
    ],
    "nested": [
        v1.RandomResizedCrop(48),
        v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1), v1.ColorJitter(0)], p=0.8),
        v2.RandomApply([v1.RandomSolarize(128, 0.6), v1.RandomApply([v1.RandomHorizontalFlip()])], 0.3),
        v1.ToTensor(),
    ],
    "v2, tensors": [v2.ToImage(), v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)],
    "v2, tensors, padded": [v2.ToImage(), v2.Resize((30, 20)), v2.RandomCrop(32, 9), v2.RandomVerticalFlip()],
    "v2, blurred tensors": [v2.ToImage(), v2.RandomResizedCrop(40), v2.RandomApply([v2.GaussianBlur(9)])],
    "flip behind": [v1.Resize((33, 35)), v1.GaussianBlur(3), v1.ToTensor(), v1.RandomHorizontalFlip()],
    "erasing": [v1.Resize((40, 40)), v1.ToTensor(), v1.RandomErasing(p=0.7)],
    "erasing with colours": [*CROP, *FLOATS, v1.RandomErasing(0.5, value=(0.1, 0.2, 0.3)), v1.RandomErasing(0.5, (0.5, 0.9))],
    "v2, erasing bytes": [v2.Resize((40, 40)), v2.PILToTensor(), v2.RandomErasing(0.6, value=7)],
    "MoCo": [*CROP, v1.RandomApply([MocoBlur()], p=0.5), *FLOATS],
    "DINO": [*CROP, DinoBlur(1.0), DinoBlur(0.3), *FLOATS],
    "Barlow Twins": [*CROP, BarlowBlur(), NumpySolarize(), *FLOATS],
    "own decisions": [*CROP, TorchMirror(), TorchGray(), *FLOATS],
}


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STACKS)
def test_each_transform_draws_as_in_plain(name: str, workers: int, folder: Path) -> None:
    loader = DataLoader(ImageFolder(str(folder), v1.Compose(STACKS[name])), 6, shuffle=True, num_workers=workers)
    found = require_equal_passes(loader)
    assert sum(len(labels) for _, labels in found[0]) == 20


class Views(Dataset[Any]):
    """Several views of an image, made in the order that `plan` says."""

    def __init__(self, root: Path, make: Any) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.jpg"))
        self.make = make
        self.crop = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])
        self.other = v1.Compose([v1.RandomCrop(24, pad_if_needed=True), v1.ToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.make(self, Image.open(self.paths[index]).convert("RGB"), index)


def forwards(self: Views, image: Any, index: int) -> Any:
    return self.crop(image), self.crop(image), self.other(image), index


def backwards(self: Views, image: Any, index: int) -> Any:
    last = self.other(image)
    second = self.crop(image)
    return {"first": self.crop(image), "second": second, "last": last, "index": index}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("make", [forwards, backwards])
def test_views_draw_in_the_order_of_the_code(make: Any, workers: int, folder: Path) -> None:
    loader = DataLoader(Views(folder, make), 3, shuffle=True, num_workers=workers)
    require_equal_passes(loader, items=True)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_draw_on_their_own_streams(workers: int, persistent: bool, folder: Path) -> None:
    loader = DataLoader(
        ImageFolder(str(folder), v1.Compose([*CROP, *FLOATS])),
        3,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent,
    )
    first, second = require_equal_passes(loader)
    assert not torch.equal(first[0][0], second[0][0])


def seed_all(worker: int) -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def seed_by_worker(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    np.random.seed(torch.initial_seed() % 2**31)
    random.seed(info.seed + worker)
    torch.manual_seed(torch.initial_seed() + info.id)


@pytest.mark.parametrize("init", [seed_all, seed_by_worker])
def test_a_worker_init_fn_seeds_as_in_a_worker(init: Any, folder: Path) -> None:
    steps = [*CROP, v1.RandomApply([MocoBlur()]), NumpySolarize(), *FLOATS]
    loader = DataLoader(ImageFolder(str(folder), v1.Compose(steps)), 3, num_workers=2, worker_init_fn=init)
    first, second = require_equal_passes(loader)
    assert torch.equal(first[0][0], second[0][0]) == (init is seed_all)


IMAGES = 25_000 if "HEADRACE_TEST_LONG" in os.environ else 600
"""The number of images for each transform. With `HEADRACE_TEST_LONG`, all transforms together draw more than 10^6 numbers."""

RANGES: dict[str, list[Any]] = {
    "crop, narrow": [v1.RandomResizedCrop(9, (0.01, 0.02), (1.0, 1.0))],
    "crop, whole": [v1.RandomResizedCrop(9, (1.0, 1.0), (0.999, 1.001))],
    "crop, wide ratios": [v2.RandomResizedCrop((9, 5), (0.3, 1.7), (0.01, 100.0))],
    "crops one after the other": [v1.RandomResizedCrop(20, ratio=(0.2, 0.3)), v1.RandomResizedCrop(9, ratio=(3.0, 9.0))],
    "cut": [v1.RandomCrop((9, 5), padding=(9, 3), pad_if_needed=True)],
    "turned": [v1.Resize((9, 9)), v2.RandomRotation((-180, 180))],
    "moved": [v1.Resize((9, 9)), v1.RandomAffine((-3, 90), (0.5, 0.0), (0.1, 3.0), (-80, 80))],
    "all colours": [v1.Resize((9, 9)), v1.ColorJitter(1.0, 1.0, 1.0, 0.5)],
    "one colour": [v2.Resize((9, 9)), v2.ColorJitter(hue=(-0.1, 0.5)), v2.ColorJitter(saturation=(0.0, 9.0))],
    "decisions": [
        *(v1.Resize((9, 9)), v1.RandomHorizontalFlip(0.0), v1.RandomVerticalFlip(1.0), v1.RandomGrayscale(0.999)),
        *(v2.RandomInvert(1e-3), v1.RandomApply([v1.RandomSolarize(1, 0.5)], 0.25)),
    ],
    "erased": [v1.Resize((9, 9)), v1.ToTensor(), v1.RandomErasing(0.9, (0.001, 0.999), (0.01, 50.0))],
    "blurred": [v1.Resize((9, 9)), v1.GaussianBlur(3, (0.01, 9.0))],
    "policies": [v1.Resize((9, 9)), v1.RandAugment(4, 30), v2.TrivialAugmentWide(2), v1.AutoAugment()],
    "own": [v1.RandomResizedCrop(9), DinoBlur(0.5), BarlowBlur(), NumpySolarize(), TorchMirror(), TorchGray()],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make nine files of all proportions."""
    root = tmp_path_factory.mktemp("small") / "images"
    for number, size in enumerate([(1, 1), (1, 40), (40, 1), (9, 9), (8, 10), (13, 7), (31, 17), (3, 64), (64, 63)]):
        path = root / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(values).save(path, quality=95, subsampling=number % 3)
    return root


@pytest.mark.matrix(keep=4)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RANGES)
def test_many_images_draw_as_in_plain(name: str, small: Path) -> None:
    steps = RANGES[name]
    steps = steps if any(isinstance(step, v1.ToTensor) for step in steps) else [*steps, v1.PILToTensor()]
    dataset = ImageFolder(str(small), v1.Compose(steps))
    sampler = RandomSampler(dataset, replacement=True, num_samples=IMAGES)
    loader = DataLoader(dataset, 100, sampler=sampler, num_workers=2)
    assert _digests(taken_over_whole(loader), loader) == _digests(torchs_own, loader)


def _digests(make: Any, loader: Any) -> list[str]:
    torch.manual_seed(23)
    return [hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest() for images, labels in make(loader)]
