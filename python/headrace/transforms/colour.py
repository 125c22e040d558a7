"""Transforms of colours and of small neighbourhoods of pixels. The size of the image stays as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import UsageError
from headrace.transforms.base import Size, Transform, check_probability, positive_range, size_pair

__all__ = [
    "ColorJitter",
    "Dilation",
    "Erosion",
    "GaussianBlur",
    "Grayscale",
    "PillowBlur",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "TorchBlur",
]

Jitter: TypeAlias = float | Sequence[float] | None


@dataclass(frozen=True, slots=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue by random factors in a random order, as Pillow does.

    brightness, contrast, saturation: range of the factor, (low, high); a number x means max(0, 1 - x) to 1 + x. None: none.
    hue: range of the shift as a share of the colour circle, within -0.5 to 0.5; a number x means -x to x. None: no change.

    An attribute holds the range, or None where nothing would change.
    Raises UsageError for an argument out of range. Example: `ColorJitter(0.4, 0.4, 0.4, 0.1)`.
    """

    operation = "color_jitter"
    brightness: Jitter = None
    contrast: Jitter = None
    saturation: Jitter = None
    hue: Jitter = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            object.__setattr__(self, name, _factor_range(getattr(self, name), name))


def _factor_range(value: Jitter, name: str) -> tuple[float, float] | None:
    """Return the range of a ColorJitter argument, by torchvision's rules."""
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
    """Replace all three channels by the luma.

    p: probability, default 0.1.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomGrayscale(0.2)`.
    """

    operation = "grayscale"
    p: float = 0.1


@dataclass(frozen=True, slots=True)
class Grayscale(Transform):
    """Replace all three channels by the luma.

    num_output_channels: must be 3, because batches have three channels (the default, 1, is torchvision's).

    Raises UsageError for any other number of channels. Example: `Grayscale(3)`.
    """

    operation = "grayscale"
    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            raise UsageError(
                "Grayscale: batches have three channels; pass num_output_channels=3",
                hint="the three are equal: images[:, :1] in your loop is one channel, for a model of gray images",
            )


_MAX_KERNEL = 127  # headrace_core::colour::neighbours::MAX_KERNEL


@dataclass(frozen=True, slots=True)
class GaussianBlur(Transform):
    """Blur with a Gaussian kernel of random width.

    kernel_size: sides of the kernel in pixels, odd, at most 127: one int, or two.
    sigma: range of the standard deviation in pixels; one number: always this. Default: 0.1 to 2.0.

    Raises UsageError for an argument out of range. Example: `GaussianBlur(23, sigma=(0.1, 2.0))`.
    """

    operation = "blur"
    kernel_size: Size
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        kernel = size_pair(self.kernel_size, "GaussianBlur", example=5)
        if any(side % 2 == 0 or side > _MAX_KERNEL for side in kernel):
            raise UsageError(f"GaussianBlur: kernel_size must be odd and at most {_MAX_KERNEL}, not {self.kernel_size!r}")
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma
        object.__setattr__(self, "kernel_size", kernel)
        object.__setattr__(self, "sigma", positive_range(sigma, "GaussianBlur: sigma"))


@dataclass(frozen=True, slots=True)
class TorchBlur(Transform):
    """Blur exactly as torchvision's `GaussianBlur`, with weights that torch computes.

    kernel_size: width and height of the kernel in pixels, odd, at most 127.
    sigma: range of the standard deviation in pixels.
    version: 1 for `torchvision.transforms`, 2 for its `v2`.

    The weights of each image are given to the native engine before it makes the image (`accelerate/torch_blur.py`); so this
    transform is not for pipelines of `headrace.Loader`.

    Raises UsageError for an argument out of range. Example: `TorchBlur((23, 23), (0.1, 2.0), 1)`.
    """

    operation = "torch_blur"
    kernel_size: tuple[int, int]
    sigma: tuple[float, float]
    version: int

    def __post_init__(self) -> None:
        if any(side % 2 == 0 or side > _MAX_KERNEL for side in self.kernel_size):
            raise UsageError(f"GaussianBlur: kernel_size must be odd and at most {_MAX_KERNEL}, not {self.kernel_size!r}")
        positive_range(self.sigma, "GaussianBlur: sigma")


_MAX_RADIUS = 1000.0  # headrace_core::colour::pillow_blur::MAX_RADIUS


@dataclass(frozen=True, slots=True)
class PillowBlur(Transform):
    """Blur as Pillow's `ImageFilter.GaussianBlur`: three box blurs across and three down. torchvision has no such transform.

    radius: range of the Gaussian's standard deviation in pixels, 0 to 1000; one number: always this.

    Raises UsageError for an argument out of range. Example: `RandomApply([PillowBlur((0.1, 2.0))], p=0.5)`.
    """

    operation = "pillow_blur"
    radius: float | Sequence[float]

    def __post_init__(self) -> None:
        given = self.radius if isinstance(self.radius, Sequence) else (self.radius, self.radius)
        low, high = (float(given[0]), float(given[1])) if len(given) == 2 else (math.nan, math.nan)
        if not 0 <= low <= high <= _MAX_RADIUS:
            raise UsageError(f"PillowBlur: radius must be a number or a range in [0, {_MAX_RADIUS:g}], not {self.radius!r}")
        object.__setattr__(self, "radius", (low, high))


@dataclass(frozen=True, slots=True)
class RandomInvert(Transform):
    """Replace each value v by 255 - v.

    p: probability, default 0.5.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomInvert()`.
    """

    operation = "invert"
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomPosterize(Transform):
    """Clear the low bits of each value.

    bits: number of high bits that stay, 1 to 8.
    p: probability, default 0.5.

    Raises UsageError for an argument out of range. Example: `RandomPosterize(4)`.
    """

    operation = "posterize"
    bits: int
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomSolarize(Transform):
    """Invert each value of `threshold` and above.

    threshold: 0 (all values) to 256 (none).
    p: probability, default 0.5.

    Raises UsageError for an argument out of range. Example: `RandomSolarize(128)`.
    """

    operation = "solarize"
    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomSolarize")
        if not 0 <= self.threshold <= 256:
            raise UsageError(f"RandomSolarize: threshold must be from 0 to 256, as values are, not {self.threshold!r}")


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(Transform):
    """Stretch each channel to the whole range, 0 to 255.

    p: probability, default 0.5.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomAutocontrast()`.
    """

    operation = "autocontrast"
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomEqualize(Transform):
    """Equalize the histogram of each channel.

    p: probability, default 0.5.

    Raises UsageError unless 0 <= p <= 1. Example: `RandomEqualize()`.
    """

    operation = "equalize"
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(Transform):
    """Change the sharpness.

    sharpness_factor: 0 smooths, 1 changes nothing, 2 doubles the sharpness.
    p: probability, default 0.5.

    Raises UsageError for an argument out of range. Example: `RandomAdjustSharpness(2)`.
    """

    operation = "sharpness"
    sharpness_factor: float
    p: float = 0.5


@dataclass(frozen=True, slots=True)
class Dilation(Transform):
    """Replace each value by the largest in the square around it (Pillow's MaxFilter). torchvision has no such transform.

    size: side of the square in pixels, odd, 3 to 127. Default 3.

    Raises UsageError for any other size. Example: `Dilation(5)`.
    """

    operation = "dilate"
    size: int = 3

    def __post_init__(self) -> None:
        _check_neighbourhood(self.size, "Dilation")


@dataclass(frozen=True, slots=True)
class Erosion(Transform):
    """Replace each value by the smallest in the square around it (Pillow's MinFilter). torchvision has no such transform.

    size: side of the square in pixels, odd, 3 to 127. Default 3.

    Raises UsageError for any other size. Example: `Erosion(5)`.
    """

    operation = "erode"
    size: int = 3

    def __post_init__(self) -> None:
        _check_neighbourhood(self.size, "Erosion")


def _check_neighbourhood(size: object, what: str) -> None:
    if not isinstance(size, int) or size % 2 == 0 or not 3 <= size <= _MAX_KERNEL:
        raise UsageError(f"{what}: size must be an odd int from 3 to {_MAX_KERNEL}, not {size!r}")
