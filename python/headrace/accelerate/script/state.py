"""Snapshots of the script's transforms and datasets, to detect that the training loop has changed one between two batches.

Without workers a script may change its dataset or its transforms while it iterates (a curriculum, a growing image size), and
its next batch follows. Native batches are made ahead, so their objects are compared again before each batch is handed over.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import numpy as np
import torch

from headrace.accelerate.script.library_code import nested_codes

__all__ = ["state_of"]

MOST_VALUES = 1024
"""Containers of more elements are only examined if all are plain values. Larger tensors are compared by identity and version.
"""

MOST_PLAIN = 65_536
"""Containers of more plain values are compared by identity and length, so that a snapshot stays cheap."""

MOST_BYTES = 1 << 20
"""Larger arrays, in bytes, are compared by identity, so that a snapshot stays cheap."""

DEPTH = 12
"""Examine attributes and containers to this depth. Changes further inside are not noticed."""

_VALUES = (type(None), bool, int, float, complex, str, bytes)
_IDENTITIES = (types.ModuleType, types.BuiltinFunctionType, enum.Enum, torch.dtype, torch.device)
_LIBRARIES = frozenset({"PIL", "numpy", "timm", "torch", "torchvision"})


class _Same:
    """An object, compared by identity."""

    __slots__ = ("_thing",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing is other._thing


class _PlainValues:
    """A container of plain values, compared as a whole."""

    __slots__ = ("_values",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlainValues) and self._values == other._values


def state_of(thing: Any) -> Any:
    """Return a snapshot that equals an earlier one unless a value, an attribute or an element in `thing` has changed.

    Nothing of the script is called. The result refers to the objects that it looked at.

        before = state_of(transform)
        transform.transforms[0].size = (160, 160)
        state_of(transform) == before  # False
    """
    return _state(thing, {}, DEPTH)


def _state(thing: Any, seen: dict[int, Any], depth: int) -> Any:
    if isinstance(thing, _VALUES):
        return type(thing), thing
    if isinstance(thing, _PlainValues):
        return thing
    if depth == 0 or id(thing) in seen or isinstance(thing, _IDENTITIES):
        return _Same(thing)
    seen[id(thing)] = thing
    return (_Same(type(thing)), *(_state(one, seen, depth - 1) for one in _contents(thing)))


def _contents(thing: Any) -> list[Any]:
    """Return the values that an object refers to."""
    if isinstance(thing, torch.Tensor):
        return _values(thing, thing.numel() if thing.device.type == "cpu" and not thing.is_sparse else MOST_VALUES + 1)
    if isinstance(thing, np.ndarray):
        return [thing.dtype.str, thing.tobytes()] if thing.nbytes <= MOST_BYTES and thing.dtype != object else [id(thing)]
    if isinstance(thing, dict | list | tuple | set | frozenset):
        inside: list[Any] = [id(thing), len(thing)]
        if len(thing) <= MOST_VALUES:
            inside = [*thing, *thing.values()] if isinstance(thing, dict) else [*thing]
        elif len(thing) <= MOST_PLAIN and _is_plain(thing):
            inside = [_PlainValues(tuple(dict.items(thing) if isinstance(thing, dict) else thing))]
        return inside + _attributes(thing)
    if isinstance(thing, type):
        return [id(thing), *_of_class(thing)]
    if isinstance(thing, functools.partial):
        return [id(thing), thing.func, thing.args, thing.keywords, *_attributes(thing)]
    if isinstance(thing, types.FunctionType):
        return [id(thing), *_named(thing)]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    return [id(thing), *_attributes(thing), *_of_class(type(thing))]


def _is_plain(container: Any) -> bool:
    """Return whether a container holds plain values alone."""
    values = [*dict.keys(container), *dict.values(container)] if isinstance(container, dict) else container
    return all(kind in _VALUES for kind in set(map(type, values)))


def _of_class(kind: type) -> list[Any]:
    """Return the class variables of the script's own classes in `kind`, and the global variables that their methods name."""
    found: list[Any] = []
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] in _LIBRARIES or one.__module__ in ("builtins", "typing", "abc"):
            continue
        for name, value in vars(one).items():
            value = getattr(value, "__func__", value)  # of a static method, or of a class
            value = value.fget if isinstance(value, property) else value
            if isinstance(value, types.FunctionType) or not name.startswith("__"):
                found.append(value)
    return found


def _values(tensor: torch.Tensor, count: int) -> list[Any]:
    if count > MOST_VALUES:
        return [id(tensor), tensor._version]
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous()
    return [str(tensor.dtype), *tensor.shape, bytes(plain.view(-1).view(torch.uint8).tolist()) if count else b""]


def _attributes(thing: Any) -> list[Any]:
    """Return names and values of the attributes of an object, also those of slots."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            member = vars(kind).get(name)
            if isinstance(member, types.MemberDescriptorType):
                found[name] = _slot(member, thing)
    return [*found, *found.values()]


def _slot(member: types.MemberDescriptorType, thing: Any) -> Any:
    try:
        return member.__get__(thing)
    except AttributeError:  # the slot is empty
        return None


def _named(function: types.FunctionType) -> list[Any]:
    """Return the variables that a function of the script captures, and the global variables that it names."""
    if str(function.__module__).partition(".")[0] in _LIBRARIES:
        return []
    names = [name for code in nested_codes(function.__code__) for name in code.co_names]
    values = [function.__globals__.get(name) for name in names]
    seen: set[int] = set()
    for value in values:  # grows by what the function may read of the script's modules, and of modules in them
        is_own = isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES
        if is_own and id(value) not in seen:
            seen.add(id(value))
            values += [vars(value)[name] for name in names if name in vars(value)]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            values.append(None)
    return [*values, function.__defaults__, function.__kwdefaults__, function.__code__]
