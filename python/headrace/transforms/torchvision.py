"""torchvision's transforms as headrace's, and what to use for those that headrace does not offer.

A class is recognised by its name and its library, never by a base class, because a subclass may do anything. Arguments are read
from the object: headrace's transforms have torchvision's names. torchvision is not imported.
`headrace run` has a translation of its own, which also keeps the random numbers of the script (`accelerate/transforms`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from headrace.errors import UsageError
from headrace.transforms.base import Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice, RandomErasing
from headrace.transforms.composition import Compose, Identity, RandomApply, RandomOrder
from headrace.transforms.geometry import CenterCrop, RandomResizedCrop, Resize
from headrace.transforms.native_operations import NATIVE_TRANSFORMS
from headrace.transforms.values import Normalize, ToDtype, ToTensor

__all__ = ["NOT_OFFERED", "flattened"]

_FUNCTION = "a Python function on one uint8 [H, W, 3] image (numpy) may stand in a Compose"
_TAKES_NO = "leave it out: a Loader gives RGB tensors"
_STRONGER = "RandAugment, TrivialAugmentWide and AutoAugment are there"
_CORNERS = "use Views: Views([CenterCrop(224), Compose([CenterCrop(224), RandomHorizontalFlip(1.0)])]) gives a tuple of batches"

NOT_OFFERED = MappingProxyType(
    {
        "AugMix": f"mixing several augmentations of one image is not offered; {_STRONGER}",
        "CenterCropOrPad": "use CenterCrop, which pads smaller images",
        "Cutmix": "use CutMix",
        "CutOut": "use RandomErasing(p=1.0, value=0)",
        "Cutout": "use RandomErasing(p=1.0, value=0)",
        "DataLoader": "use headrace.Loader",
        "ElasticTransform": f"use RandomAffine(degrees, translate, scale, shear); {_FUNCTION}",
        "FiveCrop": _CORNERS,
        "GaussianNoise": _FUNCTION,
        "HorizontalFlip": "use RandomHorizontalFlip(p)",
        "ImageClassification": "use imagenet_eval(224, normalize=True)",
        "JPEG": f"compression is not offered as an augmentation; {_FUNCTION}",
        "LinearTransformation": f"use Normalize; {_FUNCTION}",
        "Mixup": "use MixUp(alpha=0.2)",
        "PILToTensor": _TAKES_NO,
        "RGB": _TAKES_NO,
        "RandomChannelPermutation": _FUNCTION,
        "RandomIoUCrop": "boxes are not offered; use RandomResizedCrop",
        "RandomPerspective": "use RandomAffine(degrees, translate, scale, shear)",
        "RandomPhotometricDistort": "use ColorJitter(brightness, contrast, saturation, hue)",
        "RandomResize": "use RandomResizedCrop(size, scale)",
        "RandomResizedCropAndInterpolation": 'use RandomResizedCrop(224, interpolation=("bilinear", "bicubic"))',
        "RandomShortestSize": "use Resize and RandomCrop, or RandomResizedCrop",
        "RandomSizedCrop": "use RandomResizedCrop",
        "RandomZoomOut": "use Pad, or RandomAffine(0, scale=(0.5, 1.0))",
        "SanitizeBoundingBoxes": "boxes are not offered: with_json=True gives a Loader's batches the JSON beside each image",
        "Scale": "use Resize",
        "ScaleJitter": "use RandomResizedCrop(size, scale)",
        "Sequential": "use Compose",
        "TenCrop": _CORNERS,
        "ToImage": _TAKES_NO,
        "ToNumpy": 'give the Loader output="numpy"',
        "ToPILImage": "leave it out: dataset[i] gives a Pillow image, a Loader gives tensors",
        "ToPureTensor": _TAKES_NO,
        "VerticalFlip": "use RandomVerticalFlip(p)",
        "create_transform": "use imagenet_train(224, normalize=True) or imagenet_eval(224, normalize=True)",
        "functional": "call a transform on an image: CenterCrop(224)(image)",
        "v2": "the names of torchvision's v2 are in headrace.transforms itself",
    }
)
"""Names of other libraries, and what to use instead."""

_NOTHING = frozenset(
    {"Identity", "MaybePILToTensor", "PILToTensor", "RGB", "ToImage", "ToNumpy", "ToPILImage", "ToPureTensor"}
)  # what a Loader does anyway
_OF_OTHER_NAMES: dict[str, type[Transform]] = {
    "CenterCropOrPad": CenterCrop,
    "MaybeToTensor": ToTensor,
    "RandomResizedCropAndInterpolation": RandomResizedCrop,
}
_SAME = NATIVE_TRANSFORMS | _OF_OTHER_NAMES | {kind.__name__: kind for kind in (CutMix, MixUp, Normalize, RandomErasing)}
_LIBRARIES = ("torchvision.transforms.", "timm.data.transforms.")
_USUAL = {"fill": (0, None), "padding_mode": ("constant",)}  # values of arguments that headrace's transforms do not take


def flattened(transform: object) -> tuple[Transform | Callable[[Any], Any], ...]:
    """Return the steps of a pipeline: of Composes, lists, and torchvision's and timm's transforms as headrace's.

    Raises UsageError for a step of torchvision or timm that has no equal, naming it.
    """
    steps: list[Transform | Callable[[Any], Any]] = []
    for step in _steps(transform):
        if isinstance(step, ToDtype) and step.dtype == "uint8":
            if any(isinstance(one, ToDtype | Normalize) for one in steps):
                raise UsageError("ToDtype('uint8') after floats cannot be compiled", hint="leave it out")
            continue  # images are uint8 until they become floats
        steps.append(step)
    return tuple(steps)


def _steps(step: Any) -> Iterator[Any]:
    if isinstance(step, Compose):
        parts: Any = step.transforms
    elif isinstance(step, list | tuple):
        parts = step
    elif type(step).__module__ == "torch.nn.modules.container" and type(step).__name__ == "Sequential":
        parts = list(step)
    elif f"{type(step).__module__}.".startswith(_LIBRARIES) and not isinstance(step, type):
        translated = _translated(step)
        parts = translated.transforms if isinstance(translated, Compose) else None
        if parts is None:
            yield translated
            return
    else:
        yield step
        return
    for part in parts:
        yield from _steps(part)


def _translated(step: Any) -> Transform | Callable[[Any], Any]:
    """Return a transform of torchvision or timm as one of headrace's. Raise UsageError if it has no equal."""
    name = type(step).__name__
    if name in _NOTHING:
        return Identity()
    match name:
        case "Compose":
            return Compose(step.transforms)
        case "ToTensor" if step.__module__.startswith("torchvision."):
            return ToTensor()
        case "MaybeToTensor":
            return ToTensor()
        case "ConvertImageDtype" | "ToDtype":
            return _with_reason(step, lambda: ToDtype(step.dtype, scale=getattr(step, "scale", True)))
        case "Lambda":
            function: Callable[[Any], Any] = getattr(step, "lambd", None) or step.lambd
            return function
        case "RandomApply":
            return RandomApply(_parts(step), p=step.p)
        case "RandomChoice":
            return RandomChoice(_parts(step), p=getattr(step, "p", None))
        case "RandomOrder":
            return RandomOrder(_parts(step))
        case "ImageClassification":  # weights.transforms() of torchvision's models
            crop, shorter = ([*size, *size][:2] for size in (step.crop_size, step.resize_size))
            resize = Resize(shorter[0] if len(step.resize_size) == 1 else shorter, interpolation=step.interpolation)
            return Compose([resize, CenterCrop(crop), ToTensor(), Normalize(step.mean, step.std)])
    kind = _SAME.get(name)
    if kind is None:
        use = NOT_OFFERED.get(name)
        raise UsageError(
            f"{type(step).__module__.split('.')[0]}'s {name} has no equal here{f': {use}' if use else ''}",
            hint=None if use else f"take it out of the transform; {_FUNCTION}",
        )
    return _with_reason(step, lambda: _with_arguments_of(step, kind))


def _parts(step: Any) -> list[Any]:
    """Return the transforms inside of one, each as one of headrace's."""
    found = []
    for part in step.transforms:
        inner = flattened(part)
        found.append(inner[0] if len(inner) == 1 else Compose(inner))
    return found


def _with_arguments_of(step: Any, kind: type[Transform]) -> Transform:
    """Return a transform of `kind` with the arguments of a transform of another library."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "version":  # of the automatic policies: that of torchvision's transforms
            values["version"] = 2 if ".v2." in f"{type(step).__module__}." else 1
        elif hasattr(step, field.name):
            values[field.name] = getattr(step, field.name)
        elif field.name not in ("inplace", "antialias", "num_classes"):
            raise UsageError(f"it does not say its {field.name}", hint="make it by headrace.transforms")
    for name, usual in _USUAL.items():
        if name not in values and getattr(step, name, usual[0]) not in usual:
            raise UsageError(f"{name}={getattr(step, name)!r} is not offered", hint="Pad(padding, fill) pads with a colour")
    return kind(**values)


def _with_reason(step: object, make: Callable[[], Transform]) -> Transform:
    try:
        return make()
    except UsageError as error:
        library = type(step).__module__.split(".")[0]
        raise UsageError(f"{library}'s {type(step).__name__} cannot be translated: {error}", hint=error.hint) from error
