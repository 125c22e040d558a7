"""Find all code that the items of a loader may run, without running it.

That is the code of the dataset's class and of the objects that the dataset holds, and of the functions and classes which that
code names, also as attributes of the script's modules (`helpers.crop`).
"""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.accelerate.script.library_code import PYTHON, is_installed, is_of, nested_codes

__all__ = ["is_compiled", "is_instance", "reached", "reached_codes"]

MOST_VISITED = 500
"""Examine at most this many objects, so that the search stays cheap. Code beyond is not found."""

MOST_PARTS = 32
"""Examine at most this many elements of a list or dict: lists of paths and labels are longer, and hold no code."""

_CONTAINERS = (list, tuple, dict, set, frozenset)
_LIBRARIES = PYTHON | {"PIL", "albumentations", "cv2", "datasets", "numpy", "torch", "torchvision.io", "torchvision.transforms"}
"""Packages whose code is not searched."""


def is_instance(thing: Any, kind: Any) -> bool:
    """Return whether an object is of a class, without calling code of the object as `isinstance` may."""
    return issubclass(type(thing), kind)


def reached_codes(things: list[Any]) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield each code object that may be reached from `things`, and the global names in it with their values."""
    for thing in reached(things):
        if is_instance(thing, types.FunctionType):
            yield from _codes(thing)


def reached(things: list[Any]) -> Iterator[Any]:
    """Yield each object and function that may be reached from `things`, these included."""
    waiting, seen = deque(things), {id(thing) for thing in things}
    for _ in range(MOST_VISITED):
        if not waiting:
            return
        thing = waiting.popleft()
        yield thing
        parts = _parts(thing)
        if is_instance(thing, types.FunctionType):
            for code, values in _codes(thing):
                parts += [*values.values(), *_attributes_of_modules(code, values)]
        for part in parts:
            if id(part) not in seen and not _is_left_out(part):
                seen.add(id(part))
                waiting.append(part)


def _codes(function: types.FunctionType) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield each code object of a function, and the global names in it with their values."""
    for code in nested_codes(function.__code__):
        yield code, {name: function.__globals__[name] for name in _global_names(code) if name in function.__globals__}


def is_compiled(thing: Any) -> bool:
    """Return whether an object is a function or module that `torch.compile` has made, or one with a compiled call."""
    try:
        held = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return False
    return "_torchdynamo_orig_callable" in held or held.get("_compiled_call_impl") is not None


@functools.lru_cache(2048)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a code object looks up as globals: `co_names` holds attributes too."""
    return tuple({one.argval: None for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")})


def _attributes_of_modules(code: types.CodeType, values: dict[str, Any]) -> list[Any]:
    """Return what a code may read of the script's modules that it names."""
    modules = [one for one in values.values() if type(one) is types.ModuleType]
    own = [one for one in modules if not is_installed(str(vars(one).get("__file__") or "<frozen "))]
    return [vars(module)[name] for module in own for name in code.co_names if name in vars(module)]


def _parts(thing: Any) -> list[Any]:
    """Return the objects that an object refers to: elements, attributes and class; of a class its methods and bases."""
    if is_instance(thing, types.FunctionType):
        return [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
    if is_instance(thing, type):
        return [*vars(thing).values(), *thing.__bases__]
    if is_instance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if is_instance(thing, property):
        return [thing.fget]
    if is_instance(thing, types.MethodType | staticmethod | classmethod):
        return [thing.__func__, getattr(thing, "__self__", None)]
    if type(thing) in _CONTAINERS:
        found = list(thing.values() if type(thing) is dict else thing)
        return found if len(found) <= MOST_PARTS else []
    try:
        attributes = list(object.__getattribute__(thing, "__dict__").values())
    except AttributeError:
        attributes = []
    return [type(thing), *attributes]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_left_out(thing: Any) -> bool:
    """Return whether the search stops at an object: plain values, modules, code of `_LIBRARIES`."""
    if is_instance(thing, types.ModuleType | str | bytes | int | float | None):
        return True
    return is_instance(thing, type | types.FunctionType) and is_of(thing.__module__, _LIBRARIES) and not is_compiled(thing)
