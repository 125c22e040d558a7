"""Transforms made of other transforms, and the usual pipelines for ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError
from headrace.transforms.base import Size, Transform, check_probability, size_pair
from headrace.transforms.geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from headrace.transforms.values import Normalize

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Compose",
    "Identity",
    "Lambda",
    "RandomApply",
    "RandomOrder",
    "Repeat",
    "Views",
    "imagenet_eval",
    "imagenet_train",
    "native_only",
]


@dataclass(frozen=True, slots=True)
class Compose(Transform):
    """Apply transforms one after the other.

    transforms: transforms and plain functions. A function takes and returns one image, uint8 [H, W, 3] (numpy), and runs in
        Python. Inner Composes are flattened.

    Raises UsageError for an item that is neither. Example: `Compose([Resize(256), CenterCrop(224)])`.
    """

    transforms: tuple[Transform | Callable[[Any], Any], ...]

    def __init__(self, transforms: Sequence[Transform | Callable[[Any], Any]]) -> None:
        if not isinstance(transforms, Iterable):
            raise UsageError(f"Compose takes a list of transforms, not {transforms!r}", hint="Compose([first, second])")
        flat: list[Transform | Callable[[Any], Any]] = []
        for number, transform in enumerate(transforms):
            if isinstance(transform, Compose):
                flat += transform.transforms
            elif isinstance(transform, list | tuple):
                flat += Compose(transform).transforms
            elif isinstance(transform, Transform) or callable(transform):
                flat.append(transform)
            else:
                raise UsageError(f"Compose: item {number} is neither a transform nor callable: {transform!r}")
        object.__setattr__(self, "transforms", tuple(flat))


@dataclass(frozen=True, slots=True)
class RandomApply(Transform):
    """Apply all of several transforms, one after the other, or none of them.

    transforms: headrace's own transforms, which must not change the size of the image.
    p: probability of applying all, default 0.5.

    Raises UsageError for a Python function among them. Example: `RandomApply([ColorJitter(0.4, 0.4)], p=0.8)`.
    """

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomApply")
        object.__setattr__(self, "transforms", native_only(self.transforms, "RandomApply"))


@dataclass(frozen=True, slots=True)
class Repeat(Transform):
    """Apply a transform several times, each time with its own draws: an augmentation load. torchvision has no such transform.

    op: one of headrace's own transforms, or a Compose of them.
    n: how many times, 0 to 1000.

    Raises UsageError for a Python function, or another n. Example: `Repeat(RandomRotation(10), 8)`.
    """

    op: Transform
    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or not 0 <= self.n <= 1000:
            raise UsageError(f"Repeat: n must be an int from 0 to 1000, not {self.n!r}")
        native_only([self.op], "Repeat")


def native_only(transforms: Sequence[object], what: str) -> tuple[Transform, ...]:
    """Return the transforms with inner Composes flattened. Raise UsageError for Python functions."""
    flat: list[Transform] = []
    for transform in transforms:
        if isinstance(transform, Compose):
            flat += native_only(transform.transforms, what)
        elif isinstance(transform, Transform):
            flat.append(transform)
        else:
            raise UsageError(
                f"{what}: {transform!r} is not one of headrace's transforms",
                hint="put Python functions outside of it; torchvision's transforms have the same names in headrace.transforms",
            )
    return tuple(flat)


_MOST_ORDERED = 4  # of which there are 24 orders


@dataclass(frozen=True, slots=True)
class RandomOrder(Transform):
    """Apply all of several transforms, for each image in an order of its own.

    transforms: two to four of headrace's own transforms.

    Raises UsageError for a Python function among them, and for more. Example: `RandomOrder([GaussianBlur(5), RandomInvert()])`.
    """

    transforms: Sequence[Transform]

    def __post_init__(self) -> None:
        transforms = native_only(self.transforms, "RandomOrder")
        if not 1 <= len(transforms) <= _MOST_ORDERED:
            raise UsageError(
                f"RandomOrder: {len(transforms)} transforms; it takes 1 to {_MOST_ORDERED}",
                hint="ColorJitter orders its four changes itself; put others in a Compose",
            )
        object.__setattr__(self, "transforms", transforms)


def Identity(*_: Any, **__: Any) -> Compose:
    """Return the transform that changes nothing: an empty Compose. Arguments are ignored, as by `torch.nn.Identity`.

    Example: `RandomErasing(0.1) if train else Identity()`.
    """
    return Compose([])


def Lambda(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `function`: a Compose takes functions as they are. It gets one image, uint8 [H, W, 3] (numpy), not a Pillow image.

    Raises UsageError for what cannot be called. Example: `Compose([CenterCrop(224), Lambda(lambda image: 255 - image)])`.
    """
    if not callable(function):
        raise UsageError(f"Lambda: {function!r} cannot be called", hint="give a function of one image, uint8 [H, W, 3]")
    return function


@dataclass(frozen=True, slots=True)
class Views(Transform):
    """Make several views of each image, for self-supervised training. The loader yields a tuple of image batches.

    transforms: one pipeline for each view; each has its own draws, and sizes may differ (multi-crop).

    Raises UsageError for an empty list, or Views within Views. Example: `Views([augment, augment])`.
    """

    transforms: Sequence[Transform | Callable[[Any], Any]]

    def __post_init__(self) -> None:
        views = tuple(self.transforms)
        if not views or any(isinstance(view, Views) or not (isinstance(view, Transform) or callable(view)) for view in views):
            raise UsageError("Views: a list of one or more transforms is needed, without Views in it")
        object.__setattr__(self, "transforms", views)


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
