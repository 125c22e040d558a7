"""The base class of all transforms, the native operations that they stand for, and checks of arguments that several share.

Each check raises UsageError; `what` names the transform in the message.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any, ClassVar, Literal, Self, TypeAlias

from headrace.errors import UsageError
from headrace.images.interpolation import interpolation_name
from headrace.system.text.arguments import unknown_argument

__all__ = [
    "Field",
    "Fill",
    "Interpolation",
    "InterpolationMode",
    "NativeOperation",
    "Size",
    "Transform",
    "angle_range",
    "check_antialias",
    "check_fields",
    "check_probability",
    "native_schema",
    "numbers_of",
    "positive_range",
    "rgb",
    "sampling_filter",
    "size_pair",
    "xy",
]

Size: TypeAlias = int | Sequence[int]
"""One int, or (height, width), in pixels."""

Interpolation: TypeAlias = str | Enum
"""A filter's name ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"), or torchvision's InterpolationMode. Results
are Pillow's; those of "bilinear-int16" and "bicubic-int16" are torchvision v2's on uint8 tensors."""


class InterpolationMode(Enum):
    """The filters of resizes, by torchvision's names; their values are strings, which every `interpolation` takes too."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


Fill: TypeAlias = float | Sequence[float] | None
"""A colour, 0 to 255: one number for R, G and B, or three; None is black."""


Kind = Literal["flag", "integer", "number", "choice", "filters"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a native operation. `count`: how many numbers it holds. `range`: the least and the largest of them."""

    name: str
    kind: Kind
    count: int
    is_optional: bool
    choices: tuple[str, ...]
    range: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class NativeOperation:
    """An operation of the native engine, as its row in `crates/headrace-py/src/operations.rs` declares it."""

    name: str
    effect: Literal["moves", "turns", "colours", "augments", "groups"]
    fields: tuple[Field, ...]


@functools.cache
def native_schema() -> dict[str, NativeOperation]:
    """Return all operations of the native engine by name."""
    from headrace._native import operation_schema  # importing transforms alone does not load it

    return {
        name: NativeOperation(name, effect, tuple(_field(*field) for field in fields))
        for name, effect, fields in operation_schema()
    }


def _field(
    name: str, kind: Kind, count: int, is_optional: bool, choices: list[str], limits: tuple[float, float] | None
) -> Field:
    if limits is not None and kind == "integer":
        limits = (int(limits[0]), int(limits[1]))
    return Field(name, kind, count, is_optional, tuple(choices), limits)


@dataclass(frozen=True, slots=True)
class Transform:
    """One image operation as data. `isinstance(x, Transform)` is true of every transform that headrace compiles.

    A transform is immutable, hashable by value and holds no random state: a Loader draws from (seed, epoch, record). Every
    transform raises UsageError when it is made with an argument that is out of range.
    """

    # The native operation, whose fields are attributes of the same names if `native_operations` does not say otherwise.
    operation: ClassVar[str] = ""

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Raise UnknownArgumentError for a keyword that the transform does not take."""
        known = cls.__dataclass_fields__
        wrong = next((name for name in arguments if name not in known), None)
        if wrong is not None:
            raise unknown_argument(cls.__name__, wrong, known, _OF_TORCHVISION)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, image: Any) -> Any:
        """Apply the transform to one image, as torchvision's do: a loader does so in native threads.

        image: a Pillow image, a uint8 tensor [3, H, W], or a uint8 array [H, W, 3]. The result is of the same kind, after
            ToDtype and Normalize a float tensor [3, H, W].

        Random numbers come from torch's generator. Raises UsageError for another image, and for a transform of whole batches.
        Example: `Resize(256)(Image.open("cat.jpg"))`.
        """
        return importlib.import_module("headrace.transforms.calling").applied(self, image)


_OF_TORCHVISION = {
    "fill": "pad with a colour before it: Pad(padding, fill)",
    "padding_mode": "leave it out: the padding has one colour (constant)",
    "resample": "did you mean interpolation?",
    "fillcolor": "did you mean fill?",
    "resample_filter": "did you mean interpolation?",
    "generator": "leave it out: the Loader's seed decides all random draws",
    "max_alpha": "did you mean alpha?",
}
"""Arguments of torchvision's transforms that some of headrace's do not take, each with a hint on what to use."""


def check_fields(step: Transform, *names: str) -> None:
    """Raise UsageError for an argument, one number, that is out of the range of its field. `names`: which; all by default."""
    for field in native_schema()[step.operation].fields if step.operation else ():
        if field.count != 1 or field.range is None or (names and field.name not in names):
            continue
        value: Any = getattr(step, field.name)
        if value is None and field.is_optional:
            continue
        least, most = field.range
        if field.kind == "integer" and (not isinstance(value, int) or not least <= value <= most):
            limits = f"an int from {least:,} to {most:,}"
        elif field.kind == "number" and not ((number := numbers_of(value)) and least <= number[0] <= most):
            limits = f"between {least:g} and {most:g}" if most < 1e300 else f"{least:g} or more"
        else:
            continue
        raise UsageError(f"{type(step).__name__}: {field.name} must be {limits}, not {value!r}")


def size_pair(size: Size, what: str, *, example: int = 224) -> tuple[int, int]:
    """Return (height, width) of one or two positive ints. `example`: a usual size, for the hint."""
    values = (size, size) if isinstance(size, int) or not isinstance(size, Sequence) or isinstance(size, str) else tuple(size)
    if len(values) == 1:
        values = (values[0], values[0])
    if len(values) != 2 or any(not isinstance(value, int) or value < 1 for value in values):
        raise UsageError(
            f"{what}: size must be a positive int or (height, width), not {size!r}", hint=f"for example {what}({example})"
        )
    return (values[0], values[1])


def numbers_of(values: object) -> tuple[float, ...]:
    """Return the numbers of a sequence as floats, one number as a sequence of one; () for anything else."""
    try:
        given = (values,) if isinstance(values, Real) else tuple(values)  # type: ignore[arg-type]
        return tuple(float(value) for value in given)
    except (TypeError, ValueError):
        return ()


def positive_range(values: Sequence[float], what: str) -> tuple[float, float]:
    """Return `values` as (low, high). Raise UsageError unless 0 < low <= high."""
    pair = numbers_of(values)
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise UsageError(f"{what} must be (low, high) with 0 < low <= high, not {values!r}")
    return (pair[0], pair[1])


def check_probability(p: float, what: str) -> None:
    """Raise UsageError unless `p` lies between 0 and 1. what: the transform, for the message."""
    if not (numbers := numbers_of(p)) or not 0 <= numbers[0] <= 1:
        raise UsageError(f"{what}: p must be between 0 and 1, not {p!r}")


def sampling_filter(value: object, what: str) -> str:
    """Return the name of a filter that rotations and affines offer."""
    name = interpolation_name(value, what)
    if name not in ("nearest", "bilinear"):
        raise UsageError(f"{what}: interpolation {name!r} is not offered; there are nearest and bilinear")
    return name


def rgb(fill: object, what: str) -> tuple[int, int, int]:
    """Return R, G, B of a `fill` argument: None (black), a number for all three, or three numbers."""
    given = 0 if fill is None else fill
    values = (given,) * 3 if isinstance(given, int | float) else tuple(given) if isinstance(given, Sequence) else ()
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or any(not isinstance(value, int | float) or not 0 <= value <= 255 for value in values):
        raise UsageError(f"{what}: fill must be a number from 0 to 255, or three of them, not {fill!r}")
    return (int(values[0]), int(values[1]), int(values[2]))  # torchvision truncates, too


def angle_range(value: object, what: str) -> tuple[float, ...]:
    """Return the two (or four) ends of ranges of angles; a number x means (-x, x)."""
    if isinstance(value, int | float):
        if value < 0:
            raise UsageError(f"{what}: a single number must be 0 or more, not {value!r}")
        return (-float(value), float(value))
    edges = tuple(float(edge) for edge in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(edges) not in (2, 4) or any(low > high for low, high in zip(edges[::2], edges[1::2], strict=True)):
        raise UsageError(f"{what} must be a number or (low, high), not {value!r}")
    return edges


def xy(value: Sequence[float] | None, what: str) -> tuple[float, float] | None:
    """Return `value` as (x, y) in pixels; None stays None. Raise UsageError for another number of values."""
    if value is None:
        return None
    point = numbers_of(value)
    if len(point) != 2:
        raise UsageError(f"{what} must be (x, y) in pixels, not {value!r}")
    return (point[0], point[1])


def check_antialias(antialias: bool | None, what: str) -> None:
    """Raise UsageError for antialias=False. what: the transform, for the message."""
    if antialias is False:
        raise UsageError(f"{what}: antialias=False is not offered: headrace resamples as Pillow does, with antialiasing")
