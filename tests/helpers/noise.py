"""Folders of small images of noise, two classes, for runs that only have to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def noise_folder(root: Path) -> Path:
    """`root` with 32 JPEGs of 20 x 20 pixels below `class0` and `class1`."""
    dice = np.random.default_rng(0)
    for index in range(32):
        folder = root / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(dice.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(folder / f"{index}.jpg")
    return root
