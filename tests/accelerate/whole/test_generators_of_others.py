"""Without workers only the generators from which items draw are led on: others are those of the script's threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]


def test_numbers_that_another_thread_draws_meanwhile_are_not_given_again(folder: Path, taken_over: list[str]) -> None:
    steps = transforms.Compose([RandomResizedCropAndInterpolation(24), transforms.ToTensor()])  # draws from Python's generator
    batches: Any = iter(DataLoader(ImageFolder(str(folder), steps), 4))
    not_filled, drawn = batches._not_filled, []

    def draws(job: Any) -> Any:
        drawn.append(float(torch.rand(1)))  # as another thread would
        return not_filled(job)

    batches._not_filled = draws
    assert len([*batches]) == len(drawn)
    assert len(set(drawn)) == len(drawn) > 3


@pytest.mark.parametrize("at", [0, 1])
def test_a_script_may_exchange_the_generator_of_numpy_within_a_pass(at: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        own, found = np.random.get_bit_generator(), []
        steps = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
        try:
            for number, batch in enumerate(DataLoader(ImageFolder(str(folder), steps), 4)):
                found.append([*batch])
                if number == at:
                    np.random.set_bit_generator(np.random.PCG64(3))
            return found, float(np.random.rand())
        finally:
            np.random.set_bit_generator(own)

    _, lines = both(script)
    assert any("numpy.random has another generator" in line for line in lines)
