"""Functions, types and methods without side effects, which the code of an item may call.

They change nothing, and call no code of the script as long as their arguments are values of such types. Functions that draw
random numbers are excluded, and functions that ask for the process, the time or the worker: an item is planned once and may be
made again by the script's own code, and both results must be equal.
"""

from __future__ import annotations

import bisect
import builtins
import collections
import decimal
import enum
import fractions
import io
import math
import os
import pathlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.accelerate.script.library_code import is_of_library

__all__ = [
    "is_plain_type",
    "method_differs",
    "pure_functions",
    "pure_method",
    "tells_the_process",
    "writes_into_argument",
]

BUILTINS = (
    *(
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "dict",
        "divmod",
        "enumerate",
        "float",
        "frozenset",
        "int",
        "len",
        "list",
        "max",
        "min",
    ),
    *(
        "ord",
        "chr",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "pow",
        "hash",
    ),
    *(
        "Exception",
        "IndexError",
        "KeyError",
        "RuntimeError",
        "TypeError",
        "ValueError",
        "FileNotFoundError",
        "NotImplementedError",
    ),
)
PATHS = ("abspath", "basename", "dirname", "exists", "expanduser", "isdir", "isfile", "join", "normpath", "split", "splitext")
NUMPY = (
    *("array", "asarray", "ascontiguousarray", "arange", "argmax", "argmin", "bool_", "clip", "concatenate", "eye", "float32"),
    *(
        "float64",
        "full",
        "int32",
        "int64",
        "max",
        "mean",
        "min",
        "ones",
        "stack",
        "sum",
        "uint8",
        "where",
        "zeros",
        "zeros_like",
    ),
)
TORCH = (
    *("FloatTensor", "LongTensor", "Tensor", "arange", "as_tensor", "cat", "eye", "from_numpy", "full", "is_tensor", "ones"),
    *("stack", "tensor", "zeros", "zeros_like"),
)

#: Types whose methods all have no side effects.
IMMUTABLE = (str, bytes, int, float, bool, complex, tuple, range, frozenset, type(None), slice, np.generic)

#: Methods of other types without side effects.
METHODS: dict[type, frozenset[str]] = {
    list: frozenset({"copy", "count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    set: frozenset({"copy", "difference", "intersection", "union"}),
    pathlib.PurePath: frozenset(
        {"absolute", "as_posix", "exists", "is_dir", "is_file", "joinpath", "match", "relative_to", "resolve"}
        | {"with_name", "with_stem", "with_suffix"}
    ),
    np.ndarray: frozenset(
        {"all", "any", "argmax", "argmin", "astype", "copy", "flatten", "item", "max", "mean", "min", "nonzero", "reshape"}
        | {"squeeze", "sum", "tolist", "transpose"}
    ),
    torch.Tensor: frozenset(
        {
            "argmax",
            "bool",
            "clone",
            "contiguous",
            "dim",
            "double",
            "flatten",
            "float",
            "int",
            "item",
            "long",
            "max",
            "mean",
            "min",
        }
        | {
            "nonzero",
            "numel",
            "numpy",
            "permute",
            "reshape",
            "size",
            "squeeze",
            "sum",
            "to",
            "tolist",
            "type",
            "unsqueeze",
            "view",
        }
    ),
}
PANDAS_METHODS = frozenset(
    {"astype", "copy", "get", "item", "items", "keys", "squeeze", "to_dict", "to_list", "to_numpy", "tolist"}
)

#: Packages whose classes have no special methods with side effects.
PLAIN_PACKAGES = frozenset({"argparse", "builtins", "numpy", "pandas", "pathlib", "types", "array", "datetime"})
PLAIN_TYPES = frozenset(
    {torch.Tensor, torch.Size, torch.dtype, torch.device, collections.OrderedDict, collections.Counter, collections.deque}
    | {decimal.Decimal, fractions.Fraction, io.BytesIO}
)


#: Types that do not count as plain data: a function that gets one as an argument may call it.
_CALLED = types.ModuleType | types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType

#: Position of the argument `out` of NumPy's functions and methods, which they write into.
OUT_BEHIND = {
    **dict.fromkeys((np.argmax, np.concatenate, np.max, np.min, np.stack), 2),
    **dict.fromkeys((np.clip, np.mean, np.sum), 3),
}
OUT_OF_METHOD_BEHIND = {"all": 1, "any": 1, "argmax": 1, "max": 1, "min": 1, "mean": 2, "sum": 2}

SUMS = frozenset({"mean", "sum"})
MOST_SUMMED = 32_768
"""Refuse sums of more values: torch splits them between threads, which rounds otherwise than in a worker (`GRAIN_SIZE`)."""


def writes_into_argument(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether a call of a function without other side effects would write into an argument (`out=…`)."""
    return "out" in named or (bool(arguments) and len(arguments) > _out_behind(function))


def _out_behind(function: Any) -> int:
    try:
        return OUT_BEHIND.get(function, MOST_SUMMED)
    except TypeError:  # without a hash
        return MOST_SUMMED


def method_differs(thing: Any, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether a call of a pure method would write into an argument, or give another value in a worker."""
    if isinstance(thing, torch.Tensor) and name in SUMS and thing.numel() > MOST_SUMMED:
        return True
    of_array = isinstance(thing, np.ndarray) and len(arguments) > OUT_OF_METHOD_BEHIND.get(name, MOST_SUMMED)
    return "out" in named or of_array


#: Modules whose functions reveal the process, or draw random numbers: `tells_the_process` returns True for them.
TELLING = frozenset(
    {"_thread", "multiprocessing", "multiprocessing.context", "multiprocessing.process", "random", "threading", "numpy.random"}
    | {"numpy.random.mtrand", "torch.random", "torch.utils.data._utils.worker"}
)
TELLING_NAMES = frozenset(
    {
        "_exit",
        "abort",
        "kill",
        "killpg",
        "getpid",
        "getppid",
        "get_worker_info",
        "urandom",
        "bernoulli",
        "multinomial",
        "normal",
        "poisson",
    }
    | {f"rand{rest}" for rest in ("", "n", "int", "perm", "_like", "n_like", "int_like")}
)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def tells_the_process(function: Any) -> bool:
    """Return whether a library function reveals or ends the process, or draws random numbers."""
    own, module = getattr(function, "__self__", None), getattr(function, "__module__", None)
    if isinstance(own, GENERATORS) or module in TELLING:
        return not isinstance(function, type)
    of_library = module is None or str(module).partition(".")[0] in ("os", "posix", "nt", "torch")
    return of_library and getattr(function, "__name__", "") in TELLING_NAMES


def pure_functions() -> Iterator[Any]:
    """Yield the functions and types without side effects."""
    yield from (getattr(builtins, name) for name in BUILTINS)
    yield from (getattr(os.path, name) for name in PATHS)
    yield from (function for name, function in vars(math).items() if callable(function) and not name.startswith("_"))
    yield from (getattr(np, name) for name in NUMPY)
    yield from (getattr(torch, name) for name in TORCH)
    yield torch.nn.functional.one_hot
    yield from (bisect.bisect, bisect.bisect_left, bisect.bisect_right)
    yield from (os.fspath, pathlib.Path, pathlib.PurePath)
    pandas = sys.modules.get("pandas")
    yield from (getattr(pandas, name) for name in ("isna", "isnull", "notna", "notnull") if pandas is not None)


def pure_method(kind: type, name: str) -> bool:
    """Return whether a method of a type has no side effects."""
    if kind in IMMUTABLE or (issubclass(kind, np.generic) and kind.__module__ == "numpy"):
        return True
    if kind.__module__.partition(".")[0] == "pandas":
        return name in PANDAS_METHODS
    return is_plain_type(kind) and any(name in names for parent, names in METHODS.items() if issubclass(kind, parent))


def is_plain_type(kind: type) -> bool:
    """Return whether values of a type are plain data, whose special methods have no side effects."""
    if kind in PLAIN_TYPES:
        return True
    if issubclass(kind, enum.Enum):
        return not _has_own_code(kind, "enum")
    if kind.__module__.partition(".")[0] in PLAIN_PACKAGES:
        return not issubclass(kind, _CALLED)
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and not _has_own_code(kind, "collections")


def _has_own_code(kind: type, maker: str) -> bool:
    """Return whether reading, comparing or making a value of a class may run code that its script has written.

    `maker`: the module that makes such classes: its functions are known, and those that it writes itself.
    """
    own = (one for one in kind.__mro__ if not is_of_library(one.__module__))
    for value in (value for one in own for value in vars(one).values()):
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            module = str(function.__globals__.get("__name__"))
            if module != maker and not module.startswith("namedtuple_"):
                return True
        elif isinstance(value, property) or (hasattr(type(value), "__get__") and not is_of_library(type(value).__module__)):
            return True
    return False
