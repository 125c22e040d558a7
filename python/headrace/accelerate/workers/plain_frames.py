"""Make warnings of torch's iterator initialiser name the same line of torch as without headrace.

`_BaseDataLoaderIter.__init__` warns with `stacklevel=2`, so the warning names its caller: a line in the initialiser of torch's
own iterator. `initialise` calls it from there: its frame has that file and that line, and the variables of that module, in
which `warnings` also notes which warnings it has shown.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

__all__ = ["initialise"]


def initialise(iterator: Any, loader: Any) -> None:
    """Call `_BaseDataLoaderIter.__init__(iterator, loader)` from a frame that looks like torch's own iterator for `loader`.

    The profiler's name for the iterator's steps is that of torch's own, too.
    """
    has_workers = loader.num_workers > 0
    _callers[has_workers](iterator, loader)
    iterator._profile_name = f"enumerate(DataLoader)#{_kinds[has_workers].__name__}.__next__"


def _caller(kind: type) -> Callable[[Any, Any], None]:
    """Return a function that calls the base initialiser from the line at which `kind.__init__` does."""
    own: Any = kind.__dict__["__init__"]
    own = getattr(own, "__wrapped__", own)  # the hook of `headrace diagnose` wraps it
    line = next((at.positions.lineno for at in dis.get_instructions(own) if at.argval == "super" and at.positions), None)
    call = lambda iterator, loader: _BaseDataLoaderIter.__init__(iterator, loader)  # type: ignore[name-defined] # noqa: E731, F821
    code = call.__code__.replace(
        co_filename=own.__code__.co_filename, co_name="__init__", co_firstlineno=line or own.__code__.co_firstlineno
    )
    return types.FunctionType(code, vars(dataloader))


_kinds = {False: dataloader._SingleProcessDataLoaderIter, True: dataloader._MultiProcessingDataLoaderIter}
_callers = {has_workers: _caller(kind) for has_workers, kind in _kinds.items()}
