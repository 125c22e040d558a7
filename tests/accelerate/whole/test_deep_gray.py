"""Gray files of 16 bits among others: Pillow makes all above 255 white, where a headrace Loader keeps the upper 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deferred_helpers import OwnImages
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
STEPS = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])


@pytest.mark.parametrize("kind", [ImageFolder, OwnImages])
@pytest.mark.parametrize("format_name", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("workers", [0, 1])
def test_deep_gray_is_clipped_as_by_pillow(workers: int, format_name: str, kind: Any, both: Both, folder: Path) -> None:
    values = np.add.outer(np.arange(60), np.arange(80)).astype(np.uint16) * 4  # some below 256
    Image.fromarray(values).save(folder / "class_1" / "image_003.jpg", format_name)  # none of the three compared items
    Image.fromarray(values * 100).save(folder / "class_2" / "image_001.jpg", format_name)

    _, lines = both(lambda: list(DataLoader(kind(folder, STEPS), 4, num_workers=workers)))
    assert any("the same batches, bit for bit" in line for line in lines)
