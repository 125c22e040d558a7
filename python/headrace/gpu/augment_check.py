"""A first augmentation on each GPU, compared with torch on the CPU: what gives other pixels is not used.

A Triton kernel gives way to torch's steps; a GPU on which those differ too does not augment.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.gpu.augment import OPERATIONS, PixelOperation, operations_on

if TYPE_CHECKING:
    import torch

__all__ = ["SAMPLES", "CheckedOperations", "checked_operations", "different_operations"]

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


def different_operations(device: torch.device | str, operations: Mapping[str, PixelOperation] = OPERATIONS) -> list[str]:
    """Return the names of the operations whose pixels on a device are not those of torch on the CPU, or that fail there.

    Raises torch's error if the device is out of memory, which says nothing about its pixels.
    """
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
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # torch's, Triton's, and those of the compilers that Triton calls
                same = False
            if not same:
                found.append(name)
                break
    return found


@dataclass(frozen=True, slots=True)
class CheckedOperations:
    """The operations with which a device augments.

    kernels: names of those that are Triton kernels. put_aside: names of kernels in whose place torch's steps are used, because
    they failed or gave other pixels. refusal: why the device shall not augment, or None.
    """

    operations: Mapping[str, PixelOperation]
    kernels: tuple[str, ...] = ()
    put_aside: tuple[str, ...] = ()
    refusal: str | None = None

    def describe(self) -> str:
        """Return what the operations are, in words for `explain`."""
        if not self.kernels and not self.put_aside:
            return "in torch"
        words = f"by Triton kernels ({', '.join(self.kernels)}) and torch" if self.kernels else "in torch"
        return words + (f"; the kernels of {', '.join(self.put_aside)} do not work here" if self.put_aside else "")


@functools.cache
def checked_operations(device: str) -> CheckedOperations:
    """Return the operations with which a device augments: each is tried once.

    Raises torch's error if the device is out of memory. Example: `checked_operations("cuda:0")`.
    """
    import torch

    on_device = torch.device(device)
    with torch.cuda.device(on_device) if on_device.type == "cuda" else nullcontext():  # Triton launches on the current one
        return _checked(device, operations_on(on_device))


def _checked(device: str, operations: Mapping[str, PixelOperation]) -> CheckedOperations:
    chosen = dict(operations)
    kernels = {name: operation for name, operation in chosen.items() if operation is not OPERATIONS[name]}
    put_aside = different_operations(device, kernels)
    chosen |= {name: OPERATIONS[name] for name in put_aside}
    different = different_operations(
        device, {name: chosen[name] for name in chosen if name not in kernels or name in put_aside}
    )
    refusal = f"{', '.join(different)} on this GPU gives other pixels than the CPU" if different else None
    return CheckedOperations(chosen, tuple(name for name in kernels if name not in put_aside), tuple(put_aside), refusal)
