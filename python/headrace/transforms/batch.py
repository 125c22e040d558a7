"""Transforms of a finished batch, on the device that the batch is on: erasing and mixing; and a choice, also of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UsageError
from headrace.transforms.base import Transform, check_probability, positive_range
from headrace.transforms.composition import native_only

__all__ = ["CutMix", "MixUp", "RandomChoice", "RandomErasing", "is_of_batches"]


@dataclass(frozen=True, slots=True)
class RandomErasing(Transform):
    """Replace a random rectangle of each image by a colour or by noise (Zhong et al. 2017, arXiv 1708.04896).

    It comes after Normalize, and each image has its own draws.

    p: probability for each image, default 0.5.
    scale: range of the rectangle's area as a share of the image. Default: 0.02 to 0.33.
    ratio: range of the rectangle's height / width, drawn on a log scale. Default: 0.3 to 3.3.
    value: a number, one for each channel, or "random": a draw from the normal distribution for each value. Default 0.
    inplace: accepted for torchvision's sake; without effect.

    Raises UsageError for an argument out of range. Example: `RandomErasing(p=0.25, value="random")`.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random"] = 0.0
    inplace: bool = False

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomErasing")
        object.__setattr__(self, "scale", positive_range(self.scale, "RandomErasing: scale"))
        object.__setattr__(self, "ratio", positive_range(self.ratio, "RandomErasing: ratio"))
        if self.scale[1] > 1:
            raise UsageError(f"RandomErasing: scale is a share of the image, at most 1, not {self.scale!r}")
        if self.value == "random":
            return
        try:
            values = (self.value,) if isinstance(self.value, int | float) else tuple(float(value) for value in self.value)
        except (TypeError, ValueError):
            values = ()
        if len(values) not in (1, 3):
            raise UsageError(f"RandomErasing: value must be a number, three of them, or 'random', not {self.value!r}")
        object.__setattr__(self, "value", tuple(float(value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(Transform):
    """Blend each image with its neighbour in the batch (Zhang et al. 2018, arXiv 1710.09412).

    One share is drawn for the whole batch, from Beta(alpha, alpha). Labels become float32 [N, num_classes].

    alpha: parameter of the Beta distribution, above 0. Default 1.0.
    num_classes: columns of the labels; None: the number of classes of the dataset.

    Raises UsageError for an argument out of range. Example: `MixUp(alpha=0.2)`.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self.alpha, self.num_classes, "MixUp")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(Transform):
    """Replace a rectangle of each image by that of its neighbour in the batch (Yun et al. 2019, arXiv 1905.04899).

    One rectangle is drawn for the whole batch; its share of the area comes from Beta(alpha, alpha). Labels become float32
    [N, num_classes].

    alpha: parameter of the Beta distribution, above 0. Default 1.0.
    num_classes: columns of the labels; None: the number of classes of the dataset.

    Raises UsageError for an argument out of range. Example: `CutMix(alpha=1.0)`.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self.alpha, self.num_classes, "CutMix")


def _check_mixing(alpha: float, num_classes: int | None, what: str) -> None:
    if not alpha > 0:
        raise UsageError(f"{what}: alpha must be positive, not {alpha!r}")
    if num_classes is not None and num_classes < 1:
        raise UsageError(f"{what}: num_classes must be positive, not {num_classes!r}")


@dataclass(frozen=True, slots=True)
class RandomChoice(Transform):
    """Apply one of several transforms: of MixUp, CutMix and RandomErasing one to each batch, of others one to each image.

    transforms: a list of headrace's own transforms; a Compose in it is one choice.
    p: weight of each, 0 or more; None: equal chances. The attribute holds probabilities that sum to 1.

    Raises UsageError for Python functions, a mixture of both kinds, or weights that do not fit.
    Example: `RandomChoice([MixUp(alpha=0.2), CutMix()])`.
    """

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        choices = tuple(self.transforms)
        of_batches = [isinstance(choice, _OF_BATCHES) for choice in choices]
        if not choices or (any(of_batches) and not all(of_batches)):
            raise UsageError(
                "RandomChoice: a list of transforms is needed, all of single images or all of whole batches",
                hint="MixUp, CutMix and RandomErasing are those of whole batches",
            )
        if not any(of_batches):
            native_only(choices, "RandomChoice")
        weights = (1.0,) * len(choices) if self.p is None else tuple(float(weight) for weight in self.p)
        if len(weights) != len(choices) or min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(f"RandomChoice: p must hold a weight of 0 or more for each transform, not {self.p!r}")
        object.__setattr__(self, "transforms", choices)
        object.__setattr__(self, "p", tuple(weight / sum(weights) for weight in weights))


_OF_BATCHES = (RandomErasing, MixUp, CutMix)


def is_of_batches(step: object) -> bool:
    """Return whether a transform works on the finished batch."""
    return isinstance(step, _OF_BATCHES) or (isinstance(step, RandomChoice) and isinstance(step.transforms[0], _OF_BATCHES))
