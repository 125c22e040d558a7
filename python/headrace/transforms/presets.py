"""The usual pipelines for ImageNet, and its channel statistics."""

from __future__ import annotations

from headrace.transforms.arguments import size_pair
from headrace.transforms.base import Size, Transform
from headrace.transforms.composition import Compose
from headrace.transforms.geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from headrace.transforms.values import Normalize

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "imagenet_eval", "imagenet_train"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The channel means (RGB, values in [0, 1]) that torchvision's models use; source: torchvision.transforms._presets."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The channel standard deviations (RGB, values in [0, 1]) that torchvision's models use; same source."""


def imagenet_train(size: Size = 224, *, normalize: bool = False) -> Compose:
    """Return the transforms for training, not compiled: Compose([RandomResizedCrop(size), RandomHorizontalFlip()]).

    size: output (height, width) in pixels; one int means a square. Default 224.
    normalize: end with Normalize by ImageNet's statistics, which needs a Loader with a float `dtype`. Default False.

    Raises UsageError for a size that is not positive. Example: `Loader(data, 256, imagenet_train(224))`.
    """
    return Compose([RandomResizedCrop(size), RandomHorizontalFlip(), *_normalization(normalize)])


def imagenet_eval(size: Size = 224, *, resize: int | None = None, normalize: bool = False) -> Compose:
    """Return the transforms for evaluation, not compiled: Compose([Resize(resize), CenterCrop(size)]).

    size: output (height, width) in pixels; one int means a square. Default 224.
    resize: length of the shorter side before the crop, in pixels; None: the longer side of `size` / 0.875 (256 for 224).
    normalize: end with Normalize by ImageNet's statistics, which needs a Loader with a float `dtype`. Default False.

    Raises UsageError for a size that is not positive. Example: `Loader(data, 256, imagenet_eval(224), shuffle=False)`.
    """
    height, width = size_pair(size, "imagenet_eval")
    shorter = resize if resize is not None else round(max(height, width) / 0.875)
    return Compose([Resize(shorter), CenterCrop(size), *_normalization(normalize)])


def _normalization(normalize: bool) -> list[Transform]:
    return [Normalize(IMAGENET_MEAN, IMAGENET_STD)] if normalize else []
