"""The base class of all transforms, and the native operations that they stand for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias

from headrace.errors import UsageError

__all__ = ["Field", "Fill", "Interpolation", "NativeOperation", "Size", "Transform", "check_fields", "native_schema"]

Size: TypeAlias = int | Sequence[int]
"""One int, or (height, width), in pixels."""

Interpolation: TypeAlias = str | Enum
"""A filter's name ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"), or torchvision's InterpolationMode. Results
are Pillow's; those of "bilinear-int16" and "bicubic-int16" are torchvision v2's on uint8 tensors."""

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

    def __post_init__(self) -> None:
        check_fields(self)


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
        elif field.kind == "number" and not least <= value <= most:
            limits = f"between {least:g} and {most:g}" if most < 1e300 else f"{least:g} or more"
        else:
            continue
        raise UsageError(f"{type(step).__name__}: {field.name} must be {limits}, not {value!r}")
