"""Lists of samples that the loop changes in place: workers have those with which they were started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])


def shorter(samples: list[Any]) -> None:
    del samples[-5:]


def longer(samples: list[Any]) -> None:
    samples.extend([(path, 9) for path, _ in samples[:3]])


def shifted(samples: list[Any]) -> None:
    samples.pop(0)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("change", [shorter, longer, shifted])
def test_samples_that_the_loop_changes(change: Any, options: Any, nested: bool, both: Both, folder: Path) -> None:
    def script() -> Any:
        images = ImageFolder(str(folder), STEPS)
        dataset: Any = ConcatDataset([Subset(images, range(len(images))), images]) if nested else images
        loader = DataLoader(dataset, 3, **options)
        found: list[Any] = []
        for _ in range(2):
            try:
                for number, batch in enumerate(loader):
                    found.append(batch)
                    if number == 1:
                        change(images.samples)
            except IndexError as error:
                found.append(str(error).partition("\n")[0])
        return found

    both(script)
