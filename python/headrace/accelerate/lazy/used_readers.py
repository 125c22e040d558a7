"""Which libraries read the images of a loader: those whose functions the code of its items and of its collate function names.

The code is looked at, not run: that of the dataset's class and of the objects that the dataset holds, and of the functions and
classes which that code names. torchvision imports `torchvision.io`, and albumentations imports OpenCV, so that a library is
imported tells nothing.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.accelerate.lazy.native_readers import readers_imported
from headrace.accelerate.script.library_code import nested_codes

__all__ = ["readers_used"]

MOST_VISITED = 500
"""Look at no more objects: the answer is for a message."""

MOST_PARTS = 32
"""Look at so many parts of a list or dict: the lists of paths and labels are longer."""

_NAMES = {"OpenCV": {"imread", "imdecode"}, "torchvision.io": {"read_image", "decode_image", "decode_jpeg"}}
_MODULES = {"OpenCV": ("cv2",), "torchvision.io": ("torchvision", "torchvision.io", "torchvision.io.image")}
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LIBRARIES = ("PIL", "albumentations", "cv2", "datasets", "numpy", "torch", "torchvision.io", "torchvision.transforms")
"""The code of these reads no image by another library."""


def readers_used(loader: Any) -> list[str]:
    """Return which of "Pillow", "OpenCV" and "torchvision.io" the items of a DataLoader are read with, as far as code tells.

    Each is imported. If the code names none of them: the first that is imported.
    """
    imported = (["Pillow"] if "PIL.Image" in sys.modules else []) + readers_imported()
    found: set[str] = set()
    for code, names in _codes([loader.dataset, loader.collate_fn]):
        renamed = _functions_of(names)
        for reader, functions in _NAMES.items():
            if functions & renamed or (functions & set(code.co_names) and _names_a_module(code, names, _MODULES[reader])):
                found.add(reader)
        if "open" in code.co_names and any(value is sys.modules.get("PIL.Image") for value in names):
            found.add("Pillow")
    used = [reader for reader in imported if reader in found]
    return used or imported[:1]


def _names_a_module(code: types.CodeType, values: list[Any], modules: tuple[str, ...]) -> bool:
    """Whether a code names one of the modules: other libraries have functions of the same names."""
    names = {*code.co_names, *code.co_varnames, *code.co_freevars}
    return any(name in names or any(value is sys.modules.get(name, code) for value in values) for name in modules)


def _functions_of(values: list[Any]) -> set[str]:
    """Return the names of the libraries' functions among the values: the script may have renamed them."""
    functions = [value for value in values if _is(value, types.FunctionType | types.BuiltinFunctionType)]
    return {one.__name__ for one in functions if str(one.__module__).startswith(("cv2", "torchvision.io"))}


def _is(thing: Any, kind: Any) -> bool:
    """Whether an object is of a class. `isinstance` may call code of the object."""
    return issubclass(type(thing), kind)


def _codes(things: list[Any]) -> Iterator[tuple[types.CodeType, list[Any]]]:
    """Yield each code that is reached from the things, and the values of the global names in it."""
    waiting, seen = deque(things), {id(thing) for thing in things}
    for _ in range(MOST_VISITED):
        if not waiting:
            return
        thing = waiting.popleft()
        parts = _parts(thing)
        if _is(thing, types.FunctionType):
            for code in nested_codes(thing.__code__):
                values = [thing.__globals__[name] for name in _global_names(code) if name in thing.__globals__]
                parts += values
                yield code, values
        for part in parts:
            if id(part) not in seen and not _is_left_out(part):
                seen.add(id(part))
                waiting.append(part)


@functools.lru_cache(2048)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a code looks up among its globals: `co_names` holds those of attributes too."""
    return tuple({one.argval: None for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")})


def _parts(thing: Any) -> list[Any]:
    """Return what an object holds: parts of a container, attributes and class of an object, methods and bases of a class."""
    if _is(thing, types.FunctionType):
        return [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
    if _is(thing, type):
        return [*vars(thing).values(), *thing.__bases__]
    if _is(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if _is(thing, property):
        return [thing.fget]
    if _is(thing, types.MethodType | staticmethod | classmethod):
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
    """Whether nothing that reads an image can be behind something: plain values, modules, code of Python and `_LIBRARIES`."""
    if _is(thing, types.ModuleType | str | bytes | int | float | None):
        return True
    if not _is(thing, type | types.FunctionType):
        return False
    module = str(thing.__module__)
    return module.split(".")[0] in sys.stdlib_module_names or any(f"{module}.".startswith(f"{name}.") for name in _LIBRARIES)
