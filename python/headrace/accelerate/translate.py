"""What a torchvision transform does, said as data: the part of it that headrace can do itself, and the script's own rest.

A stack of transforms on a Pillow image has up to three parts, in this order:

geometry    what moves pixels or changes colours, as `Step(name, arguments)` by the names of `headrace.transforms`;
pointwise   the script's own callables that turn the image into a tensor and change each value by itself (ToTensor,
            Normalize, …): they are not imitated but *tabulated* (`pointwise.py`), so that no rounding can differ;
per_image   the script's own callables on one finished tensor that are cheap but not pointwise (RandomErasing).

Classes are recognised by their exact type's full name, never by a base class: a subclass may do anything. Nothing here
imports torchvision; a script that uses it has done so.

Sources: torchvision 0.19–0.29, `transforms/transforms.py` and `transforms/v2/`; timm 1.0, `data/transforms.py`. What differs
between them is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

__all__ = ["Expressed", "Refused", "Step", "flatten", "interpolation_name", "name_of", "shown", "translate"]

V1 = "torchvision.transforms.transforms."
V1_AUTOAUGMENT = "torchvision.transforms.autoaugment."
V2 = "torchvision.transforms.v2."
TIMM = "timm.data."

#: Interpolations that the native resampler does bit for bit as Pillow does.
PILLOW_FILTERS = frozenset({"bilinear", "bicubic", "lanczos"})

#: Pillow's integer constants, which torchvision still accepts (`_interpolation_modes_from_int`).
FILTER_BY_NUMBER = MappingProxyType({0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"})


class Refused(Exception):
    """This loader, dataset or transform is not one that headrace can replace exactly; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of the image: a name of `headrace.transforms` and the arguments to make it with."""

    name: str
    arguments: MappingProxyType[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class Expressed:
    """A transform, taken apart (see the module's text)."""

    geometry: tuple[Step, ...]
    pointwise: tuple[Callable[[Any], Any], ...]
    per_image: tuple[Callable[[Any], Any], ...]


def name_of(operation: object) -> str:
    """The full name of an object's exact type; private module names (`v2._geometry`) are left out."""
    kind = type(operation)
    module = kind.__module__
    if module.startswith(V2):
        module = V2[:-1]
    return f"{module}.{kind.__qualname__}"


def shown(operation: object) -> str:
    """What to call a transform in a message: its class, or the name of a function."""
    return getattr(operation, "__name__", None) or type(operation).__name__


def flatten(operation: object) -> Iterator[Any]:
    """The elementary transforms of nested Compose and Sequential objects, in order.

    Raises `Refused` for one whose behaviour was changed from outside (a hook, a replaced method).
    """
    if operation is None:
        return
    if not callable(operation):
        raise Refused(f"its transform is a {type(operation).__name__}, which cannot be called")
    _refuse_altered(operation)
    name = name_of(operation)
    if name in (V1 + "Compose", V2 + "Compose"):
        for part in operation.transforms:  # type: ignore[attr-defined]
            yield from flatten(part)
    elif name == "torch.nn.modules.container.Sequential":
        for part in operation:  # type: ignore[attr-defined]
            yield from flatten(part)
    elif name == "torchvision.transforms._presets.ImageClassification":
        yield from _image_classification(operation)
    elif (inner := _forwards_to(operation)) is not None:
        yield from flatten(getattr(operation, inner))
    else:
        yield operation


def _image_classification(preset: Any) -> Iterator[Any]:
    """The steps of `weights.transforms()`: its `forward` is these five calls (`torchvision/transforms/_presets.py`)."""
    transforms = sys.modules["torchvision.transforms"]
    yield transforms.Resize(preset.resize_size, interpolation=preset.interpolation, antialias=preset.antialias)
    yield transforms.CenterCrop(preset.crop_size)
    yield transforms.PILToTensor()
    yield transforms.ConvertImageDtype(sys.modules["torch"].float)
    yield transforms.Normalize(mean=preset.mean, std=preset.std)


def _forwards_to(operation: object) -> str | None:
    """The attribute that a script's own wrapper class hands its one argument to: `return self.transforms(image)`.

    Proved by comparing the method's byte code with that of exactly this statement, compiled by the same interpreter.
    """
    kind = type(operation)
    method = kind.__dict__.get("__call__") or kind.__dict__.get("forward")
    code = getattr(method, "__code__", None)
    if code is None or len(code.co_names) != 1 or code.co_freevars or not code.co_names[0].isidentifier():
        return None
    name: str = code.co_names[0]
    scope: dict[str, Any] = {}
    exec(f"def method(self, image):\n    return self.{name}(image)", scope)  # a known text, of a checked identifier
    template = scope["method"].__code__
    same = (code.co_code, code.co_argcount, code.co_flags & 0xF) == (
        template.co_code,
        template.co_argcount,
        template.co_flags & 0xF,
    )
    return name if same and hasattr(operation, name) else None


def _refuse_altered(operation: object) -> None:
    state = getattr(operation, "__dict__", {})
    if any(key in state for key in ("forward", "__call__", "transform", "make_params", "get_params")):
        raise Refused(f"transform {type(operation).__name__} has a replaced method")
    if any(state.get(key) for key in ("_forward_hooks", "_forward_pre_hooks")):
        raise Refused(f"transform {type(operation).__name__} has forward hooks")


def translate(transform: object) -> Expressed:
    """Takes a transform apart, or raises `Refused` with the transform that is in the way.

    A geometric step that comes after the conversion to a tensor is moved before it where that cannot change a value:
    flips and crops only move pixels, and a pointwise change does the same to a pixel wherever it lies.
    """
    geometry: list[Step] = []
    pointwise: list[Callable[[Any], Any]] = []
    per_image: list[Callable[[Any], Any]] = []
    tensor = False
    for operation in flatten(transform):
        name = name_of(operation)
        kind = shown(operation)
        if name in _IDENTITY or (name in _COLOUR_JITTER and _changes_no_colour(operation)):
            continue
        if per_image and name not in _PER_IMAGE:
            raise Refused(f"transform {kind} after {type(per_image[-1]).__name__}")
        if name in _TO_TENSOR:
            if not tensor:
                pointwise.append(operation)
            elif name not in _TO_TENSOR_TWICE:
                raise Refused(f"transform {kind} on a tensor")
            tensor = True
        elif name in _POINTWISE:
            if not tensor:
                raise Refused(f"transform {kind} on a Pillow image")
            pointwise.append(operation)
        elif name in _PER_IMAGE:
            if not tensor:
                raise Refused(f"transform {kind} on a Pillow image")
            per_image.append(operation)
        elif (make := _GEOMETRY.get(name)) is not None:
            if tensor and kind not in _MOVES_PIXELS_ONLY:
                raise Refused(f"transform {kind} on a tensor (its arithmetic differs from Pillow's)")
            geometry.append(make(operation))
        else:
            raise Refused(f"transform {kind}{' of timm' if name.startswith(TIMM) else ''}")
    if not tensor:
        raise Refused("its transform yields no tensor" if transform is not None else "it has no transform")
    return Expressed(tuple(geometry), tuple(pointwise), tuple(per_image))


def _step(name: str, **arguments: Any) -> Step:
    return Step(name, MappingProxyType(arguments))


def interpolation_name(value: object) -> str:
    """The name of torchvision's enum member, of its string, or of Pillow's number; of timm's tuple, all of them."""
    if isinstance(value, tuple | list):
        return " or ".join(interpolation_name(one) for one in value)
    return str(FILTER_BY_NUMBER.get(value) if isinstance(value, int) else getattr(value, "value", value))


def _interpolation(value: object) -> str:
    name = interpolation_name(value)
    if name not in PILLOW_FILTERS:
        raise Refused(f"interpolation {name!r}")
    return name


def _interpolations(value: object) -> str | tuple[str, ...]:
    """Of timm's crop: one filter, or several of which each image draws one (`random.choice`)."""
    if isinstance(value, tuple | list) and value:
        return tuple(_interpolation(one) for one in value)
    return _interpolation(value)


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of an int or of a sequence of one or two (torchvision's `_setup_size`)."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Sequence) and len(size) in (1, 2):
        return int(size[0]), int(size[-1])
    raise Refused(f"size {size!r}")


def _random_resized_crop(operation: Any) -> Step:
    return _step(
        "RandomResizedCrop",
        size=_pair(operation.size),
        scale=_interval(operation.scale),
        ratio=_interval(operation.ratio),
        interpolation=_interpolations(operation.interpolation),
    )


def _interval(value: Any) -> tuple[float, float]:
    low, high = float(value[0]), float(value[1])
    if not 0 < low <= high:
        raise Refused(f"range {value!r}")
    return low, high


def _resize(operation: Any) -> Step:
    size = operation.size
    if operation.max_size is not None or size is None:
        raise Refused("transform Resize with max_size")
    if isinstance(size, Sequence):
        size = tuple(int(edge) for edge in size) if len(size) == 2 else int(size[0])
    return _step("Resize", size=size, interpolation=_interpolation(operation.interpolation))


def _center_crop(operation: Any) -> Step:
    return _step("CenterCrop", size=_pair(operation.size))


def _random_crop(operation: Any) -> Step:
    padding = operation.padding
    if padding is not None and not isinstance(padding, int):
        padding = tuple(int(edge) for edge in padding)
    padded = bool(padding) or operation.pad_if_needed
    if padded and (operation.padding_mode != "constant" or not _is_black(operation.fill)):
        raise Refused("transform RandomCrop with padding that is not black")
    return _step("RandomCrop", size=_pair(operation.size), padding=padding, pad_if_needed=bool(operation.pad_if_needed))


def _is_black(fill: Any) -> bool:
    """Whether a `fill` argument means zero in every channel (v2 keeps a dict by type; None means zero)."""
    if isinstance(fill, dict):
        return all(_is_black(value) for value in fill.values())
    return not any(fill) if isinstance(fill, Sequence) else not fill


def _color_jitter(operation: Any) -> Step:
    return _step("ColorJitter", **{name: getattr(operation, name) for name in ("brightness", "contrast", "saturation", "hue")})


def _flip(operation: Any) -> Step:
    return _step(type(operation).__name__, p=float(operation.p))


def _fill(fill: Any) -> tuple[int, ...]:
    """R, G, B of a `fill` argument on a Pillow image, as `_parse_fill` makes it."""
    if isinstance(fill, dict):
        image = sys.modules["PIL.Image"].Image
        fill = fill.get(image, fill.get("others"))
    values = tuple(fill) if isinstance(fill, Sequence) else (fill or 0,)
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or any(not isinstance(value, int | float) or not 0 <= value <= 255 for value in values):
        raise Refused(f"fill {fill!r}")
    return tuple(int(value) for value in values)


def _sampling(operation: Any) -> dict[str, Any]:
    name = interpolation_name(operation.interpolation)
    if name not in ("nearest", "bilinear"):
        raise Refused(f"transform {type(operation).__name__} with interpolation {name!r}")
    return {"interpolation": name, "fill": _fill(operation.fill)}


def _floats(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)


def _rotation(operation: Any) -> Step:
    if operation.expand and operation.center is not None:
        raise Refused("transform RandomRotation with expand and a center")
    degrees, center = _floats(operation.degrees), _floats(operation.center)
    return _step("RandomRotation", degrees=degrees, expand=bool(operation.expand), center=center, **_sampling(operation))


def _affine(operation: Any) -> Step:
    names = ("degrees", "translate", "scale", "shear", "center")
    return _step("RandomAffine", **{name: _floats(getattr(operation, name)) for name in names}, **_sampling(operation))


def _pad(operation: Any) -> Step:
    if operation.padding_mode != "constant":
        raise Refused(f"transform Pad with padding_mode {operation.padding_mode!r}")
    padding = operation.padding
    padding = padding if isinstance(padding, int) else tuple(int(edge) for edge in padding)
    return _step("Pad", padding=padding, fill=_fill(operation.fill))


def _posterize(operation: Any) -> Step:
    return _step("RandomPosterize", bits=int(operation.bits), p=float(operation.p))


def _solarize(operation: Any) -> Step:
    threshold = float(operation.threshold)
    if not 0 <= threshold <= 256:
        raise Refused(f"transform RandomSolarize with threshold {threshold!r}")
    return _step("RandomSolarize", threshold=threshold, p=float(operation.p))


def _sharpness(operation: Any) -> Step:
    return _step("RandomAdjustSharpness", sharpness_factor=float(operation.sharpness_factor), p=float(operation.p))


def _grayscale(operation: Any) -> Step:
    if operation.num_output_channels != 3:
        raise Refused("transform Grayscale with one channel")
    return _step("Grayscale", num_output_channels=3)


def _version(operation: Any) -> int:
    """Which of torchvision's two automatic augmentations: their solarize and posterize round at different places."""
    return 1 if name_of(operation).startswith(V1_AUTOAUGMENT) else 2


def _rand_augment(operation: Any) -> Step:
    return _step(
        "RandAugment",
        num_ops=int(operation.num_ops),
        magnitude=int(operation.magnitude),
        num_magnitude_bins=int(operation.num_magnitude_bins),
        version=_version(operation),
        **_sampling(operation),
    )


def _trivial_augment(operation: Any) -> Step:
    bins = int(operation.num_magnitude_bins)
    return _step("TrivialAugmentWide", num_magnitude_bins=bins, version=_version(operation), **_sampling(operation))


def _auto_augment(operation: Any) -> Step:
    return _step("AutoAugment", policy=str(operation.policy.value), version=_version(operation), **_sampling(operation))


def _changes_no_colour(operation: Any) -> bool:
    """ColorJitter(0, 0, 0, 0) keeps None for each; timm makes one for `--color-jitter 0`."""
    return all(getattr(operation, name) is None for name in ("brightness", "contrast", "saturation", "hue"))


_COLOUR_JITTER = frozenset({V1 + "ColorJitter", V2 + "ColorJitter"})
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
_TO_TENSOR_TWICE = frozenset({V2 + "ToTensor", V2 + "PILToTensor", V2 + "ToImage"})  # v2 passes tensors through
_POINTWISE = frozenset({V1 + "ConvertImageDtype", V1 + "Normalize", V2 + "ConvertImageDtype", V2 + "ToDtype", V2 + "Normalize"})
_PER_IMAGE = frozenset({V1 + "RandomErasing", V2 + "RandomErasing", TIMM + "random_erasing.RandomErasing"})
_MOVES_PIXELS_ONLY = frozenset({"RandomHorizontalFlip", "RandomVerticalFlip"})
_GEOMETRY: MappingProxyType[str, Callable[[Any], Step]] = MappingProxyType(
    {
        prefix + name: make
        for prefix in (V1, V2)
        for name, make in {
            "RandomResizedCrop": _random_resized_crop,
            "Resize": _resize,
            "CenterCrop": _center_crop,
            "RandomCrop": _random_crop,
            "RandomHorizontalFlip": _flip,
            "RandomVerticalFlip": _flip,
            "RandomGrayscale": _flip,
            "ColorJitter": _color_jitter,
            "RandomRotation": _rotation,
            "RandomAffine": _affine,
            "Pad": _pad,
            "Grayscale": _grayscale,
            "RandomInvert": _flip,
            "RandomAutocontrast": _flip,
            "RandomEqualize": _flip,
            "RandomPosterize": _posterize,
            "RandomSolarize": _solarize,
            "RandomAdjustSharpness": _sharpness,
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
