"""Checks of arguments that several transforms share. Each raises UsageError; `what` names the transform in the message."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import UsageError
from headrace.images.interpolation import interpolation_name
from headrace.transforms.base import Size

__all__ = [
    "angle_range",
    "check_antialias",
    "check_probability",
    "positive_range",
    "rgb",
    "sampling_filter",
    "size_pair",
    "xy",
]


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


def positive_range(values: Sequence[float], what: str) -> tuple[float, float]:
    """Return `values` as (low, high). Raise UsageError unless 0 < low <= high."""
    pair = tuple(float(value) for value in values)
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise UsageError(f"{what} must be (low, high) with 0 < low <= high, not {values!r}")
    return (pair[0], pair[1])


def check_probability(p: float, what: str) -> None:
    """Raise UsageError unless `p` lies between 0 and 1. what: the transform, for the message."""
    if not 0 <= p <= 1:
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
    point = tuple(float(part) for part in value)
    if len(point) != 2:
        raise UsageError(f"{what} must be (x, y) in pixels, not {value!r}")
    return (point[0], point[1])


def check_antialias(antialias: bool | None, what: str) -> None:
    """Raise UsageError for antialias=False. what: the transform, for the message."""
    if antialias is False:
        raise UsageError(f"{what}: antialias=False is not offered: headrace resamples as Pillow does, with antialiasing")
