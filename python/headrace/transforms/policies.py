"""Automatic augmentation policies: random operations from a fixed list. The size of the image stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.errors import UsageError
from headrace.transforms.base import Fill, Interpolation, Transform, check_fields, rgb, sampling_filter

__all__ = ["AutoAugment", "AutoAugmentPolicy", "RandAugment", "TrivialAugmentWide"]


@dataclass(frozen=True, slots=True)
class RandAugment(Transform):
    """Apply random operations of a fixed strength, from a list of 14 (Cubuk et al. 2020, arXiv 1909.13719).

    num_ops: operations for each image, default 2.
    magnitude: strength, 0 to num_magnitude_bins - 1. Default 9.
    num_magnitude_bins: number of strengths, default 31.
    interpolation: "nearest" (default) or "bilinear", for operations that move pixels.
    fill: colour outside the image, 0 to 255: one number, or (R, G, B). None: black.
    version: round the thresholds of solarize and posterize as `torchvision.transforms` does (1) or its `v2` does (2, default).

    Raises UsageError for an argument out of range. Example: `RandAugment(num_ops=2, magnitude=9)`.
    """

    operation = "rand_augment"
    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill = None
    version: int = 2

    def __post_init__(self) -> None:
        check_fields(self, "num_ops", "num_magnitude_bins")
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise UsageError(f"RandAugment: magnitude {self.magnitude!r} is not one of {self.num_magnitude_bins} bins")
        object.__setattr__(self, "interpolation", sampling_filter(self.interpolation, "RandAugment"))
        _check_version(self.version, "RandAugment")
        object.__setattr__(self, "fill", rgb(self.fill, "RandAugment"))


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(Transform):
    """Apply one random operation of random strength, from a list of 14 (Müller and Hutter 2021, arXiv 2103.10158).

    num_magnitude_bins: number of strengths, default 31.
    interpolation: "nearest" (default) or "bilinear", for operations that move pixels.
    fill: colour outside the image, 0 to 255: one number, or (R, G, B). None: black.
    version: round the thresholds of solarize and posterize as `torchvision.transforms` does (1) or its `v2` does (2, default).

    Raises UsageError for an argument out of range. Example: `TrivialAugmentWide()`.
    """

    operation = "trivial_augment_wide"
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill = None
    version: int = 2

    def __post_init__(self) -> None:
        check_fields(self, "num_magnitude_bins")
        object.__setattr__(self, "interpolation", sampling_filter(self.interpolation, "TrivialAugmentWide"))
        _check_version(self.version, "TrivialAugmentWide")
        object.__setattr__(self, "fill", rgb(self.fill, "TrivialAugmentWide"))


class AutoAugmentPolicy(Enum):
    """The policies of `AutoAugment`, by torchvision's names; their values are strings, which it takes too."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


@dataclass(frozen=True, slots=True)
class AutoAugment(Transform):
    """Apply one of 25 pairs of operations of a learned policy (Cubuk et al. 2019, arXiv 1805.09501).

    policy: "imagenet" (default), "cifar10", "svhn", or torchvision's AutoAugmentPolicy.
    interpolation: "nearest" (default) or "bilinear", for operations that move pixels.
    fill: colour outside the image, 0 to 255: one number, or (R, G, B). None: black.
    version: round the thresholds of solarize and posterize as `torchvision.transforms` does (1) or its `v2` does (2, default).

    Raises UsageError for an argument out of range. Example: `AutoAugment("cifar10")`.
    """

    operation = "auto_augment"
    policy: str | Enum = "imagenet"
    interpolation: Interpolation = "nearest"
    fill: Fill = None
    version: int = 2

    def __post_init__(self) -> None:
        name = getattr(self.policy, "value", self.policy)
        if name not in ("imagenet", "cifar10", "svhn"):
            raise UsageError(f"AutoAugment: no policy {name!r}; there are imagenet, cifar10, svhn")
        object.__setattr__(self, "policy", name)
        object.__setattr__(self, "interpolation", sampling_filter(self.interpolation, "AutoAugment"))
        _check_version(self.version, "AutoAugment")
        object.__setattr__(self, "fill", rgb(self.fill, "AutoAugment"))


def _check_version(version: object, what: str) -> None:
    if version not in (1, 2):
        raise UsageError(f"{what}: version must be 1 or 2 (of torchvision's transforms), not {version!r}")
