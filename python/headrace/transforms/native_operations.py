"""Each transform on single images as operations of the native engine: a name, and a value for each field.

`native_schema` has the fields of each operation. Most transforms have attributes of the same names and values; the others are
listed here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.errors import UsageError
from headrace.transforms import colour, geometry, policies
from headrace.transforms.base import Field, Transform, native_schema
from headrace.transforms.colour import Dilation, Erosion, Grayscale
from headrace.transforms.composition import Compose, RandomApply, Repeat
from headrace.transforms.geometry import RandomAffine, Resize

__all__ = ["CHANGES_COLOUR", "NATIVE_TRANSFORMS", "NEEDS_AFFINE", "Operation", "native_operations"]

Operation: TypeAlias = tuple[str, dict[str, Any]]
"""Name and values by field: bool, int, float, str, a tuple of such, or None."""

NATIVE_TRANSFORMS: dict[str, type[Transform]] = {
    name: getattr(module, name) for module in (geometry, colour, policies) for name in module.__all__
}
"""The transforms that are one native operation, by name."""


def _with_effect(*effects: str) -> frozenset[str]:
    return frozenset(one.name for one in native_schema().values() if one.effect in effects)


#: Operations that may turn or shear the image: `fuse` decides how many samplings they take.
NEEDS_AFFINE = _with_effect("turns", "augments")
#: Operations that may change pixel values other than by resampling.
CHANGES_COLOUR = _with_effect("colours", "augments")


def native_operations(transform: Transform) -> list[Operation]:
    """Return the operations of a transform. Raise UsageError for a transform that does not work on single images."""
    match transform:
        case RandomApply():
            inner = [operation for part in transform.transforms for operation in native_operations(part)]
            return [("apply", {"p": transform.p, "count": len(inner)}), *inner]
        case Repeat():
            parts = transform.op.transforms if isinstance(transform.op, Compose) else (transform.op,)
            once = [operation for part in parts if isinstance(part, Transform) for operation in native_operations(part)]
            return once * transform.n
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
            f"{type(transform).__name__} cannot be used inside RandomApply or Repeat", hint="put it at the end of the pipeline"
        )
    return [_operation(transform)]


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
