"""A seeded training has the same losses to the last digit, plain and under the hook of `headrace run`."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "cifar10-jpeg-14k.tar"
IMAGES = 120


@pytest.fixture(scope="module")
def small_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images of 32 pixels: some of the CIFAR sample where it is, made ones elsewhere."""
    root = tmp_path_factory.mktemp("cifar") / "train"
    if SAMPLE.exists():
        with tarfile.open(SAMPLE) as tar:
            files = [one for one in tar if one.isfile() and "/train/" in f"/{one.name}" and one.name.endswith(".jpg")]
            for one in random.Random(0).sample(files, IMAGES):
                target = root.joinpath(*Path(one.name).parts[-2:])
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(one)
                assert content is not None
                target.write_bytes(content.read())
        return root
    for number in range(IMAGES):
        target = root / f"class {number % 10}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(target)
    return root


def losses(root: Path, workers: int, *, persistent: bool) -> list[float]:
    """Train ResNet-18 for two epochs as tutorials do. Return the loss of each step, and that of the validation."""
    torch.manual_seed(17)
    random.seed(17)
    np.random.seed(17)
    steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.2, 0.2, 0.2)]
    values = [
        transforms.ToTensor(),
        transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
        transforms.RandomErasing(0.2),
    ]
    augmented = transforms.Compose([*steps, *values])
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
    loader = DataLoader(ImageFolder(str(root), augmented), 32, shuffle=True, **options)
    plain = DataLoader(ImageFolder(str(root), transforms.ToTensor()), 40, **options)
    model = models.resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    found = []
    for _ in range(2):
        model.train()
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        model.eval()
        with torch.inference_mode():
            found += [torch.nn.functional.cross_entropy(model(images), labels).item() for images, labels in plain]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True), (3, False), (3, True)])
def test_the_losses_are_the_same(workers: int, persistent: bool, small_images: Path, request: pytest.FixtureRequest) -> None:
    before = losses(small_images, workers, persistent=persistent)
    lines: list[str] = request.getfixturevalue("taken_over")
    assert losses(small_images, workers, persistent=persistent) == before
    assert len(before) == 2 * (4 + 3) and any("the same batches, bit for bit" in line for line in lines)
