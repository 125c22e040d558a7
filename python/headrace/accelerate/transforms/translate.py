"""Translate torchvision and timm transforms into headrace's.

The transforms on a Pillow image have up to three parts, in this order:

geometry    transforms that move pixels or change colours, as `NativeTransform(name, arguments)`;
pointwise   the script's own objects that make a tensor and change each value by itself (ToTensor, Normalize, …). A table of
            their results replaces them (`pointwise.py`), so no rounding can differ;
erasings    what sets parts of the finished tensor to a value, as `Erasing` (RandomErasing).

Each `NativeTransform` says how the script's object draws its random numbers (`draw`), so that they are drawn natively from the
same generators, in the same order (`draws.py`).

A class is recognised by the full name of its exact type, never by a base class, because a subclass may do anything. This module
does not import torchvision; a script that uses torchvision has imported it.

Sources: torchvision 0.19 to 0.29, `transforms/transforms.py` and `transforms/v2/`; timm 1.0, `data/transforms.py`. Arguments
whose meaning differs between these versions are refused.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.accelerate.runtime.unsupported import Unsupported, no_equivalent
from headrace.accelerate.transforms.augmentation_tables import require_own_tables
from headrace.accelerate.transforms.draws import FIXED, TORCH, Draw, Erasing, erasing, happens, is_second, logarithms
from headrace.accelerate.transforms.flat_transforms import LIBRARIES, flatten
from headrace.accelerate.transforms.names import TIMM, V1, V1_AUTOAUGMENT, V2, display_name, full_name, interpolation_name
from headrace.accelerate.transforms.tensor_resize import resizes_tensors_alike
from headrace.accelerate.transforms.torch_blur import blur_refusal
from headrace.transforms.base import native_schema
from headrace.transforms.native_operations import CHANGES_COLOUR, NATIVE_TRANSFORMS

__all__ = [
    "COLOURS_WITH_PROBABILITY",
    "NativeTransform",
    "Steps",
    "Trace",
    "TransformParts",
    "changes_nothing",
    "draws",
    "is_known",
    "is_own",
    "is_random",
    "makes_tensor",
    "translate",
]

#: The interpolations for which the native resampler equals Pillow bit for bit.
PILLOW_FILTERS = frozenset({"bilinear", "bicubic", "lanczos"})


@dataclass(frozen=True, slots=True, repr=False)
class NativeTransform:
    """One transform of `headrace.transforms`: its name and arguments, which may be `NativeTransform` objects too.

    `draw`: how the script's object draws the numbers of the transform.
    """

    name: str
    arguments: MappingProxyType[str, Any]
    draw: Draw = FIXED

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.arguments.items())})"

    __repr__ = __str__


Steps = tuple[NativeTransform, ...]
"""The native steps of one transform of the script: none for one that only makes a tensor."""

Trace = Callable[[Any, Callable[[Any], Steps]], Steps]
"""Function that translates a transform of the script's own (`script_code.own_transforms`).

It is given the transform, and the function that translates a transform of a library which the code of the first one calls.
"""


@dataclass(frozen=True, slots=True)
class TransformParts:
    """A translated transform in three parts: geometry, pointwise, erasings (see the module's docstring)."""

    geometry: tuple[NativeTransform, ...]
    pointwise: tuple[Callable[[Any], Any], ...]
    erasings: tuple[Erasing, ...]


def is_known(transform: object, trace: Trace) -> bool:
    """Return whether `translate` knows the class of each step. It may still refuse an argument or the order of steps."""
    try:
        operations = list(flatten(transform))
        known = (_IDENTITY, _TO_TENSOR, _POINTWISE, _ERASINGS, _GEOMETRY, _APPLIES)
        return bool(operations) and all(
            any(full_name(one) in table for table in known) or (is_own(one) and callable(one) and _is_traced(one, trace))
            for one in operations
        )
    except Unsupported:
        return False


def _is_traced(operation: Any, trace: Trace) -> bool:
    _on_image(operation, trace)  # raises Unsupported
    return True


def makes_tensor(transform: object) -> bool:
    """Return whether a known transform turns a Pillow image into a tensor."""
    return any(full_name(operation) in _TO_TENSOR for operation in flatten(transform))


def translate(transform: object, trace: Trace | None = None) -> TransformParts:
    """Translate a script's transform into native parts. Raise `Unsupported` naming the first step without an equivalent.

    `trace`: translates the script's own transforms. None: they are refused.

    A flip after the conversion to a tensor moves before it. That cannot change a value: a flip only moves pixels, and a
    pointwise transform does not depend on the position. Crops and resizes of torchvision v2's uint8 tensors move before the
    conversion too.
    """
    geometry: list[NativeTransform] = []
    pointwise: list[Callable[[Any], Any]] = []
    erasings: list[Erasing] = []
    for operation in flatten(transform):
        name = full_name(operation)
        kind = display_name(operation)
        if changes_nothing(operation):
            continue
        if erasings and name not in _ERASINGS:
            raise Unsupported(f"transform {kind} comes after RandomErasing")
        if name in _TO_TENSOR:
            if pointwise and name not in _TO_TENSOR_TWICE:
                raise Unsupported(f"transform {kind} is applied to a tensor")
            pointwise.append(operation)
        elif name in _POINTWISE or name in _ERASINGS:
            if not pointwise:
                raise Unsupported(f"transform {kind} is applied to a Pillow image")
            if name in _POINTWISE:
                pointwise.append(operation)
            else:
                erasings.append(erasing(operation))
        elif pointwise:
            geometry.append(_on_tensor(operation, pointwise))
        else:
            geometry += _on_image(operation, trace)
    if not pointwise:
        reason = "its transform yields no tensor" if transform is not None else "it has no transform"
        raise Unsupported(reason, "a transform that ends in ToTensor or PILToTensor")
    if (refusal := blur_refusal(geometry)) is not None:
        raise Unsupported(*refusal)
    return TransformParts(tuple(geometry), tuple(pointwise), tuple(erasings))


def changes_nothing(operation: Any) -> bool:
    """Return whether a transform never changes an image, and draws no random number."""
    return full_name(operation) in _IDENTITY


def is_random(transform: object, trace: Trace) -> bool:
    """Return whether a known transform draws random numbers."""
    parts = [part for part in flatten(transform) if not changes_nothing(part)]
    return any(full_name(part) in _ERASINGS or any(map(draws, _steps_of(part, trace))) for part in parts)


def _steps_of(operation: Any, trace: Trace) -> Steps:
    """Return the geometric steps of one transform; none for a transform that makes a tensor or only changes its values."""
    if any(full_name(operation) in table for table in (_TO_TENSOR, _POINTWISE, _ERASINGS)):
        return ()
    return _on_image(operation, trace)


def draws(step: NativeTransform) -> bool:
    """Return whether a step, or a step nested in it, draws random numbers."""
    return step.draw != FIXED or any(map(draws, step.arguments.get("transforms", ())))


def is_own(operation: Any) -> bool:
    """Return whether a transform is a callable object or function of the script, not of a library."""
    return full_name(operation) == V1 + "Lambda" or type(operation).__module__.partition(".")[0] not in LIBRARIES


def _on_image(operation: Any, trace: Trace | None) -> Steps:
    """Translate a transform of a Pillow image. One of the script's own may be several steps, or none."""
    name = full_name(operation)
    make = _GEOMETRY.get(name)
    if make is not None:
        return (make(operation),)
    if name in _APPLIES:
        return (_random_apply(operation, lambda part: _on_image(part, trace)),)
    if is_own(operation) and trace is not None:
        own = operation.lambd if name == V1 + "Lambda" else operation
        return trace(own, lambda part: _traced_part(part, trace))
    of_timm = " of timm" if name.startswith(TIMM) else ""
    raise no_equivalent(f"transform {display_name(operation)}{of_timm}")


def _traced_part(operation: Any, trace: Trace) -> Steps:
    """Translate a transform of a library that code of the script calls."""
    if is_own(operation):
        raise no_equivalent("a transform of the script's own")  # its code is run as part of the code that calls it
    parts = [part for part in flatten(operation) if not changes_nothing(part)]
    return tuple(step for part in parts for step in _on_image(part, trace))


def _on_tensor(operation: Any, before: Sequence[Any]) -> NativeTransform:
    """Translate a transform of a tensor. `before`: the transforms that made the tensor.

    A uint8 tensor of torchvision v2 is cut and resized exactly. What else moves pixels only does the same as on an image.
    """
    name, kind = full_name(operation), display_name(operation)
    if name in _APPLIES:
        return _random_apply(operation, lambda part: (_on_tensor(part, before),))
    make = _GEOMETRY.get(name) if kind in _MOVES_PIXELS_ONLY else _ON_TENSORS.get(name)
    if make is None or not (kind in _MOVES_PIXELS_ONLY or all(_keeps_uint8(one) for one in before)):
        if name in _GEOMETRY:
            raise Unsupported(f"transform {kind} on a tensor differs from Pillow's in its arithmetic")
        raise no_equivalent(f"transform {kind}")
    return make(operation)


def _keeps_uint8(operation: Any) -> bool:
    """Return whether a transform makes a uint8 tensor of a Pillow image, or keeps the values of one."""
    uint8 = sys.modules["torch"].uint8
    return full_name(operation) in _TO_UINT8 or (
        full_name(operation) in _CONVERTS and getattr(operation, "dtype", None) is uint8
    )


def _native(name: str, draw: Draw = FIXED, **arguments: Any) -> NativeTransform:
    return NativeTransform(name, MappingProxyType(arguments), draw)


def _interpolation(value: object) -> str:
    name = interpolation_name(value)
    if name not in PILLOW_FILTERS:
        raise no_equivalent(f"interpolation {name!r}")
    return name


def _interpolations(value: object) -> str | tuple[str, ...]:
    """Return the interpolation of timm's crop: one, or several of which each image draws one (`random.choice`)."""
    if isinstance(value, tuple | list) and value:
        return tuple(_interpolation(one) for one in value)
    return _interpolation(value)


def _pair(size: Any) -> tuple[int, int]:
    """Return (height, width) for an int or a sequence of one or two ints (torchvision's `_setup_size`)."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Sequence) and len(size) in (1, 2):
        return int(size[0]), int(size[-1])
    raise no_equivalent(f"size {size!r}")


def _size(operation: Any) -> tuple[int, int]:
    """Return (height, width) of a crop. A size that the script has set since may be one number, which crops take otherwise."""
    if not isinstance(operation.size, Sequence) or len(operation.size) != 2:
        raise no_equivalent(f"transform {display_name(operation)} with size {operation.size!r}")
    return _pair(operation.size)


def _random_resized_crop(operation: Any) -> NativeTransform:
    draw: Draw = ("torch_crop", logarithms(operation))
    if full_name(operation).startswith(TIMM):
        draw = ("python_crop", (math.log(operation.ratio[0]), math.log(operation.ratio[1])))
    return _native(
        "RandomResizedCrop",
        draw,
        size=_size(operation),
        scale=_interval(operation.scale),
        ratio=_interval(operation.ratio),
        interpolation=_interpolations(operation.interpolation),
    )


def _interval(value: Any) -> tuple[float, float]:
    low, high = float(value[0]), float(value[1])
    if not 0 < low <= high:
        raise no_equivalent(f"range {value!r}")
    return low, high


def _resize(operation: Any) -> NativeTransform:
    size = operation.size
    if operation.max_size is not None or size is None:
        raise no_equivalent("transform Resize with max_size")
    if isinstance(size, Sequence):
        size = tuple(int(edge) for edge in size) if len(size) == 2 else int(size[0])
    return _native("Resize", size=size, interpolation=_interpolation(operation.interpolation))


def _of_uint8_tensor(make: Callable[[Any], NativeTransform]) -> Callable[[Any], NativeTransform]:
    """Return the translation of a transform that resizes, for uint8 tensors: torch rounds the filter's weights to 16 bits."""

    def translated(operation: Any) -> NativeTransform:
        step = make(operation)
        kind, interpolation = display_name(operation), step.arguments["interpolation"]
        if operation.antialias is not True:
            raise Unsupported(f"transform {kind} resizes tensors without antialiasing", "antialias=True")
        if not resizes_tensors_alike(interpolation):
            raise Unsupported(f"transform {kind} resizes uint8 tensors by {interpolation}, and its results differ here")
        return _native(step.name, step.draw, **{**step.arguments, "interpolation": f"{interpolation}-int16"})

    return translated


def _center_crop(operation: Any) -> NativeTransform:
    return _native("CenterCrop", size=_pair(operation.size))


def _random_crop(operation: Any) -> NativeTransform:
    padding = operation.padding
    if padding is not None and not isinstance(padding, int):
        padding = tuple(int(edge) for edge in padding)
        if is_second(operation):  # which keeps left, right, top, bottom
            padding = (padding[0], padding[2], padding[1], padding[3])
    padded = bool(padding) or operation.pad_if_needed
    if padded and (operation.padding_mode != "constant" or not _is_black(operation.fill)):
        raise no_equivalent("transform RandomCrop with padding that is not black")
    draw: Draw = ("random_crop", (2.0 if is_second(operation) else 1.0,))
    return _native("RandomCrop", draw, size=_size(operation), padding=padding, pad_if_needed=bool(operation.pad_if_needed))


def _is_black(fill: Any) -> bool:
    """Return whether a `fill` argument is zero in each channel. v2 has a dict by type; None means zero."""
    if isinstance(fill, dict):
        return all(_is_black(value) for value in fill.values())
    return not any(fill) if isinstance(fill, Sequence) else not fill


def _random_apply(operation: Any, steps: Callable[[Any], Steps]) -> NativeTransform:
    parts = [part for part in flatten(tuple(operation.transforms)) if not changes_nothing(part)]
    inner = tuple(step for part in parts for step in steps(part))
    return _native("RandomApply", happens(operation, inclusive=True), transforms=inner, p=float(operation.p))


def _color_jitter(operation: Any) -> NativeTransform:
    factors = {name: getattr(operation, name) for name in ("brightness", "contrast", "saturation", "hue")}
    for name, found in factors.items():
        still = 0.0 if name == "hue" else 1.0
        if found is not None and (not isinstance(found, Sequence) or tuple(found) == (still, still)):
            raise no_equivalent(f"transform ColorJitter with {name}={found!r}")
    return _native("ColorJitter", TORCH, **factors)


def _gaussian_blur(operation: Any) -> NativeTransform:
    """Translate `GaussianBlur`, whose weights the two versions of torchvision's transforms round differently."""
    version = 1 if full_name(operation).startswith(V1) else 2
    return _native(
        "TorchBlur", TORCH, kernel_size=_pair(operation.kernel_size), sigma=_interval(operation.sigma), version=version
    )


def _sometimes(operation: Any) -> NativeTransform:
    """Translate a transform whose arguments are numbers, and that is applied with probability `p`."""
    kind = type(operation).__name__
    arguments = {name: convert(getattr(operation, name)) for name, convert in _SOMETIMES[kind].items()}
    return _native(kind, happens(operation, is_number=kind not in _COMPARED_AS_TENSORS), **arguments)


def _fill(fill: Any) -> tuple[int, ...]:
    """Return R, G, B of a `fill` argument for a Pillow image, as torchvision's `_parse_fill` does."""
    if isinstance(fill, dict):
        image = sys.modules["PIL.Image"].Image
        fill = fill.get(image, fill.get("others"))
    values = tuple(fill) if isinstance(fill, Sequence) else (fill or 0,)
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or any(not isinstance(value, int | float) or not 0 <= value <= 255 for value in values):
        raise no_equivalent(f"fill {fill!r}")
    return tuple(int(value) for value in values)


def _sampling(operation: Any) -> dict[str, Any]:
    name = interpolation_name(operation.interpolation)
    if name not in ("nearest", "bilinear"):
        raise no_equivalent(f"transform {type(operation).__name__} with interpolation {name!r}")
    return {"interpolation": name, "fill": _fill(operation.fill)}


def _floats(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)


def _rotation(operation: Any) -> NativeTransform:
    if operation.expand and operation.center is not None:
        raise no_equivalent("transform RandomRotation with expand and a center")
    degrees, center = _floats(operation.degrees), _floats(operation.center)
    return _native(
        "RandomRotation", TORCH, degrees=degrees, expand=bool(operation.expand), center=center, **_sampling(operation)
    )


def _affine(operation: Any) -> NativeTransform:
    names = ("degrees", "translate", "scale", "shear", "center")
    draw: Draw = ("affine", (0.0 if operation.shear is None else len(operation.shear) // 2,))
    return _native("RandomAffine", draw, **{name: _floats(getattr(operation, name)) for name in names}, **_sampling(operation))


def _pad(operation: Any) -> NativeTransform:
    if operation.padding_mode != "constant":
        raise no_equivalent(f"transform Pad with padding_mode {operation.padding_mode!r}")
    padding = operation.padding
    padding = padding if isinstance(padding, int) else tuple(int(edge) for edge in padding)
    return _native("Pad", padding=padding, fill=_fill(operation.fill))


def _grayscale(operation: Any) -> NativeTransform:
    if operation.num_output_channels != 3:
        raise no_equivalent("transform Grayscale with one channel")
    return _native("Grayscale", num_output_channels=3)


def _version(operation: Any) -> int:
    """Return which version of torchvision's automatic augmentation this is: they round solarize and posterize differently."""
    return 1 if full_name(operation).startswith(V1_AUTOAUGMENT) else 2


def _rand_augment(operation: Any) -> NativeTransform:
    require_own_tables(operation)
    return _native(
        "RandAugment",
        TORCH,
        num_ops=int(operation.num_ops),
        magnitude=int(operation.magnitude),
        num_magnitude_bins=int(operation.num_magnitude_bins),
        version=_version(operation),
        **_sampling(operation),
    )


def _trivial_augment(operation: Any) -> NativeTransform:
    require_own_tables(operation)
    bins = int(operation.num_magnitude_bins)
    return _native("TrivialAugmentWide", TORCH, num_magnitude_bins=bins, version=_version(operation), **_sampling(operation))


def _auto_augment(operation: Any) -> NativeTransform:
    require_own_tables(operation)
    return _native(
        "AutoAugment", TORCH, policy=str(operation.policy.value), version=_version(operation), **_sampling(operation)
    )


_IDENTITY = frozenset(
    {
        "torch.nn.modules.linear.Identity",
        V2 + "Identity",
        V2 + "ToPureTensor",  # the stacked batch is a plain tensor either way: torch.stack drops the subclass
    }
)
_TO_TENSOR = frozenset(
    {
        *(V1 + name for name in ("ToTensor", "PILToTensor")),
        *(V2 + name for name in ("ToTensor", "PILToTensor", "ToImage", "ToImageTensor")),
        *(TIMM + "transforms." + name for name in ("MaybeToTensor", "MaybePILToTensor")),
    }
)
_TO_UINT8 = frozenset(
    {
        V1 + "PILToTensor",
        *(V2 + name for name in ("PILToTensor", "ToImage", "ToImageTensor")),
        TIMM + "transforms.MaybePILToTensor",
    }
)
_CONVERTS = frozenset({V2 + "ConvertImageDtype", V2 + "ToDtype"})
_TO_TENSOR_TWICE = frozenset({V2 + "ToTensor", V2 + "PILToTensor", V2 + "ToImage"})  # v2 passes tensors through
_POINTWISE = frozenset({V1 + "ConvertImageDtype", V1 + "Normalize", V2 + "ConvertImageDtype", V2 + "ToDtype", V2 + "Normalize"})
_ERASINGS = frozenset({V1 + "RandomErasing", V2 + "RandomErasing", TIMM + "random_erasing.RandomErasing"})
_NUMBERS: MappingProxyType[str, Callable[[Any], float]] = MappingProxyType({"integer": int, "number": float})


def _with_probability() -> dict[str, dict[str, Callable[[Any], float]]]:
    """Return the transforms whose arguments are `p` and other numbers, and how each argument is converted."""
    found = {}
    for name, kind in NATIVE_TRANSFORMS.items():
        fields = {field.name: field for field in native_schema()[kind.operation].fields if field.count == 1}
        arguments = [one.name for one in dataclasses.fields(kind)]
        if "p" in fields and set(arguments) == set(fields):
            found[name] = {argument: _NUMBERS[fields[argument].kind] for argument in arguments}
    return found


#: Numbers of transforms that are applied with a probability, and have the names and arguments of torchvision's.
_SOMETIMES = _with_probability()
COLOURS_WITH_PROBABILITY = tuple(name for name in _SOMETIMES if NATIVE_TRANSFORMS[name].operation in CHANGES_COLOUR)
"""Names of the transforms in `_SOMETIMES` that change colours."""
#: Those for which `torchvision.transforms` compares the random tensor itself with the probability.
_COMPARED_AS_TENSORS = frozenset({"RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale"})
_MOVES_PIXELS_ONLY = frozenset({"RandomHorizontalFlip", "RandomVerticalFlip"})
_APPLIES = frozenset({V1 + "RandomApply", V2 + "RandomApply"})  # their steps are transforms of an image, or of a tensor
_GEOMETRY: MappingProxyType[str, Callable[[Any], NativeTransform]] = MappingProxyType(
    {
        prefix + name: make
        for prefix in (V1, V2)
        for name, make in {
            "RandomResizedCrop": _random_resized_crop,
            "Resize": _resize,
            "CenterCrop": _center_crop,
            "RandomCrop": _random_crop,
            "ColorJitter": _color_jitter,
            "RandomRotation": _rotation,
            "RandomAffine": _affine,
            "Pad": _pad,
            "Grayscale": _grayscale,
            "GaussianBlur": _gaussian_blur,
            **dict.fromkeys(_SOMETIMES, _sometimes),
        }.items()
    }
    | {
        prefix + name: make
        for prefix in (V1_AUTOAUGMENT, V2)
        for name, make in {
            "RandAugment": _rand_augment,
            "TrivialAugmentWide": _trivial_augment,
            "AutoAugment": _auto_augment,
        }.items()
    }
    | {TIMM + "transforms.RandomResizedCropAndInterpolation": _random_resized_crop}
)
_ON_TENSORS: MappingProxyType[str, Callable[[Any], NativeTransform]] = MappingProxyType(
    {
        V2 + "RandomResizedCrop": _of_uint8_tensor(_random_resized_crop),
        V2 + "Resize": _of_uint8_tensor(_resize),
        V2 + "CenterCrop": _center_crop,
        V2 + "RandomCrop": _random_crop,
        V1 + "GaussianBlur": _gaussian_blur,
        V2 + "GaussianBlur": _gaussian_blur,
    }
)
