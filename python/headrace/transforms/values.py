"""Transforms from bytes to floats: data type and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import UsageError
from headrace.transforms.base import Transform, numbers_of

if TYPE_CHECKING:
    import torch

__all__ = ["ConvertImageDtype", "Normalize", "ToDtype", "ToTensor"]


@dataclass(frozen=True, slots=True)
class ToDtype(Transform):
    """Convert to a float dtype, which must be the Loader's `dtype`.

    dtype: "float32" (default), "float16", "bfloat16", or torch's dtype of that name; "uint8" changes nothing, and stands before
        another one.
    scale: map 0..255 to 0..1; default False: the values stay 0..255.

    Raises UsageError for any other dtype. Example: `ToDtype("float32", scale=True)`.
    """

    dtype: str | torch.dtype = "float32"
    scale: bool = False

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if name not in ("float32", "float16", "bfloat16", "uint8"):
            what = type(self).__name__
            raise UsageError(f"{what}: {self.dtype!r} is not offered; there are float32, float16, bfloat16, uint8")
        object.__setattr__(self, "dtype", name)


@dataclass(frozen=True, slots=True)
class ToTensor(ToDtype):
    """Map 0..255 to floats from 0 to 1: `ToDtype("float32", scale=True)`, by torchvision's older name.

    dtype: as in ToDtype; it must be the Loader's `dtype`. scale: default True.

    Raises UsageError for any other dtype. Example: `Compose([CenterCrop(224), ToTensor(), Normalize(mean, std)])`.
    """

    scale: bool = True


@dataclass(frozen=True, slots=True)
class ConvertImageDtype(ToDtype):
    """Map 0..255 to floats from 0 to 1: `ToDtype(dtype, scale=True)`, by torchvision's older name.

    dtype: as in ToDtype; it must be the Loader's `dtype`. scale: default True.

    Raises UsageError for any other dtype. Example: `ConvertImageDtype(torch.float32)`.
    """

    scale: bool = True


@dataclass(frozen=True, slots=True)
class Normalize(Transform):
    """Replace each value of a channel by `(value - mean) / std`. The Loader's `dtype` must be a float.

    mean, std: one number for each of R, G, B, or one for all, of values from 0 to 1 (from 0 to 255 after ToDtype(scale=False)).
    inplace: accepted for torchvision's sake; without effect.

    Raises UsageError for a wrong number of values, or a std of 0. Example: `Normalize(IMAGENET_MEAN, IMAGENET_STD)`.
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = numbers_of(getattr(self, name))
            if len(values) == 1:
                values *= 3
            if len(values) != 3:
                raise UsageError(f"Normalize: {name} must hold one value for each of R, G, B, not {len(values)}")
            object.__setattr__(self, name, values)
        if 0 in self.std:
            raise UsageError("Normalize: std must not be 0")
