"""Find attributes that code computes when they are read: properties, descriptors, `__getattr__` of classes and modules."""

from __future__ import annotations

import types
import weakref
from typing import Any

from headrace.accelerate.script.library_code import is_of_library
from headrace.accelerate.script_code.deep_copies import own_special_method

__all__ = ["computed_attribute", "property_of", "vars_of"]

METHODS = frozenset({"__getattr__", "__getattribute__"})
"""Methods that run when an attribute is read."""

_stored = (types.FunctionType, staticmethod, types.MemberDescriptorType)
_without_methods: weakref.WeakSet[type] = weakref.WeakSet()


def computed_attribute(thing: Any, name: str) -> str | None:
    """Return in words what code would run if `thing.name` were read; None if it is stored. `thing`: no plain data."""
    kind = type(thing)
    if kind is types.ModuleType:
        return None if name in vars(thing) or is_of_library(thing.__name__) else f"{thing.__name__}.{name}, which it computes"
    if kind is super:
        return next(filter(None, (property_of(parent, name) for parent in thing.__self_class__.__mro__)), None)
    if kind not in _without_methods:
        if (method := own_special_method(kind, METHODS)) is not None:
            return f"{name} of an object of {kind.__name__}, which has its own {method}"
        _without_methods.add(kind)
    found = None if kind is type else property_of(kind, name)
    return _descriptor_of(thing, name) if found is None and isinstance(thing, type) else found


def property_of(kind: type, name: str) -> str | None:
    """Return in words the property or descriptor that runs if the attribute `name` of an object of a class is read, or None."""
    value = vars_of(kind, name)
    runs = hasattr(type(value), "__get__") and not isinstance(value, _stored) and not _is_class_method(value)
    return f"the property {kind.__name__}.{name}" if runs else None


def _descriptor_of(kind: type, name: str) -> str | None:
    """Return in words the descriptor of the script that runs if an attribute of a class is read. A property is itself there."""
    value = vars_of(kind, name)
    runs = isinstance(value, classmethod) and not _is_class_method(value)
    if runs or (hasattr(type(value), "__get__") and not is_of_library(type(value).__module__)):
        return f"the property {kind.__name__}.{name}"
    return None


def _is_class_method(value: Any) -> bool:
    """Return whether an entry of a class is a class method. One may also be made of a property."""
    return isinstance(value, classmethod) and isinstance(value.__func__, types.FunctionType)


def vars_of(kind: type, name: str) -> Any:
    """Return the entry `name` in the `__dict__` of a class or its bases, unbound. None if there is none."""
    return next((vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)), None)
