"""Compare a GPU's first augmentation with torch on the CPU: operations that give other pixels are not used.

A Triton kernel gives way to torch's steps, also when it fails later; a GPU on which those differ too does not augment.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from headrace.gpu.augmentation.augment import OPERATIONS, PixelOperation, augment, kind, operations_on
from headrace.gpu.augmentation.colour_operations import OPERATIONS as COLOUR_OPERATIONS
from headrace.gpu.augmentation.colour_operations import Numbers

if TYPE_CHECKING:
    import torch

__all__ = ["SAMPLES", "SIZES", "CheckedOperations", "YieldingKernel", "checked_operations", "different_operations"]

_TURN = [0.96, 0.28, -3.25, -0.28, 0.96, 5.5, 9.0, 90.0, 200.0, 0.5, 0.25, -6.0]
_SHIFT = [1.0, 0.0, 3.0, 0.0, -1.0, 21.0, 0.0, 0.0, 0.0]
_SCALE = [0.5, 0.0, 2.0, 0.0, 0.75, 4.0, 50.0, 60.0, 70.0]
_SHEAR = [1.0, 0.25, -4.0, 0.125, 1.0, -1.5, 5.0, 6.0, 7.0, 0.5, 0.25, -3.0, 0.0, -1.0, 19.0]

SAMPLES: dict[str, list[list[float]]] = {
    **{name: [[number] for number in samples] for name, (_, samples) in COLOUR_OPERATIONS.items() if samples},
    "sharpness": [[0.3], [1.7]],
    "blur": [[3.0, 0.21, 0.58, 0.21, 0.07, 0.24, 0.38, 0.24, 0.07], [3.0, 0.25, 0.5, 0.25, 0.1, 0.2, 0.4, 0.2, 0.1]],
    "bilinear": [_TURN, _SHIFT, _SCALE, _SHEAR],  # pairs of neighbours have one edge, none, and two
    "nearest": [_TURN, _SHIFT, _SCALE, _SHEAR],
}
"""Parameters with which each operation is tried, two neighbouring rows at a time; operations that are not listed take none."""

SIZES = ((22, 30), (32, 48))
"""Heights and widths of the images to try operations on: Triton compiles separate kernels for sizes divisible by 16."""


def different_operations(device: torch.device | str, operations: Mapping[str, PixelOperation] = OPERATIONS) -> list[str]:
    """Return the names of the operations that fail on a device, or whose pixels there differ from torch's on the CPU.

    Raises torch's error if the device is out of memory, which says nothing about its pixels.
    """
    import torch

    found = []
    for name, operation in operations.items():
        for images, (first, second) in product(_noise(), _pairs(name)):
            passes = [[(name, first)], [(name, second)]]
            expected = augment(images.clone(), passes, OPERATIONS)
            try:
                same = torch.equal(augment(images.to(device, copy=True), passes, {name: operation}).cpu(), expected)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # torch's, Triton's, and those of the compilers that Triton calls
                same = False
            if not same:
                found.append(name)
                break
    return found


def _noise() -> list[torch.Tensor]:
    """Return two images of each size, with different histograms."""
    import torch

    random, found = np.random.default_rng(0), []
    for height, width in SIZES:
        noise = random.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        noise[1] = noise[1] // 2 + np.arange(width, dtype=np.uint8)[None, :, None]
        found.append(torch.from_numpy(noise))
    return found


def _pairs(name: str) -> list[tuple[list[float], list[float]]]:
    """Return pairs of sample rows of an operation, one row for each of two images: each row and the next of its kind."""
    found = []
    rows = SAMPLES.get(name, [[]])
    for at, row in enumerate(rows):
        later = rows[at + 1 :] + rows[: at + 1]
        found.append((row, next(other for other in later if kind((name, other)) == kind((name, row)))))
    return found


@dataclass(slots=True)
class YieldingKernel:
    """A Triton kernel that is replaced by torch operations after its first failure: it may not compile for some images.

    Example: `YieldingKernel("hue", augment_kernels.hue)(images, numbers)`.
    """

    name: str
    kernel: PixelOperation
    has_failed: bool = False

    def __call__(self, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        """Do the operation. Raises torch's errors."""
        import torch

        if not self.has_failed:
            try:
                return self.kernel(images, numbers)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # torch's, Triton's, and those of the compilers that Triton calls
                self.has_failed = True
        return OPERATIONS[self.name](images, numbers)


@dataclass(frozen=True, slots=True)
class CheckedOperations:
    """The augmentation operations that passed their pixel check on one device (`checked_operations`).

    operations: the functions by name. kernels: names of those that are Triton kernels. put_aside: names of Triton kernels that
    failed or gave other pixels than the CPU; torch's operations replace them. refusal: why the device may not augment, or None.
    """

    operations: Mapping[str, PixelOperation]
    kernels: tuple[str, ...] = ()
    put_aside: tuple[str, ...] = ()
    refusal: str | None = None

    def describe(self) -> str:
        """Return how the device augments, in words for `explain`: "in torch", or by which Triton kernels."""
        if not self.kernels and not self.put_aside:
            return "in torch"
        failed = [name for name in self.kernels if getattr(self.operations[name], "has_failed", False)]
        working, aside = [name for name in self.kernels if name not in failed], [*self.put_aside, *failed]
        words = f"by Triton kernels ({', '.join(working)}) and torch" if working else "in torch"
        return words + (f"; the kernels of {', '.join(aside)} do not work here" if aside else "")


@functools.cache
def checked_operations(device: str) -> CheckedOperations:
    """Return the augmentation operations for a device, those whose pixels equal torch's on the CPU.

    A Triton kernel that differs is replaced by torch's operation. If that differs too, `refusal` says so, and the device must
    not augment.

    The check runs once per process and device. Raises torch's error if the device is out of memory. Example:
    `checked_operations("cuda:0")`.
    """
    import torch

    on_device = torch.device(device)
    with torch.cuda.device(on_device) if on_device.type == "cuda" else nullcontext():  # Triton launches on the current one
        return _checked(device, operations_on(on_device))


def _checked(device: str, operations: Mapping[str, PixelOperation]) -> CheckedOperations:
    chosen = dict(operations)
    kernels = {name: operation for name, operation in chosen.items() if operation is not OPERATIONS[name]}
    put_aside = different_operations(device, kernels)
    for name, kernel in kernels.items():
        chosen[name] = OPERATIONS[name] if name in put_aside else YieldingKernel(name, kernel)
    different = different_operations(
        device, {name: chosen[name] for name in chosen if name not in kernels or name in put_aside}
    )
    refusal = f"{', '.join(different)} on this GPU gives other pixels than the CPU" if different else None
    return CheckedOperations(chosen, tuple(name for name in kernels if name not in put_aside), tuple(put_aside), refusal)
