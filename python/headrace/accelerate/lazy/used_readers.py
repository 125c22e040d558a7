"""Find out which image libraries (Pillow, OpenCV, torchvision.io) a loader reads with, from the code of its items.

The code is looked at, not run (`reached_code`). torchvision imports `torchvision.io`, and albumentations imports OpenCV, so an
imported library tells nothing.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from headrace.accelerate.lazy.native_readers import readers_imported
from headrace.accelerate.script.reached_code import is_instance, reached_codes

__all__ = ["readers_used"]

_NAMES = {"OpenCV": {"imread", "imdecode"}, "torchvision.io": {"read_image", "decode_image", "decode_jpeg"}}
_MODULES = {"OpenCV": ("cv2",), "torchvision.io": ("torchvision", "torchvision.io", "torchvision.io.image")}


def readers_used(loader: Any) -> list[str]:
    """Return which of "Pillow", "OpenCV" and "torchvision.io" the code of the items and of the collate function names.

    Only imported libraries count. If the code names none of them: the first that is imported.
    """
    imported = (["Pillow"] if "PIL.Image" in sys.modules else []) + readers_imported()
    found: set[str] = set()
    for code, values in reached_codes([loader.dataset, loader.collate_fn]):
        names = list(values.values())
        renamed = _functions_of(names)
        for reader, functions in _NAMES.items():
            if functions & renamed or (functions & set(code.co_names) and _names_a_module(code, names, _MODULES[reader])):
                found.add(reader)
        if "open" in code.co_names and any(value is sys.modules.get("PIL.Image") for value in names):
            found.add("Pillow")
    used = [reader for reader in imported if reader in found]
    return used or imported[:1]


def _names_a_module(code: types.CodeType, values: list[Any], modules: tuple[str, ...]) -> bool:
    """Return whether a code names one of the modules: other libraries have functions of the same names."""
    names = {*code.co_names, *code.co_varnames, *code.co_freevars}
    return any(name in names or any(value is sys.modules.get(name, code) for value in values) for name in modules)


def _functions_of(values: list[Any]) -> set[str]:
    """Return the names of the libraries' functions among the values: the script may have renamed them."""
    functions = [value for value in values if is_instance(value, types.FunctionType | types.BuiltinFunctionType)]
    return {one.__name__ for one in functions if str(one.__module__).startswith(("cv2", "torchvision.io"))}
