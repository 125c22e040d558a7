"""The drawn steps of a batch: RandomErasing, MixUp, CutMix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Erase", "Mix"]


@dataclass(frozen=True, slots=True)
class Erase:
    """RandomErasing, drawn: for each image the rectangle (top, left, height, width) or None, and the values to fill it with."""

    boxes: Sequence[tuple[int, int, int, int] | None]
    values: tuple[float, float, float]  # in the units of the output


@dataclass(frozen=True, slots=True)
class Mix:
    """MixUp or CutMix, drawn. The partner of image n is image n - 1.

    share: of its own that an image keeps in MixUp. rectangle: CutMix's (top, bottom, left, right); None for MixUp.
    """

    share: float
    rectangle: tuple[int, int, int, int] | None = None
