"""Image transforms as data, with torchvision v2's names, arguments, defaults and distributions.

A transform describes an operation; `headrace.transforms.compile` compiles a pipeline of them for the native engine. Where a
result differs from torchvision's, docs/reference/exactness.md gives the size of the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.transforms.base import InterpolationMode, Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice, RandomErasing
from headrace.transforms.colour import (
    ColorJitter,
    Dilation,
    Erosion,
    GaussianBlur,
    Grayscale,
    PillowBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from headrace.transforms.composition import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Compose,
    Identity,
    Lambda,
    RandomApply,
    RandomOrder,
    Repeat,
    Views,
    imagenet_eval,
    imagenet_train,
)
from headrace.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)
from headrace.transforms.policies import AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide
from headrace.transforms.values import ConvertImageDtype, Normalize, ToDtype, ToTensor

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AutoAugment",
    "AutoAugmentPolicy",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "CutMix",
    "Dilation",
    "Erosion",
    "GaussianBlur",
    "Grayscale",
    "Identity",
    "InterpolationMode",
    "Lambda",
    "MixUp",
    "Normalize",
    "Pad",
    "PillowBlur",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Repeat",
    "Resize",
    "ToDtype",
    "ToTensor",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "imagenet_eval",
    "imagenet_train",
]


if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        from headrace.system.text.arguments import unknown_name
        from headrace.transforms.torchvision import NOT_OFFERED

        raise unknown_name("headrace.transforms", name, __all__, NOT_OFFERED)


def __dir__() -> list[str]:
    return __all__
