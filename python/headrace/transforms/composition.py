"""Transforms made of other transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError
from headrace.transforms.arguments import check_probability
from headrace.transforms.base import Transform

__all__ = ["Compose", "RandomApply", "Repeat", "Views"]


@dataclass(frozen=True, slots=True)
class Compose(Transform):
    """Apply transforms one after the other.

    transforms: transforms and plain functions. A function takes and returns one image, uint8 [H, W, 3] (numpy), and runs in
        Python. Inner Composes are flattened.

    Raises UsageError for an item that is neither. Example: `Compose([Resize(256), CenterCrop(224)])`.
    """

    transforms: tuple[Transform | Callable[[Any], Any], ...]

    def __init__(self, transforms: Sequence[Transform | Callable[[Any], Any]]) -> None:
        flat: list[Transform | Callable[[Any], Any]] = []
        for number, transform in enumerate(transforms):
            if isinstance(transform, Compose):
                flat += transform.transforms
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
        object.__setattr__(self, "transforms", _native_only(self.transforms, "RandomApply"))


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
        _native_only([self.op], "Repeat")


def _native_only(transforms: Sequence[object], what: str) -> tuple[Transform, ...]:
    """Return the transforms with inner Composes flattened. Raise UsageError for Python functions."""
    flat: list[Transform] = []
    for transform in transforms:
        if isinstance(transform, Compose):
            flat += _native_only(transform.transforms, what)
        elif isinstance(transform, Transform):
            flat.append(transform)
        else:
            raise UsageError(
                f"{what}: {transform!r} is not one of headrace's transforms", hint="put Python functions outside of it"
            )
    return tuple(flat)


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
