"""Hide hooks from the warnings, tracebacks and modes of the script.

A warning with `stacklevel=2` names the caller of the function that warns. A wrapper around that function would become the
caller: the warning would name a file of headrace, and Python would count it as another warning. `when_made` therefore hooks
`__new__`, whose frame is gone when `__init__` warns, and `left_out_of_warnings` marks a wrapper so that `warnings` skips it.

A traceback names every function that an error leaves. A wrapper therefore catches the error, calls `drop_own_frames`, and
raises the error again by a bare `raise`, which adds no frame:

    try:
        return original(self)
    except BaseException as error:
        drop_own_frames(error)
        raise
"""

from __future__ import annotations

import contextlib
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

__all__ = ["are_operators_seen", "drop_own_frames", "is_unannounced", "left_out_of_warnings", "unannounced", "when_made"]

MARK = "importlib._bootstrap"
"""Text in the file names of hook frames: `warnings` skips frames whose file name holds both words (`_is_internal_frame`)."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 -- every Python below the command runs this
OWN_FOLDERS = tuple(os.path.join(_PACKAGE, folder, "") for folder in ("accelerate", "attach"))  # noqa: PTH118
"""Folders of headrace's code that runs between the script and its libraries, which tracebacks leave out."""

_listeners: dict[type, list[Callable[[Any, Any], None]]] = {}

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


def are_operators_seen() -> bool:
    """Return whether an operator on tensors would be seen now: by a mode of the script, a trace, or a transform (`vmap`)."""
    import torch

    core = torch._C
    return bool(core._len_torch_dispatch_stack() or core._get_tracing_state() or core._functorch.peek_interpreter_stack())


def when_made(base: type, function: Callable[[Any, Any], None]) -> None:
    """Call `function(iterator, loader)` before an iterator of the class `base`, or of a subclass, is initialised.

    `function` must not raise. Functions are called in the order in which they were given.
    """
    if base not in _listeners:
        _listeners[base] = []
        base.__new__ = staticmethod(_announcing(base.__new__, _listeners[base]))  # type: ignore[method-assign]
    _listeners[base].append(function)


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Context manager: do not call the functions of `when_made` in this thread, for iterators that headrace makes."""
    _silence.depth = getattr(_silence, "depth", 0) + 1
    try:
        yield
    finally:
        _silence.depth -= 1


_silence = threading.local()


def is_unannounced() -> bool:
    """Return whether this thread is inside `unannounced`."""
    return getattr(_silence, "depth", 0) > 0


def _announcing(original: Callable[..., Any], listeners: list[Callable[[Any, Any], None]]) -> Callable[..., Any]:
    def __new__(kind: type, *arguments: Any, **options: Any) -> Any:
        made = original(kind) if original is object.__new__ else original(kind, *arguments, **options)
        loader = arguments[0] if arguments else options.get("loader")
        if loader is not None and not is_unannounced():
            for function in tuple(listeners):
                function(made, loader)
        return made

    return __new__


def left_out_of_warnings(wrapper: Wrapper) -> Wrapper:
    """Add `MARK` to the file name of a wrapper function, so that warnings name its caller. Return the wrapper."""
    function = cast(types.FunctionType, wrapper)
    function.__code__ = function.__code__.replace(co_filename=f"{function.__code__.co_filename} ({MARK}: left out of warnings)")
    return wrapper


def drop_own_frames(error: BaseException) -> None:
    """Remove the frames of hooks from the traceback of an error, and from those of the errors that caused it.

    The frames of the script, of its libraries and of headrace's own loader and trainer stay.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own(one.__traceback__)
        waiting += (one.__cause__, one.__context__)


def _without_own(trace: types.TracebackType | None) -> types.TracebackType | None:
    first = trace = _next_foreign(trace)
    while trace is not None:
        after = _next_foreign(trace.tb_next)
        if after is not trace.tb_next:
            trace.tb_next = after
        trace = after
    return first


def _next_foreign(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDERS):
        trace = trace.tb_next
    return trace
