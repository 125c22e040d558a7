"""Hooks that leave no trace in the warnings of the script.

A warning with `stacklevel=2` names the caller of the function that warns. A wrapper around that function would become the
caller: the warning would name a file of headrace, and Python would count it as another warning. `when_made` therefore hooks
`__new__`, whose frame is gone when `__init__` warns, and `left_out_of_warnings` marks a wrapper so that `warnings` skips it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["left_out_of_warnings", "when_made"]

MARK = "importlib._bootstrap"
"""`warnings` skips frames whose file name holds both words (`_is_internal_frame`), for import machinery."""

_listeners: dict[type, list[Callable[[Any, Any], None]]] = {}

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


def when_made(base: type, function: Callable[[Any, Any], None]) -> None:
    """Call `function(iterator, loader)` before an iterator of the class `base`, or of a subclass, is initialised.

    `function` must not raise. Functions are called in the order in which they were given.
    """
    if base not in _listeners:
        _listeners[base] = []
        base.__new__ = staticmethod(_announcing(base.__new__, _listeners[base]))  # type: ignore[method-assign]
    _listeners[base].append(function)


def _announcing(original: Callable[..., Any], listeners: list[Callable[[Any, Any], None]]) -> Callable[..., Any]:
    def __new__(kind: type, *arguments: Any, **options: Any) -> Any:
        made = original(kind) if original is object.__new__ else original(kind, *arguments, **options)
        loader = arguments[0] if arguments else options.get("loader")
        if loader is not None:
            for function in tuple(listeners):
                function(made, loader)
        return made

    return __new__


def left_out_of_warnings(wrapper: Wrapper) -> Wrapper:
    """Return the wrapper with a mark in its file name, so that a warning names the caller of the wrapper."""
    function = cast(types.FunctionType, wrapper)
    function.__code__ = function.__code__.replace(co_filename=f"{function.__code__.co_filename} ({MARK}: left out of warnings)")
    return wrapper
