"""Image transforms as data, with torchvision v2's names, arguments, defaults and distributions.

A transform is a frozen description; `headrace.transforms.compile` compiles a pipeline of them into one native pass. Nothing
here touches a pixel. Sizes are one int (both sides, or the shorter side for Resize) or (height, width). Where a result differs
from torchvision's, docs/exactness.md says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UsageError
from headrace.images.interpolation import INTERPOLATIONS, interpolation_name

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Dilation",
    "Erosion",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Repeat",
    "Resize",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "Views",
    "imagenet_eval",
    "imagenet_train",
]

Size = int | Sequence[int]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

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


def _filters(value: object, what: str) -> str | tuple[str, ...]:
    """The filter's name; of several all names, one of which is drawn for each image."""
    if not isinstance(value, list | tuple):
        return interpolation_name(value, what)
    names = tuple(interpolation_name(one, what) for one in value)
    if not 1 <= len(names) <= len(INTERPOLATIONS):
        raise UsageError(f"{what}: interpolation must be one to {len(INTERPOLATIONS)} filters, not {len(names)}")
    return names if len(names) > 1 else names[0]


def _sampling(value: object, what: str) -> str:
    name = interpolation_name(value, what)
    if name not in ("nearest", "bilinear"):
        raise UsageError(f"{what}: interpolation {name!r} is not offered; there are nearest and bilinear")
    return name


def _colour(fill: object, what: str) -> tuple[int, int, int]:
    """R, G, B of a `fill` argument: None (black), a number for all three, or three."""
    given = 0 if fill is None else fill
    values = (given,) * 3 if isinstance(given, int | float) else tuple(given) if isinstance(given, Sequence) else ()
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or any(not isinstance(value, int | float) or not 0 <= value <= 255 for value in values):
        raise UsageError(f"{what}: fill must be a number from 0 to 255, or three of them, not {fill!r}")
    return (int(values[0]), int(values[1]), int(values[2]))  # torchvision truncates, too


def _angles(value: object, what: str) -> tuple[float, ...]:
    """Two (or four) ends of ranges; a number x means (-x, x)."""
    if isinstance(value, int | float):
        if value < 0:
            raise UsageError(f"{what}: a single number must be 0 or more, not {value!r}")
        return (-float(value), float(value))
    edges = tuple(float(edge) for edge in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(edges) not in (2, 4) or any(low > high for low, high in zip(edges[::2], edges[1::2], strict=True)):
        raise UsageError(f"{what} must be a number or (low, high), not {value!r}")
    return edges


def _point(value: Sequence[float] | None, what: str) -> tuple[float, float] | None:
    if value is None:
        return None
    point = tuple(float(part) for part in value)
    if len(point) != 2:
        raise UsageError(f"{what} must be (x, y) in pixels, not {value!r}")
    return (point[0], point[1])


def _padding(given: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Left, top, right, bottom of one int, (x, y), or all four."""
    values = (given,) if isinstance(given, int) else tuple(given)
    if len(values) not in (1, 2, 4) or any(not isinstance(value, int) or value < 0 for value in values):
        raise UsageError(f"{what}: padding must be one, two or four ints of 0 or more, not {given!r}")
    return {1: values * 4, 2: values * 2, 4: values}[len(values)]


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
    """A random area and aspect ratio of the image, resized to `size`.

    `interpolation` may be several filters, of which each image draws one at even chances (timm's "random").
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool | None = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size, "RandomResizedCrop"))
        object.__setattr__(self, "scale", _range(self.scale, "RandomResizedCrop: scale"))
        object.__setattr__(self, "ratio", _range(self.ratio, "RandomResizedCrop: ratio"))
        object.__setattr__(self, "interpolation", _filters(self.interpolation, "RandomResizedCrop"))
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
        object.__setattr__(self, "padding", _padding(0 if self.padding is None else self.padding, "RandomCrop"))


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
class Grayscale(Transform):
    """All three channels replaced by the luma. Batches have three channels, so `num_output_channels` must be 3."""

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            raise UsageError("Grayscale: batches have three channels; pass num_output_channels=3")


@dataclass(frozen=True, slots=True)
class Pad(Transform):
    """A border of one colour: `padding` pixels (one, (x, y), or left, top, right, bottom) of `fill` (a number, or R, G, B)."""

    padding: int | Sequence[int]
    fill: Any = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        if self.padding_mode != "constant":
            raise UsageError(f"Pad: padding_mode {self.padding_mode!r} is not offered; there is constant")
        object.__setattr__(self, "padding", _padding(self.padding, "Pad"))
        object.__setattr__(self, "fill", _colour(self.fill, "Pad"))


@dataclass(frozen=True, slots=True)
class RandomRotation(Transform):
    """Turned counter-clockwise by an angle from `degrees`: a number x (from -x to x) or (low, high)."""

    degrees: Any
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Any = 0

    def __post_init__(self) -> None:
        degrees = _angles(self.degrees, "RandomRotation: degrees")
        if len(degrees) != 2:
            raise UsageError(f"RandomRotation: degrees must be a number or (low, high), not {self.degrees!r}")
        if self.expand and self.center is not None:
            raise UsageError("RandomRotation: expand grows the image about its middle; leave out center")
        object.__setattr__(self, "degrees", degrees)
        object.__setattr__(self, "interpolation", _sampling(self.interpolation, "RandomRotation"))
        object.__setattr__(self, "center", _point(self.center, "RandomRotation: center"))
        object.__setattr__(self, "fill", _colour(self.fill, "RandomRotation"))


@dataclass(frozen=True, slots=True)
class RandomAffine(Transform):
    """Turned by `degrees`, shifted by up to `translate` of width and height, enlarged by `scale`, sheared by `shear` degrees.

    `shear` is a number x or (low, high) along x, or four numbers for x and y.
    """

    degrees: Any
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Any = None
    interpolation: Any = "nearest"
    fill: Any = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        degrees = _angles(self.degrees, "RandomAffine: degrees")
        if len(degrees) != 2:
            raise UsageError(f"RandomAffine: degrees must be a number or (low, high), not {self.degrees!r}")
        translate = _point(self.translate, "RandomAffine: translate")
        if translate is not None and not all(0 <= part <= 1 for part in translate):
            raise UsageError(f"RandomAffine: translate must be two shares from 0 to 1, not {self.translate!r}")
        object.__setattr__(self, "degrees", degrees)
        object.__setattr__(self, "translate", translate)
        object.__setattr__(self, "scale", None if self.scale is None else _range(self.scale, "RandomAffine: scale"))
        object.__setattr__(self, "shear", None if self.shear is None else _angles(self.shear, "RandomAffine: shear"))
        object.__setattr__(self, "interpolation", _sampling(self.interpolation, "RandomAffine"))
        object.__setattr__(self, "fill", _colour(self.fill, "RandomAffine"))
        object.__setattr__(self, "center", _point(self.center, "RandomAffine: center"))


@dataclass(frozen=True, slots=True)
class GaussianBlur(Transform):
    """Blurred with a kernel of odd `kernel_size` (an int or (width, height)) and a sigma drawn from a range (or one number)."""

    kernel_size: Size
    sigma: Any = (0.1, 2.0)

    def __post_init__(self) -> None:
        kernel = _pair(self.kernel_size, "GaussianBlur")
        if any(side % 2 == 0 or side > _MAX_KERNEL for side in kernel):
            raise UsageError(f"GaussianBlur: kernel_size must be odd and at most {_MAX_KERNEL}, not {self.kernel_size!r}")
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma
        object.__setattr__(self, "kernel_size", kernel)
        object.__setattr__(self, "sigma", _range(sigma, "GaussianBlur: sigma"))


_MAX_KERNEL = 127  # headrace_core::colour::neighbours::MAX_KERNEL


@dataclass(frozen=True, slots=True)
class RandomInvert(Transform):
    """Values v replaced by 255 - v with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomInvert")


@dataclass(frozen=True, slots=True)
class RandomPosterize(Transform):
    """Only the highest `bits` bits of each value kept, with probability `p`."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomPosterize")
        if not isinstance(self.bits, int) or not 1 <= self.bits <= 8:
            raise UsageError(f"RandomPosterize: bits must be an int from 1 to 8, not {self.bits!r}")


@dataclass(frozen=True, slots=True)
class RandomSolarize(Transform):
    """Values of `threshold` (0 to 256) and above inverted, with probability `p`."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomSolarize")
        if not 0 <= self.threshold <= 256:
            raise UsageError(f"RandomSolarize: threshold must be from 0 to 256, as values are, not {self.threshold!r}")


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(Transform):
    """Each channel stretched to the whole range, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomAutocontrast")


@dataclass(frozen=True, slots=True)
class RandomEqualize(Transform):
    """Each channel's histogram made even, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomEqualize")


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(Transform):
    """Sharpened by `sharpness_factor` (0 smooth, 1 unchanged, 2 twice as sharp), with probability `p`."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomAdjustSharpness")
        if not 0 <= self.sharpness_factor < float("inf"):
            raise UsageError(f"RandomAdjustSharpness: sharpness_factor must be 0 or more, not {self.sharpness_factor!r}")


@dataclass(frozen=True, slots=True)
class Dilation(Transform):
    """Each value becomes the largest of the `size` x `size` around it (Pillow's MaxFilter). torchvision has none."""

    size: int = 3

    def __post_init__(self) -> None:
        _neighbourhood(self.size, "Dilation")


@dataclass(frozen=True, slots=True)
class Erosion(Transform):
    """Each value becomes the smallest of the `size` x `size` around it (Pillow's MinFilter). torchvision has none."""

    size: int = 3

    def __post_init__(self) -> None:
        _neighbourhood(self.size, "Erosion")


def _neighbourhood(size: object, what: str) -> None:
    if not isinstance(size, int) or size % 2 == 0 or not 3 <= size <= 127:
        raise UsageError(f"{what}: size must be an odd int from 3 to 127, not {size!r}")


@dataclass(frozen=True, slots=True)
class RandomApply(Transform):
    """All of `transforms`, one after the other, with probability `p`; otherwise none. They must be native and keep the size."""

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.p, "RandomApply")
        object.__setattr__(self, "transforms", _native_only(self.transforms, "RandomApply"))


@dataclass(frozen=True, slots=True)
class Repeat(Transform):
    """`op` (a transform or a Compose) `n` times over, each with its own draws: an augmentation load. torchvision has none."""

    op: Transform
    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or not 0 <= self.n <= 1000:
            raise UsageError(f"Repeat: n must be an int from 0 to 1000, not {self.n!r}")
        _native_only([self.op], "Repeat")


def _native_only(transforms: Sequence[object], what: str) -> tuple[Transform, ...]:
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
class RandAugment(Transform):
    """`num_ops` random operations of 14 (Cubuk et al. 2020), of strength `magnitude` out of `num_magnitude_bins`.

    `version=1` rounds the thresholds of solarize and posterize as `torchvision.transforms` does, 2 as its `v2`.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Any = None
    version: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.num_ops, int) or not 0 <= self.num_ops <= 1000:
            raise UsageError(f"RandAugment: num_ops must be an int of 0 or more, not {self.num_ops!r}")
        _bins(self.num_magnitude_bins, "RandAugment")
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise UsageError(f"RandAugment: magnitude {self.magnitude!r} is not one of {self.num_magnitude_bins} bins")
        object.__setattr__(self, "interpolation", _sampling(self.interpolation, "RandAugment"))
        _version(self.version, "RandAugment")
        object.__setattr__(self, "fill", _colour(self.fill, "RandAugment"))


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(Transform):
    """One random operation of 14 of random strength (Müller and Hutter 2021); `version` as of RandAugment."""

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Any = None
    version: int = 2

    def __post_init__(self) -> None:
        _bins(self.num_magnitude_bins, "TrivialAugmentWide")
        object.__setattr__(self, "interpolation", _sampling(self.interpolation, "TrivialAugmentWide"))
        _version(self.version, "TrivialAugmentWide")
        object.__setattr__(self, "fill", _colour(self.fill, "TrivialAugmentWide"))


def _version(version: object, what: str) -> None:
    if version not in (1, 2):
        raise UsageError(f"{what}: version must be 1 or 2 (of torchvision's transforms), not {version!r}")


def _bins(bins: object, what: str) -> None:
    if not isinstance(bins, int) or not 2 <= bins <= 1 << 20:
        raise UsageError(f"{what}: num_magnitude_bins must be an int of 2 or more, not {bins!r}")


@dataclass(frozen=True, slots=True)
class AutoAugment(Transform):
    """One of 25 pairs of operations (Cubuk et al. 2019) of a policy: "imagenet", "cifar10", "svhn", or torchvision's enum.

    `version` as of RandAugment.
    """

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: Any = None
    version: int = 2

    def __post_init__(self) -> None:
        name = getattr(self.policy, "value", self.policy)
        if name not in ("imagenet", "cifar10", "svhn"):
            raise UsageError(f"AutoAugment: no policy {name!r}; there are imagenet, cifar10, svhn")
        object.__setattr__(self, "policy", name)
        object.__setattr__(self, "interpolation", _sampling(self.interpolation, "AutoAugment"))
        _version(self.version, "AutoAugment")
        object.__setattr__(self, "fill", _colour(self.fill, "AutoAugment"))


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


@dataclass(frozen=True, slots=True)
class Views(Transform):
    """Several pictures of each image, each by a pipeline and with draws of its own: the loader yields a tuple of image batches.

    For self-supervised training: `Views([augment, augment])`, or two large and six small crops (multi-crop); sizes may differ.
    """

    transforms: Sequence[Transform | Callable[[Any], Any]]

    def __post_init__(self) -> None:
        views = tuple(self.transforms)
        if not views or any(isinstance(view, Views) or not (isinstance(view, Transform) or callable(view)) for view in views):
            raise UsageError("Views: a list of one or more transforms is needed, without Views in it")
        object.__setattr__(self, "transforms", views)


@dataclass(frozen=True, slots=True)
class RandomErasing(Transform):
    """With probability `p`, a rectangle of the finished image is replaced by `value`: a number, one for each channel, or
    "random" (a normal draw for each value). On the batch, after Normalize; each image has its own draws."""

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Any = 0.0
    inplace: bool = False

    def __post_init__(self) -> None:
        _probability(self.p, "RandomErasing")
        object.__setattr__(self, "scale", _range(self.scale, "RandomErasing: scale"))
        object.__setattr__(self, "ratio", _range(self.ratio, "RandomErasing: ratio"))
        if self.scale[1] > 1:
            raise UsageError(f"RandomErasing: scale is a share of the image, at most 1, not {self.scale!r}")
        if self.value == "random":
            return
        try:
            values = (self.value,) if isinstance(self.value, int | float) else tuple(float(value) for value in self.value)
        except (TypeError, ValueError):
            values = ()
        if len(values) not in (1, 3):
            raise UsageError(f"RandomErasing: value must be a number, three of them, or 'random', not {self.value!r}")
        object.__setattr__(self, "value", tuple(float(value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(Transform):
    """Each image is blended with its neighbour in the batch; one share a batch, from Beta(alpha, alpha). Labels become float
    [N, num_classes] (None: as many as the dataset has). Zhang et al. 2018, arXiv 1710.09412."""

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _mixing(self.alpha, self.num_classes, "MixUp")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(Transform):
    """A rectangle of each image is replaced by that of its neighbour in the batch; one rectangle a batch, whose area has a
    share from Beta(alpha, alpha). Labels as with MixUp. Yun et al. 2019, arXiv 1905.04899."""

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _mixing(self.alpha, self.num_classes, "CutMix")


def _mixing(alpha: float, num_classes: int | None, what: str) -> None:
    if not alpha > 0:
        raise UsageError(f"{what}: alpha must be positive, not {alpha!r}")
    if num_classes is not None and num_classes < 1:
        raise UsageError(f"{what}: num_classes must be positive, not {num_classes!r}")


@dataclass(frozen=True, slots=True)
class RandomChoice(Transform):
    """One of several batch transforms (MixUp, CutMix, RandomErasing) for each batch, at even chances or by the weights `p`."""

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        choices = tuple(self.transforms)
        if not choices or not all(isinstance(choice, MixUp | CutMix | RandomErasing) for choice in choices):
            raise UsageError("RandomChoice: a list of MixUp, CutMix and RandomErasing is needed")
        weights = (1.0,) * len(choices) if self.p is None else tuple(float(weight) for weight in self.p)
        if len(weights) != len(choices) or min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(f"RandomChoice: p must hold a weight of 0 or more for each transform, not {self.p!r}")
        object.__setattr__(self, "transforms", choices)
        object.__setattr__(self, "p", tuple(weight / sum(weights) for weight in weights))


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
