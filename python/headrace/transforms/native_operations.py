"""Each transform on single images as operations of the native engine: a name, and a value for each field.

`native_schema` has the fields of each operation. Most transforms have attributes of the same names and values; the others are
listed here.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, TypeAlias

from headrace.errors import UsageError
from headrace.transforms import colour, geometry, policies
from headrace.transforms.base import Field, Transform, native_schema
from headrace.transforms.batch import RandomChoice, is_of_batches
from headrace.transforms.colour import Dilation, Erosion, Grayscale, PillowBlur
from headrace.transforms.composition import Compose, RandomApply, RandomOrder, Repeat
from headrace.transforms.geometry import CenterCrop, Pad, RandomAffine, Resize
from headrace.transforms.values import Normalize, ToDtype

__all__ = ["CHANGES_COLOUR", "NATIVE_TRANSFORMS", "NEEDS_AFFINE", "Operation", "is_random", "native_operations"]

Operation: TypeAlias = tuple[str, dict[str, Any]]
"""Name and values by field: bool, int, float, str, a tuple of such, or None."""

NATIVE_TRANSFORMS: dict[str, type[Transform]] = {
    name: kind
    for module in (geometry, colour, policies)
    for name in module.__all__
    if issubclass(kind := getattr(module, name), Transform)
}
"""The transforms that are one native operation, by name."""


def _with_effect(*effects: str) -> frozenset[str]:
    return frozenset(one.name for one in native_schema().values() if one.effect in effects)


#: Operations that may turn or shear the image: `fuse` decides how many samplings they take.
NEEDS_AFFINE = _with_effect("turns", "augments")
#: Operations that may change pixel values other than by resampling.
CHANGES_COLOUR = _with_effect("colours", "augments")


_FIXED = (CenterCrop, Dilation, Erosion, Grayscale, Normalize, Pad, Resize, ToDtype)


def is_random(transform: Transform) -> bool:
    """Return whether a transform draws random numbers."""
    match transform:
        case Compose():
            return any(is_random(part) for part in transform.transforms if isinstance(part, Transform))
        case Repeat():
            return is_random(transform.op)
        case RandomChoice() | RandomOrder() if len(transform.transforms) == 1:
            return is_random(transform.transforms[0])
        case PillowBlur(radius=(low, high)):
            return low != high
    return not isinstance(transform, _FIXED)


def native_operations(transform: Transform) -> list[Operation]:
    """Return the operations of a transform. Raise UsageError for a transform that does not work on single images."""
    match transform:
        case RandomApply():
            inner = [operation for part in transform.transforms for operation in native_operations(part)]
            return [_apply(transform.p, len(inner)), *inner]
        case RandomChoice() if not is_of_batches(transform):
            return _choice([_operations_of(part) for part in transform.transforms], list(transform.p or ()))
        case RandomOrder():
            parts = [native_operations(part) for part in transform.transforms]
            orders = [[operation for part in order for operation in part] for order in permutations(parts)]
            return _choice(orders, [1.0] * len(orders))
        case Repeat():
            return _operations_of(transform.op) * transform.n
        case Resize(size=int()):
            return [_operation(transform, "resize_short")]
        case RandomAffine():
            edges: Any = transform.shear or ()  # two or four
            return [_operation(transform, shear=(*edges, 0.0, 0.0, 0.0, 0.0)[:4])]
        case Grayscale():
            return [_operation(transform, p=1.0)]
        case Dilation() | Erosion():
            return [_operation(transform, radius=transform.size // 2)]
    if not transform.operation:
        raise UsageError(
            f"{type(transform).__name__} cannot be used inside RandomApply, RandomChoice, RandomOrder or Repeat",
            hint="put it at the end of the pipeline",
        )
    return [_operation(transform)]


def _operations_of(transform: Transform) -> list[Operation]:
    """Return the operations of a transform or of all transforms of a Compose."""
    parts = transform.transforms if isinstance(transform, Compose) else (transform,)
    return [operation for part in parts if isinstance(part, Transform) for operation in native_operations(part)]


def _apply(p: float, count: int) -> Operation:
    """Return the operation that applies the next `count` operations with probability `p`, all or none."""
    return "apply", {"p": p, "count": count}


def _choice(branches: list[list[Operation]], weights: list[float]) -> list[Operation]:
    """Return operations that apply one of the branches, chosen by weight.

    The first is applied with its probability, and then the rest is passed over; else one of the rest is chosen.
    """
    chosen = branches[-1]
    for at in range(len(branches) - 2, -1, -1):
        left = sum(weights[at:])
        passed = [_apply(0.0, len(chosen))] if chosen else []
        branch = [*branches[at], *passed]
        chosen = ([_apply(weights[at] / left if left else 0.0, len(branch))] if branch else []) + branch + chosen
    return chosen


def _operation(step: Transform, name: str | None = None, **given: Any) -> Operation:
    """Return the operation of a transform with the values of its attributes, and of `given` where they differ."""
    operation = native_schema()[name or step.operation]
    values = {field.name: given[field.name] if field.name in given else getattr(step, field.name) for field in operation.fields}
    return operation.name, {field.name: _value(field, values[field.name]) for field in operation.fields}


def _value(field: Field, value: Any) -> Any:
    """Return an attribute as the native engine takes it."""
    if value is None:
        return None
    match field.kind:
        case "flag":
            return bool(value)
        case "integer":
            return int(value) if field.count == 1 else tuple(int(one) for one in value)
        case "filters":
            return (value,) if isinstance(value, str) else tuple(value)
        case _:
            return value
