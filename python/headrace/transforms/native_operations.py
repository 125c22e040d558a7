"""Each transform on single images as operations of the native engine: name, numbers, interpolation.

The native side reads them in `crates/headrace-core/src/program/op.rs`.
"""

from __future__ import annotations

import math

from headrace.errors import UsageError
from headrace.transforms.base import Transform
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
    TorchBlur,
)
from headrace.transforms.composition import Compose, RandomApply, Repeat
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

__all__ = ["CHANGES_COLOUR", "NATIVE_TRANSFORMS", "NEEDS_AFFINE", "Operation", "native_operations"]

Operation = tuple[str, list[float], str]

NATIVE_TRANSFORMS: dict[str, type[Transform]] = {
    kind.__name__: kind
    for kind in (
        *(RandomResizedCrop, Resize, CenterCrop, RandomCrop, Pad),
        *(RandomHorizontalFlip, RandomVerticalFlip, RandomRotation, RandomAffine),
        *(ColorJitter, RandomGrayscale, Grayscale, GaussianBlur, RandomInvert, RandomPosterize, RandomSolarize),
        *(RandomAutocontrast, RandomEqualize, RandomAdjustSharpness, PillowBlur, TorchBlur, Dilation, Erosion),
        *(RandAugment, TrivialAugmentWide, AutoAugment),
    )
}
"""The transforms that are one native operation, by name."""

_POLICIES = frozenset(
    {"rand_augment", "trivial_augment_wide", "auto_augment_imagenet", "auto_augment_cifar10", "auto_augment_svhn"}
)
_POINTWISE = {"color_jitter", "grayscale", "invert", "autocontrast", "equalize", "posterize", "solarize"}

#: Operations that may turn or shear the image: `fuse` decides how many samplings they take.
NEEDS_AFFINE = _POLICIES | {"rotation", "affine"}
#: Operations that may change pixel values other than by resampling.
CHANGES_COLOUR = _POLICIES | _POINTWISE | {"sharpness", "blur", "pillow_blur", "torch_blur", "dilate", "erode"}

_ABSENT = (math.nan, math.nan)


def native_operations(transform: Transform) -> list[Operation]:
    """Return the operations of a transform. Raise UsageError for a transform that does not work on single images."""
    if isinstance(transform, RandomApply):
        inner = [operation for part in transform.transforms for operation in native_operations(part)]
        return [("apply", [transform.p, float(len(inner))], ""), *inner]
    if isinstance(transform, Repeat):
        parts = transform.op.transforms if isinstance(transform.op, Compose) else (transform.op,)
        once = [operation for part in parts if isinstance(part, Transform) for operation in native_operations(part)]
        return once * transform.n
    operation = _geometry(transform) or _policy(transform) or _colour(transform)
    if operation is None:
        raise UsageError(f"{type(transform).__name__} cannot be used here", hint="put it at the end of the pipeline")
    return [operation]


def _geometry(step: Transform) -> Operation | None:
    match step:
        case RandomResizedCrop():
            numbers = [*_floats(step.size), *step.scale, *step.ratio]
            return ("random_resized_crop", numbers, _filter(step.interpolation))
        case Resize(size=int() as short):
            return ("resize_short", [float(short), float(step.max_size or 0)], _filter(step.interpolation))
        case Resize():
            return ("resize_exact", _floats(step.size), _filter(step.interpolation))
        case CenterCrop():
            return ("center_crop", _floats(step.size), "")
        case RandomCrop():
            return ("random_crop", [*_floats(step.size), *_floats(step.padding), float(step.pad_if_needed)], "")
        case Pad():
            return ("pad", [*_floats(step.padding), *_floats(step.fill)], "")
        case RandomHorizontalFlip():
            return ("flip_x", [step.p], "")
        case RandomVerticalFlip():
            return ("flip_y", [step.p], "")
        case RandomRotation():
            numbers = [*_floats(step.degrees), float(step.expand), *(step.center or _ABSENT), *_floats(step.fill)]
            return ("rotation", numbers, _filter(step.interpolation))
        case RandomAffine():
            numbers = [*_floats(step.degrees), *(step.translate or _ABSENT), *(step.scale or _ABSENT)]
            numbers += [*_floats(step.shear or ()), 0.0, 0.0, 0.0, 0.0][:4]
            return ("affine", [*numbers, *(step.center or _ABSENT), *_floats(step.fill)], _filter(step.interpolation))
    return None


def _policy(step: Transform) -> Operation | None:
    match step:
        case RandAugment():
            numbers = [float(step.num_ops), float(step.magnitude), float(step.num_magnitude_bins), float(step.version)]
            return ("rand_augment", [*numbers, *_floats(step.fill)], _filter(step.interpolation))
        case TrivialAugmentWide():
            numbers = [float(step.num_magnitude_bins), float(step.version)]
            return ("trivial_augment_wide", [*numbers, *_floats(step.fill)], _filter(step.interpolation))
        case AutoAugment():
            return (f"auto_augment_{step.policy}", [float(step.version), *_floats(step.fill)], _filter(step.interpolation))
    return None


def _colour(step: Transform) -> Operation | None:
    match step:
        case ColorJitter():
            ranges = (step.brightness, step.contrast, step.saturation, step.hue)
            return ("color_jitter", [edge for found in ranges for edge in _floats(found or _ABSENT)], "")
        case RandomGrayscale():
            return ("grayscale", [step.p], "")
        case Grayscale():
            return ("grayscale", [1.0], "")
        case GaussianBlur():
            return ("blur", [*_floats(step.kernel_size), *_floats(step.sigma)], "")
        case PillowBlur():
            return ("pillow_blur", _floats(step.radius), "")
        case TorchBlur():
            return ("torch_blur", [*_floats(step.kernel_size), *step.sigma, float(step.version)], "")
        case RandomInvert():
            return ("invert", [step.p], "")
        case RandomPosterize():
            return ("posterize", [step.p, float(step.bits)], "")
        case RandomSolarize():
            return ("solarize", [step.p, float(step.threshold)], "")
        case RandomAutocontrast():
            return ("autocontrast", [step.p], "")
        case RandomEqualize():
            return ("equalize", [step.p], "")
        case RandomAdjustSharpness():
            return ("sharpness", [step.p, step.sharpness_factor], "")
        case Dilation():
            return ("dilate", [float(step.size // 2)], "")
        case Erosion():
            return ("erode", [float(step.size // 2)], "")
    return None


def _floats(values: object) -> list[float]:
    assert isinstance(values, tuple)  # normalised by the transform's __post_init__
    return [float(value) for value in values]


def _filter(interpolation: object) -> str:
    return " or ".join(interpolation) if isinstance(interpolation, tuple) else str(interpolation)
