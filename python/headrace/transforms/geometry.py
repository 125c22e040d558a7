"""Transforms that move pixels: crops, resizes, flips, rotations, affines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.images.interpolation import INTERPOLATIONS, interpolation_name
from headrace.transforms.base import (
    Fill,
    Interpolation,
    Size,
    Transform,
    angle_range,
    check_antialias,
    positive_range,
    rgb,
    sampling_filter,
    size_pair,
    xy,
)

__all__ = [
    "CenterCrop",
    "Pad",
    "RandomAffine",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
]


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Transform):
    """Crop a part of random area and aspect ratio, and resize it to `size`.

    size: output (height, width) in pixels; one int means a square.
    scale: range of the cropped area as a share of the image, 0 to 1. Default: 0.08 to 1.
    ratio: range of the crop's width / height, drawn on a log scale. Default: 3/4 to 4/3.
    interpolation: filter of the resize, default "bilinear". A list of filters: each image draws one of them with equal
        chances (timm's "random").
    antialias: must not be False; headrace always resamples with antialiasing, as Pillow does.

    Raises UsageError for an argument out of range. Example: `RandomResizedCrop(224, scale=(0.35, 1.0))`.
    """

    operation = "random_resized_crop"
    size: Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Interpolation | Sequence[Interpolation] = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair(self.size, "RandomResizedCrop"))
        object.__setattr__(self, "scale", positive_range(self.scale, "RandomResizedCrop: scale"))
        object.__setattr__(self, "ratio", positive_range(self.ratio, "RandomResizedCrop: ratio"))
        object.__setattr__(self, "interpolation", _filters(self.interpolation, "RandomResizedCrop"))
        check_antialias(self.antialias, "RandomResizedCrop")


def _filters(value: object, what: str) -> str | tuple[str, ...]:
    """Return the filter's name; of several filters, all their names."""
    if not isinstance(value, list | tuple):
        return interpolation_name(value, what)
    names = tuple(interpolation_name(one, what) for one in value)
    if not 1 <= len(names) <= len(INTERPOLATIONS):
        raise UsageError(f"{what}: interpolation must be one to {len(INTERPOLATIONS)} filters, not {len(names)}")
    return names if len(names) > 1 else names[0]


@dataclass(frozen=True, slots=True)
class Resize(Transform):
    """Resize to (height, width), or the shorter side to one int with the aspect ratio kept.

    size: (height, width) in pixels, or the length of the shorter side.
    interpolation: filter, default "bilinear".
    max_size: longest allowed longer side in pixels, with one int as `size`; the shorter side then gets shorter. None: no limit.
    antialias: must not be False; headrace always resamples with antialiasing, as Pillow does.

    Raises UsageError for an argument out of range. Example: `Resize(256)`.
    """

    operation = "resize_exact"
    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            height, width = size_pair(self.size, "Resize")
            object.__setattr__(self, "size", height if len(self.size) == 1 else (height, width))
        if isinstance(self.size, int) and self.size < 1:
            raise UsageError(f"Resize: size must be positive, not {self.size}", hint="for example Resize(224)")
        if self.max_size is not None and (not isinstance(self.size, int) or self.max_size <= self.size):
            raise UsageError("Resize: max_size needs a single int as size, and must be larger than it")
        object.__setattr__(self, "interpolation", interpolation_name(self.interpolation, "Resize"))
        check_antialias(self.antialias, "Resize")


@dataclass(frozen=True, slots=True)
class CenterCrop(Transform):
    """Crop the middle of the image. Pad with black where the image is smaller than `size`.

    size: output (height, width) in pixels; one int means a square.

    Raises UsageError for an argument out of range. Example: `CenterCrop(224)`.
    """

    operation = "center_crop"
    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair(self.size, "CenterCrop"))


@dataclass(frozen=True, slots=True)
class RandomCrop(Transform):
    """Crop a part of `size` at a random position.

    size: output (height, width) in pixels; one int means a square.
    padding: black border added before, in pixels: one int, (x, y), or (left, top, right, bottom). None: no border.
    pad_if_needed: pad an image that is smaller than `size` with black; default False: such an image is a bad record.

    Raises UsageError for an argument out of range. Example: `RandomCrop(32, padding=4)`.
    """

    operation = "random_crop"
    size: Size
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair(self.size, "RandomCrop"))
        object.__setattr__(self, "padding", _borders(0 if self.padding is None else self.padding, "RandomCrop"))


@dataclass(frozen=True, slots=True)
class Pad(Transform):
    """Add a border of one colour.

    padding: width of the border in pixels: one int, (x, y), or (left, top, right, bottom).
    fill: colour of the border, 0 to 255: one number, or (R, G, B). Default 0, black.
    padding_mode: only "constant" is offered.

    Raises UsageError for an argument out of range. Example: `Pad(4, fill=(124, 116, 104))`.
    """

    operation = "pad"
    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        if self.padding_mode != "constant":
            raise UsageError(f"Pad: padding_mode {self.padding_mode!r} is not offered; there is constant")
        object.__setattr__(self, "padding", _borders(self.padding, "Pad"))
        object.__setattr__(self, "fill", rgb(self.fill, "Pad"))


def _borders(given: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Return left, top, right, bottom of one int, (x, y), or all four."""
    values = (given,) if isinstance(given, int) else tuple(given)
    if len(values) not in (1, 2, 4) or any(not isinstance(value, int) or value < 0 for value in values):
        raise UsageError(f"{what}: padding must be one, two or four ints of 0 or more, not {given!r}")
    return {1: values * 4, 2: values * 2, 4: values}[len(values)]


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip(Transform):
    """Exchange left and right.

    p: probability, default 0.5.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomHorizontalFlip()`.
    """

    operation = "flip_x"
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(Transform):
    """Exchange top and bottom.

    p: probability, default 0.5.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomVerticalFlip()`.
    """

    operation = "flip_y"
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomRotation(Transform):
    """Rotate counter-clockwise by a random angle.

    degrees: range of the angle, (low, high); one number x means -x to x.
    interpolation: "nearest" (default) or "bilinear".
    expand: enlarge the image to hold all corners; default False. Excludes `center`.
    center: the point (x, y) in pixels that stays in place; None: the middle of the image.
    fill: colour outside the image, 0 to 255: one number, or (R, G, B). Default 0, black.

    Raises UsageError for an argument out of range. Example: `RandomRotation(15, interpolation="bilinear")`.
    """

    operation = "rotation"
    degrees: float | Sequence[float]
    interpolation: Interpolation = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        degrees = angle_range(self.degrees, "RandomRotation: degrees")
        if len(degrees) != 2:
            raise UsageError(f"RandomRotation: degrees must be a number or (low, high), not {self.degrees!r}")
        if self.expand and self.center is not None:
            raise UsageError("RandomRotation: expand grows the image about its middle; leave out center")
        object.__setattr__(self, "degrees", degrees)
        object.__setattr__(self, "interpolation", sampling_filter(self.interpolation, "RandomRotation"))
        object.__setattr__(self, "center", xy(self.center, "RandomRotation: center"))
        object.__setattr__(self, "fill", rgb(self.fill, "RandomRotation"))


@dataclass(frozen=True, slots=True)
class RandomAffine(Transform):
    """Rotate, shift, scale and shear by random amounts, in one sampling.

    degrees: range of the rotation angle, (low, high); one number x means -x to x.
    translate: largest shift as (share of the width, share of the height), 0 to 1. None: no shift.
    scale: range of the scale factor, (low, high), above 0. None: no scaling.
    shear: range of the shear angle in degrees along x: a number x or (low, high); four numbers: along x and y. None: no shear.
    interpolation: "nearest" (default) or "bilinear".
    fill: colour outside the image, 0 to 255: one number, or (R, G, B). Default 0, black.
    center: the point (x, y) in pixels that stays in place; None: the middle of the image.

    Raises UsageError for an argument out of range. Example: `RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1))`.
    """

    operation = "affine"
    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: Interpolation = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        degrees = angle_range(self.degrees, "RandomAffine: degrees")
        if len(degrees) != 2:
            raise UsageError(f"RandomAffine: degrees must be a number or (low, high), not {self.degrees!r}")
        translate = xy(self.translate, "RandomAffine: translate")
        if translate is not None and not all(0 <= part <= 1 for part in translate):
            raise UsageError(f"RandomAffine: translate must be two shares from 0 to 1, not {self.translate!r}")
        object.__setattr__(self, "degrees", degrees)
        object.__setattr__(self, "translate", translate)
        object.__setattr__(self, "scale", None if self.scale is None else positive_range(self.scale, "RandomAffine: scale"))
        object.__setattr__(self, "shear", None if self.shear is None else angle_range(self.shear, "RandomAffine: shear"))
        object.__setattr__(self, "interpolation", sampling_filter(self.interpolation, "RandomAffine"))
        object.__setattr__(self, "fill", rgb(self.fill, "RandomAffine"))
        object.__setattr__(self, "center", xy(self.center, "RandomAffine: center"))
