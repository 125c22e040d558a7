"""Names of transforms: to recognise classes of torchvision and timm, and to print in messages."""

from __future__ import annotations

import functools
from types import MappingProxyType

__all__ = ["TIMM", "V1", "V1_AUTOAUGMENT", "V2", "display_name", "full_name", "interpolation_name"]

V1 = "torchvision.transforms.transforms."
V1_AUTOAUGMENT = "torchvision.transforms.autoaugment."
V2 = "torchvision.transforms.v2."
TIMM = "timm.data."

#: Pillow's integer constants, which torchvision still accepts (`_interpolation_modes_from_int`).
FILTER_BY_NUMBER = MappingProxyType({0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"})


def full_name(operation: object) -> str:
    """Return module and name of an object's exact type, without private module names (`v2._geometry`)."""
    kind = type(operation)
    module = kind.__module__
    if module.startswith(V2):
        module = V2[:-1]
    return f"{module}.{kind.__qualname__}"


def display_name(operation: object) -> str:
    """Return the name of a transform for messages: its class, or its function's name, also inside `functools.partial`."""
    if isinstance(operation, functools.partial):
        return f"partial({display_name(operation.func)})"
    return getattr(operation, "__name__", None) or type(operation).__name__


def interpolation_name(value: object) -> str:
    """Return the name of an interpolation: torchvision's enum, a string, Pillow's number, or timm's tuple of several."""
    if isinstance(value, tuple | list):
        return " or ".join(interpolation_name(one) for one in value)
    return str(FILTER_BY_NUMBER.get(value) if isinstance(value, int) else getattr(value, "value", value))
