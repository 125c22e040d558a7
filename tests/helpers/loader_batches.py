"""All batches of one pass of a Loader, for tests that compare two ways of reading a dataset."""

from __future__ import annotations

from typing import Any

import headrace
import numpy as np

Batches = list[tuple[np.ndarray, np.ndarray]]


def batches(path: object, *, image_size: int = 48, **options: Any) -> Batches:
    """Return the images and labels of each batch of one pass over the dataset at `path`."""
    settings: dict[str, Any] = {"batch_size": 8, "seed": 1, "drop_last": False, "threads": 2, "output": "numpy"} | options
    transform = headrace.transforms.imagenet_train(image_size)
    with headrace.Loader(headrace.open(str(path)), transform=transform, **settings) as loader:
        return [(images.copy(), labels.copy()) for images, labels in loader]


def are_equal(left: Batches, right: Batches) -> bool:
    """Return whether two passes gave the same batches in the same order."""
    return len(left) == len(right) and all(
        np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(left, right, strict=True)
    )
