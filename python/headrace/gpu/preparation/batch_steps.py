"""The drawn steps of a batch: RandomErasing, MixUp, CutMix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Erase", "Mix"]


@dataclass(frozen=True, slots=True)
class Erase:
    """A draw of RandomErasing: per image the rectangle (top, left, height, width) or None, and the fill value per channel."""

    boxes: Sequence[tuple[int, int, int, int] | None]
    values: tuple[float, float, float]  # R, G, B, on the scale of the output (normalised if the output is)


@dataclass(frozen=True, slots=True)
class Mix:
    """A draw of MixUp or CutMix for one batch. Image n is mixed with image n - 1.

    share: weight of the image itself, 0 to 1; its partner's is the rest. rectangle: CutMix's (top, bottom, left, right) that
    comes from the partner; None for MixUp.
    """

    share: float
    rectangle: tuple[int, int, int, int] | None = None
