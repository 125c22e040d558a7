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
import site
import sys
import sysconfig
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["PYTHON", "is_constant", "is_installed", "is_of", "is_of_library", "loaded_names", "nested_codes"]

PYTHON = frozenset(sys.stdlib_module_names)
"""The packages and modules that come with Python."""

#: Packages whose code counts as library code: no training loop changes it.
LIBRARIES = PYTHON | frozenset(
    {"PIL", "albumentations", "cv2", "datasets", "headrace", "lightning", "numpy", "pandas", "pyarrow", "pycocotools"}
    | {"pytorch_lightning", "scipy", "skimage", "timm", "torch", "torchvision", "transformers"}
)

_VALUES = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, re.Pattern, torch.dtype, torch.device)
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, np.ufunc, np.generic)
_CONTAINERS = (dict, list, set)


def is_of_library(module: Any) -> bool:
    """Return whether a module is Python's own, or belongs to a package whose code no training loop changes."""
    return is_of(module, LIBRARIES)


def is_of(module: Any, packages: frozenset[str]) -> bool:
    """Return whether a module, given by its name, belongs to one of these packages, and the package is not the script's own.

    `packages`: names, also dotted ones such as "torchvision.io". A script may have a folder or file with the name of one:
    `datasets`, `cmd.py`. False for anything that is no name.
    """
    return isinstance(module, str) and _is_named(module, packages) and _comes_installed(module.partition(".")[0])


@functools.lru_cache(maxsize=8192)
def _is_named(module: str, packages: frozenset[str]) -> bool:
    while module and module not in packages:
        module = module.rpartition(".")[0]
    return bool(module)


def _comes_installed(package: str) -> bool:
    """Return whether a package is an installed one, Python's own, or not imported yet."""
    path = getattr(sys.modules.get(package), "__file__", None)
    return not isinstance(path, str) or is_installed(path)


@functools.lru_cache(maxsize=8192)
def is_installed(path: str) -> bool:
    """Return whether a Python file belongs to an installed package, to Python itself or to headrace."""
    return path.startswith((*_installed(), "<frozen ", "<__")) or "/site-packages/" in path or "/dist-packages/" in path


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of installed packages, of Python itself and of this package."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({str(Path(path)) for path in [*paths, *site.getsitepackages(), *_own_folders()] if path})


def _own_folders() -> list[str]:
    user = site.getusersitepackages()
    return [user, str(Path(__file__).parents[2])]


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
