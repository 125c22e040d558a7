"""A first augmentation on each GPU, compared with torch on the CPU: a GPU with other pixels does not augment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from headrace.gpu.augment import OPERATIONS
from headrace.gpu.colour_operations import Numbers

if TYPE_CHECKING:
    import torch

__all__ = ["SAMPLES", "augments_alike", "different_operations"]

_TURN = [0.96, 0.28, -3.25, -0.28, 0.96, 5.5, 9.0, 90.0, 200.0, 0.5, 0.25, -6.0]
_SHIFT = [1.0, 0.0, 3.0, 0.0, -1.0, 21.0, 0.0, 0.0, 0.0]

SAMPLES: dict[str, list[list[float]]] = {
    "brightness": [[0.3], [1.7]],
    "contrast": [[0.3], [1.7]],
    "saturation": [[0.3], [1.7]],
    "sharpness": [[0.3], [1.7]],
    "hue": [[31.0], [200.0]],
    "posterize": [[3.0]],
    "solarize": [[100.0]],
    "blur": [[3.0, 0.21, 0.58, 0.21, 0.07, 0.24, 0.38, 0.24, 0.07]],
    "bilinear": [_TURN, _SHIFT],
    "nearest": [_TURN, _SHIFT],
}
"""Numbers to try each operation with; an operation that is not named takes none."""


def different_operations(
    device: torch.device | str, operations: Mapping[str, Callable[[torch.Tensor, Numbers], torch.Tensor]] = OPERATIONS
) -> list[str]:
    """Return the names of the operations whose pixels on a device are not those of torch on the CPU, or that fail there."""
    import torch

    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (2, 22, 30, 3), dtype=np.uint8)
    noise[1] = noise[1] // 2 + np.arange(30, dtype=np.uint8)[None, :, None]  # another histogram
    images, found = torch.from_numpy(noise), []
    for name, operation in operations.items():
        for row in SAMPLES.get(name, [[]]):
            numbers = np.tile(np.asarray(row, dtype=np.float64), (2, 1))
            try:
                same = torch.equal(operation(images.to(device), numbers).cpu(), OPERATIONS[name](images, numbers))
            except RuntimeError:  # torch's
                same = False
            if not same:
                found.append(name)
                break
    return found


@functools.cache
def augments_alike(device: str) -> str | None:
    """Return why a device shall not augment, or None: each operation is tried once."""
    different = different_operations(device)
    return f"{', '.join(different)} on this GPU gives other pixels than the CPU" if different else None
