"""Fixtures of the training tests: a small image folder, and the environment of child processes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def two_colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train` (32 images) and `val` (14) of the classes `blue` and `red`."""
    root = tmp_path_factory.mktemp("two-colours")
    random_source = np.random.default_rng(0)
    for part, per_class in (("train", 16), ("val", 7)):
        for name, colour in {"blue": (40, 60, 200), "red": (200, 50, 40)}.items():
            (root / part / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = np.clip(np.array(colour) + random_source.normal(0, 40, (36, 36, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{index}.jpg")
    return root


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """Variables for child processes: they find the tests' models, and use one thread each."""
    return os.environ | {"PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
