"""Tell library code from the script's own, and the constant variables of library modules from changing ones.

Variables of libraries are taken for constants if they are values, functions, classes or modules, and no function of their
module stores them anew. What differs between processes or in time is stored anew: the worker's number, the current process, a
counter.
"""

from __future__ import annotations

import dis
import functools
import opcode
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.accelerate.script.text import comes_installed

__all__ = ["is_constant", "is_of_library", "loaded_names", "nested_codes"]

#: Packages, besides Python's own, whose code counts as library code: no training loop changes it.
PACKAGES = frozenset(
    {"PIL", "albumentations", "cv2", "datasets", "headrace", "lightning", "numpy", "pandas", "pyarrow", "pycocotools"}
    | {"pytorch_lightning", "scipy", "skimage", "timm", "torch", "torchvision", "transformers"}
)
LIBRARIES = PACKAGES | sys.stdlib_module_names - {"__main__"}

_VALUES = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, re.Pattern, torch.dtype, torch.device)
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, np.ufunc, np.generic)
_CONTAINERS = (dict, list, set)


def is_of_library(module: Any) -> bool:
    """Return whether a module is Python's own, or belongs to a package whose code no training loop changes."""
    package = module.partition(".")[0] if isinstance(module, str) else ""
    return package in LIBRARIES and comes_installed(package)


def is_constant(module: dict[str, Any], name: str, *, may_contain: bool = False) -> bool:
    """Return whether a library module's variable has the same value in each process at each time.

    `may_contain`: accept lists and dicts too, for a variable that the module's own code reads.
    """
    value = module.get(name)
    if name in _stored_anew(str(module.get("__name__"))):
        return False
    if callable(value) or isinstance(value, (*_VALUES, *_CODE)) or type(value).__module__ == "typing":
        return True
    return isinstance(value, typing.TypeVar) or (may_contain and type(value) in _CONTAINERS)


@functools.cache
def _stored_anew(name: str) -> frozenset[str]:
    """Return the global variables of a module that its functions assign (`global`)."""
    module = sys.modules.get(name)
    if module is None:
        return frozenset()
    found: set[str] = set()
    for code in _codes_of(vars(module)):
        if opcode.opmap["STORE_GLOBAL"] in code.co_code[::2]:
            found.update(one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
    return frozenset(found)


def _codes_of(module: dict[str, Any]) -> Iterator[types.CodeType]:
    """Yield the code of each function of a module and of its classes."""
    for value in list(module.values()):
        is_class = isinstance(value, type) and vars(value).get("__module__") == module["__name__"]
        for one in list(vars(value).values()) if is_class else [value]:
            function = one
            if isinstance(one, staticmethod | classmethod):
                function = one.__func__
            elif isinstance(one, property):
                function = one.fget
            while type(function) is types.FunctionType:
                if function.__globals__ is module:
                    yield from nested_codes(function.__code__)
                function = vars(function).get("__wrapped__")


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of functions, classes and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


@functools.lru_cache(maxsize=4096)
def loaded_names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the names of the global variables, attributes and modules that a code object loads."""
    found: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for one in nested_codes(code):
        for instruction in dis.get_instructions(one):
            name = instruction.opname
            if name in ("LOAD_GLOBAL", "LOAD_NAME"):
                found[0].add(instruction.argval)
            elif name.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER", "IMPORT_FROM")):
                found[1].add(instruction.argval)
            elif name == "IMPORT_NAME":
                found[2].add(instruction.argval)
        if "getattr" in one.co_names:
            found[1].update(constant for constant in one.co_consts if isinstance(constant, str))
    return frozenset(found[0]), frozenset(found[1]), frozenset(found[2])
