"""Image transforms as data, with torchvision v2's names, arguments, defaults and distributions.

A transform is a frozen description; `headrace.planner` compiles a pipeline of them into one native pass. Nothing here touches
a pixel. Sizes are one int (both sides, or the shorter side for Resize) or (height, width). Where a result differs from
torchvision's, docs/exactness.md says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UsageError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Normalize",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "Transform",
    "imagenet_eval",
    "imagenet_train",
]

Size = int | Sequence[int]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")

# The channel statistics that torchvision's models use (torchvision.transforms._presets), RGB, of values in [0, 1].
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Transform:
    """Base of the transforms that headrace compiles."""


def _pair(size: Size, what: str) -> tuple[int, int]:
    """(height, width). Raises UsageError on anything that is not one or two positive ints."""
    values = (size, size) if isinstance(size, int) else tuple(size)
    if len(values) == 1:
        values = (values[0], values[0])
    if len(values) != 2 or any(not isinstance(value, int) or value < 1 for value in values):
        raise UsageError(f"{what}: size must be a positive int or (height, width), not {size!r}")
    return (values[0], values[1])


def _range(values: Sequence[float], what: str) -> tuple[float, float]:
    pair = tuple(float(value) for value in values)
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise UsageError(f"{what} must be (low, high) with 0 < low <= high, not {values!r}")
    return (pair[0], pair[1])


def _probability(p: float, what: str) -> None:
    if not 0 <= p <= 1:
        raise UsageError(f"{what}: p must be between 0 and 1, not {p!r}")


def interpolation_name(value: object, what: str) -> str:
    """The filter's name; takes a string or torchvision's InterpolationMode."""
    name = getattr(value, "value", value)
    if name not in INTERPOLATIONS:
        raise UsageError(f"{what}: no interpolation {name!r}; there are {', '.join(INTERPOLATIONS)}")
    return str(name)


def _antialiased(antialias: bool | None, what: str) -> None:
    if antialias is False:
        raise UsageError(f"{what}: antialias=False is not offered: headrace resamples as Pillow does, with antialiasing")


@dataclass(frozen=True, slots=True)
class Compose(Transform):
    """Transforms one after the other. A plain callable takes and returns one image, uint8 [H, W, 3] (numpy), in Python."""

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
class RandomResizedCrop(Transform):
    """A random area and aspect ratio of the image, resized to `size`."""

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size, "RandomResizedCrop"))
        object.__setattr__(self, "scale", _range(self.scale, "RandomResizedCrop: scale"))
        object.__setattr__(self, "ratio", _range(self.ratio, "RandomResizedCrop: ratio"))
        object.__setattr__(self, "interpolation", interpolation_name(self.interpolation, "RandomResizedCrop"))
        _antialiased(self.antialias, "RandomResizedCrop")


@dataclass(frozen=True, slots=True)
class Resize(Transform):
    """To (height, width), or the shorter side to one int, keeping the ratio, the longer side at most `max_size`."""

    size: Size
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            values = tuple(self.size)
            object.__setattr__(self, "size", values[0] if len(values) == 1 else _pair(values, "Resize"))
        if isinstance(self.size, int) and self.size < 1:
            raise UsageError(f"Resize: size must be positive, not {self.size}")
        if self.max_size is not None and (not isinstance(self.size, int) or self.max_size <= self.size):
            raise UsageError("Resize: max_size needs a single int as size, and must be larger than it")
        object.__setattr__(self, "interpolation", interpolation_name(self.interpolation, "Resize"))
        _antialiased(self.antialias, "Resize")


@dataclass(frozen=True, slots=True)
class CenterCrop(Transform):
    """The middle of the image; black around it where the image is smaller."""

    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size, "CenterCrop"))


@dataclass(frozen=True, slots=True)
class RandomCrop(Transform):
    """A random part of the image; `padding` black pixels around it first: one int, (x, y) or (left, top, right, bottom)."""

    size: Size
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size, "RandomCrop"))
        given = self.padding
        values = (0,) if given is None else (given,) if isinstance(given, int) else tuple(given)
        if len(values) not in (1, 2, 4) or any(not isinstance(value, int) or value < 0 for value in values):
            raise UsageError(f"RandomCrop: padding must be one, two or four ints of 0 or more, not {given!r}")
        object.__setattr__(self, "padding", {1: values * 4, 2: values * 2, 4: values}[len(values)])


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip(Transform):
    """Left and right exchanged with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomHorizontalFlip")


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(Transform):
    """Top and bottom exchanged with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomVerticalFlip")


@dataclass(frozen=True, slots=True)
class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed by random factors in a random order, as Pillow does it.

    Each is a number x (a factor from [max(0, 1 - x), 1 + x]; hue: a share of the circle from [-x, x]), a range, or None. It is
    kept as a range, or as None where nothing would change.
    """

    brightness: Any = None
    contrast: Any = None
    saturation: Any = None
    hue: Any = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            object.__setattr__(self, name, _factors(getattr(self, name), name))


def _factors(value: Any, name: str) -> tuple[float, float] | None:
    """The range of a ColorJitter argument, by torchvision's rules."""
    if value is None:
        return None
    centre, least, most = (0.0, -0.5, 0.5) if name == "hue" else (1.0, 0.0, float("inf"))
    try:
        if isinstance(value, int | float):
            low, high = centre - value, centre + value
            low = low if name == "hue" else max(low, 0.0)
            valid = value >= 0
        else:
            low, high = (float(edge) for edge in value)
            valid = True
    except (TypeError, ValueError):
        valid = False
    if not valid or not least <= low <= high <= most:
        raise UsageError(f"ColorJitter: {name} must be a number of 0 or more or a range in [{least}, {most}], not {value!r}")
    return None if low == high == centre else (low, high)


@dataclass(frozen=True, slots=True)
class RandomGrayscale(Transform):
    """All three channels replaced by the luma, with probability `p`."""

    p: float = 0.1

    def __post_init__(self) -> None:
        _probability(self.p, "RandomGrayscale")


@dataclass(frozen=True, slots=True)
class ToDtype(Transform):
    """To a float dtype ("float32", "float16", "bfloat16", or torch's); `scale` maps 0..255 to 0..1."""

    dtype: Any = "float32"
    scale: bool = False

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if name not in ("float32", "float16", "bfloat16"):
            raise UsageError(f"ToDtype: {self.dtype!r} is not offered; there are float32, float16, bfloat16")
        object.__setattr__(self, "dtype", name)


@dataclass(frozen=True, slots=True)
class Normalize(Transform):
    """`(value - mean) / std` for each channel of float values (0..1 unless ToDtype(scale=False) came before)."""

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) == 1:
                values *= 3
            if len(values) != 3:
                raise UsageError(f"Normalize: {name} must hold one value for each of R, G, B, not {len(values)}")
            object.__setattr__(self, name, values)
        if 0 in self.std:
            raise UsageError("Normalize: std must not be 0")


def imagenet_train(size: Size = 224, *, normalize: bool = False) -> Compose:
    """RandomResizedCrop(size) and RandomHorizontalFlip(); with `normalize`, also Normalize by ImageNet's statistics."""
    return Compose([RandomResizedCrop(size), RandomHorizontalFlip(), *_normalized(normalize)])


def imagenet_eval(size: Size = 224, *, resize: int | None = None, normalize: bool = False) -> Compose:
    """Resize and CenterCrop(size). `resize` is the shorter side; by default size / 0.875 (224 of 256)."""
    height, width = _pair(size, "imagenet_eval")
    shorter = resize if resize is not None else round(max(height, width) / 0.875)
    return Compose([Resize(shorter), CenterCrop(size), *_normalized(normalize)])


def _normalized(normalize: bool) -> list[Transform]:
    return [Normalize(IMAGENET_MEAN, IMAGENET_STD)] if normalize else []
