"""Names for messages: the call that stands in the script's own code, if one deep inside a library was refused.

Planning an item follows its code through all libraries that it calls. A call may then be refused deep inside `re` or `random`,
by a name that the user has never seen. `written_reason` names the call in the script instead.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from headrace.accelerate.script.library_code import is_installed
from headrace.accelerate.transforms.names import display_name
from headrace.attach.record.unseen_frames import OWN_FOLDERS

__all__ = ["called_name", "is_library", "written_reason"]

SCRIPT = "the script"

OBJECT_CALLS = frozenset({"__call__", "__getitem__", "__init__", "forward"})
"""Methods that run when an object or class is called or indexed: messages name the class instead."""


def called_name(function: Any) -> str:
    """Return the name of a function or class as the script writes it: `random.choice`, `label` (its own).

    A callable object is named by its class.
    """
    module, owner = getattr(function, "__module__", None), getattr(function, "__self__", None)
    if not isinstance(module, str) and owner is not None:
        module = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__module__
    if not isinstance(module, str) or not hasattr(function, "__name__"):
        return display_name(function)
    name, qualified = function.__name__, getattr(function, "__qualname__", function.__name__)
    if "." in qualified and not _is_bound(module, name):
        return _with_module(module, qualified)
    return _name_in(module, name) or _with_module(module, qualified)


def written_reason(reason: str, outermost: types.CodeType) -> str:
    """Return the reason for a refusal. If it arose inside a library, name the library function that the script called.

    `outermost`: the code of the frame from which headrace began to run the script's code.
    """
    frames: list[types.FrameType] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        if not frame.f_code.co_filename.startswith(OWN_FOLDERS):
            frames.append(frame)
        frame = frame.f_back
    library, caller = None, ""
    for one in reversed(frames):
        called = _package(one)
        if called == SCRIPT:
            library = None
        elif library is None and caller not in ("", called):
            library = one
        caller = called
    return reason if library is None else f"its items call {_frame_name(library)}"


def is_library(function: types.FunctionType) -> bool:
    """Return whether a function is defined in a library, not in the script."""
    return is_installed(function.__code__.co_filename)


def _package(frame: types.FrameType) -> str:
    """Return the top-level package whose code a frame runs, or `SCRIPT`."""
    if not is_installed(frame.f_code.co_filename):
        return SCRIPT
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _frame_name(frame: types.FrameType) -> str:
    """Name the function of a library that runs in a frame."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    kind = first if isinstance(first, type) else type(first)
    if not hasattr(kind, code.co_name) or _is_bound(module, code.co_name):
        return _name_in(module, code.co_name) or _with_module(module, code.co_name)
    name = _name_in(kind.__module__, kind.__name__) or _with_module(kind.__module__, kind.__qualname__)
    return name if code.co_name in OBJECT_CALLS else f"{name}.{code.co_name}"


def _is_bound(module: str, name: str) -> bool:
    """Return whether a module has a method of one of its objects under the method's name, as `random.choice` is one."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, types.MethodType | types.BuiltinMethodType) and not isinstance(found.__self__, types.ModuleType)


def _name_in(module: str, name: str) -> str | None:
    """Return the shortest dotted name of what a module has under a name. None if it has nothing."""
    module = (
        "os" if module in ("nt", "posix") else module.lstrip("_")
    )  # `os.listdir` is that of `posix`, `io.open` that of `_io`
    if not hasattr(sys.modules.get(module), name):
        return None
    outer = module.rpartition(".")[0]
    return (outer and _name_in(outer, name)) or _with_module(module, name)


def _with_module(module: str, name: str) -> str:
    """Return a name with its module, unless everybody knows it without: Python's built-in ones, and the script's own."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_own = module in ("__main__", "__mp_main__") or (isinstance(file, str) and not is_installed(file))
    return name if is_own or module == "builtins" else f"{module}.{name}"
