"""Image transforms as data, with torchvision v2's names, arguments, defaults and distributions.

A transform describes an operation; `headrace.transforms.compile` compiles a pipeline of them for the native engine. Where a
result differs from torchvision's, docs/reference/exactness.md gives the size of the difference.
"""

from __future__ import annotations

from headrace.transforms.base import Transform
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
from headrace.transforms.composition import Compose, RandomApply, Repeat, Views
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
from headrace.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from headrace.transforms.presets import IMAGENET_MEAN, IMAGENET_STD, imagenet_eval, imagenet_train
from headrace.transforms.values import Normalize, ToDtype

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Dilation",
    "Erosion",
    "GaussianBlur",
    "Grayscale",
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
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Repeat",
    "Resize",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "imagenet_eval",
    "imagenet_train",
]


def __dir__() -> list[str]:
    return __all__
