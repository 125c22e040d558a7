"""A folder of small images of noise, for training runs whose accuracy does not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def noise_folder(root: Path) -> Path:
    """Write 32 JPEGs of 20 x 20 pixels below `root`/class0 and `root`/class1, and return `root`."""
    random_source = np.random.default_rng(0)
    for index in range(32):
        folder = root / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(random_source.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(folder / f"{index}.jpg")
    return root
