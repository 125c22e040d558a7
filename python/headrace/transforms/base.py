"""The base class of all transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

__all__ = ["Fill", "Interpolation", "Size", "Transform"]

Size: TypeAlias = int | Sequence[int]
"""One int, or (height, width), in pixels."""

Interpolation: TypeAlias = str | Enum
"""A filter's name ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"), or torchvision's InterpolationMode. Results
are Pillow's; those of "bilinear-int16" and "bicubic-int16" are torchvision v2's on uint8 tensors."""

Fill: TypeAlias = float | Sequence[float] | None
"""A colour, 0 to 255: one number for R, G and B, or three; None is black."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One image operation as data. `isinstance(x, Transform)` is true of every transform that headrace compiles.

    A transform is immutable, hashable by value and holds no random state: a Loader draws from (seed, epoch, record). Every
    transform raises UsageError when it is made with an argument that is out of range.
    """
