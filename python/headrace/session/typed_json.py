"""JSON values of a session or a diagnosis, converted to the types of their dataclasses, or refused.

What is of another type, or a number that no measurement gives (NaN, an infinity, 1e308), is an error that names the field.

Standard library only: the session's module uses this one.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from headrace.system.text.printable import value_text

__all__ = ["LARGEST", "converter", "field_converters", "field_value"]

LARGEST = 1e18
"""Refuse larger numbers. Bytes, nanoseconds and identifiers are smaller; sums and products of such numbers stay finite."""
DEEPEST = 40
"""Refuse values of no fixed type (the facts of a training script) that are nested deeper than this many levels."""


@functools.cache
def converter(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a parsed JSON value to the type `kind`, or raises ValueError if the value does not fit.

    `kind`: a dataclass, a tuple, a mapping, a union, a plain type or Any. Unknown fields of a dataclass are ignored.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return _free
    if origin in (typing.Union, types.UnionType):
        return _union([converter(one) for one in arguments if one is not types.NoneType], types.NoneType in arguments)
    if origin is typing.Literal:
        return _plain(str, "text")
    if is_dataclass(kind):
        return functools.partial(_object, kind)
    if origin is tuple:
        return _tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, converter(arguments[1]))
    if kind is float:
        return _number
    if kind is int:
        return _number  # a number is a number: counters of the kernel arrive as floats too
    return _plain(kind, {bool: "true or false", str: "text"}.get(kind, "another value"))


@functools.cache
def field_converters(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Return the `converter` of each field of a dataclass, by the field's name."""
    hints = typing.get_type_hints(kind)
    return {item.name: converter(hints[item.name]) for item in fields(kind)}


def field_value(kind: Any, name: str, value: Any) -> Any:
    """Return a JSON value as the type of this field of a dataclass.

    Raises `ValueError`, which names the field, if the value is of another type.
    """
    return _below(name, field_converters(kind)[name], value)


def _object(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"an object is expected, not {value_text(value)}")
    given = {}
    for name, convert in field_converters(kind).items():
        if name in value:
            given[name] = _below(name, convert, value[name])
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error).partition(") ")[2] or str(error)) from None


def _below(name: object, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _tuple(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"a list is expected, not {value_text(value)}")
        if arguments[-1:] == (Ellipsis,):
            one = converter(arguments[0])
            return tuple(_below(number, one, item) for number, item in enumerate(value))
        if len(value) != len(arguments):
            raise ValueError(f"{len(arguments)} values are expected, not {len(value)}")
        return tuple(
            _below(number, converter(kind), item) for number, (kind, item) in enumerate(zip(arguments, value, strict=True))
        )

    return convert


def _mapping(one: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"an object is expected, not {value_text(value)}")
    return {str(name): _below(name, one, item) for name, item in value.items()}


def _union(kinds: list[Callable[[Any], Any]], optional: bool) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        problem: ValueError | None = None
        for kind in kinds:
            try:
                return kind(value)
            except ValueError as error:
                problem = problem or error
        raise problem or ValueError("no value is expected")

    return convert


def _number(value: Any) -> Any:
    if not isinstance(value, int | float) or not abs(value) <= LARGEST:  # NaN is not below anything
        raise ValueError(f"a number is expected, not {value_text(value)}")
    return value


def _plain(kind: type, words: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"{words} is expected, not {value_text(value)}")
        return value

    return convert


def _free(value: Any, level: int = 0) -> Any:
    """Return a value of any type. Raise ValueError if it is nested deeper than `DEEPEST` levels or holds an invalid number."""
    if level > DEEPEST:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, Mapping):
        for item in value.values():
            _free(item, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _free(item, level + 1)
    elif isinstance(value, int | float):
        _number(value)
    return value
