"""Show each warning of the script's items as often as its worker processes would: once in each worker.

Python shows a warning of one line once in each process, unless a filter says otherwise. It notes what it has shown in the
module of that line, and for `once` in `warnings.onceregistry`. A worker begins each pass with what the script's process has
noted.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.accelerate.workers.one_at_a_time import one_at_a_time
from headrace.accelerate.workers.unheard_warnings import unheard_warnings

__all__ = ["WorkerWarnings"]

_REGISTRY = "__warningregistry__"

Noted = dict[str, dict[Any, Any]]
"""Warnings that Python has shown, by the name of the module; under "" those of the filter `once`."""


class WorkerWarnings:
    """The warnings that each worker of a pass has shown. `forked`: workers start with those that this process has shown."""

    def __init__(self, *, forked: bool) -> None:
        self._begin: Noted = {name: dict(noted) for name, noted in _noted().items()} if forked else {}
        self._of: dict[int, Noted] = {}

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Context manager: warnings are shown as worker number `worker` would show them."""
        with one_at_a_time():
            yield from self._exchanged(worker)

    def _exchanged(self, worker: int) -> Iterator[None]:
        if worker not in self._of:
            self._of[worker] = {name: dict(noted) for name, noted in self._begin.items()}
        own, counted, shown = _noted(), _are_counted(), _shown
        _put(self._of[worker], own)
        show, own_show = _forget_recorded(), warnings.showwarning
        if own_show is not _PYTHONS_OWN:
            warnings.showwarning = functools.partial(_in_child, own_show)
        try:
            yield
        finally:
            warnings.showwarning = own_show
            if show is not None:
                warnings._showwarnmsg_impl = show  # type: ignore[attr-defined]
            if not (counted and _are_counted() and _shown == shown):
                self._of[worker] = _found_in_modules()
            _put(own, self._of[worker])


_PYTHONS_OWN = warnings._showwarning_orig  # type: ignore[attr-defined]


def _in_child(show: Any, *arguments: Any, **named: Any) -> None:
    """Show a warning, by a function of the script or of `logging`, in a forked child: this process does not remember it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with unheard_warnings():  # Python's about threads
        child = os.fork()
    if child == 0:
        try:
            show(*arguments, **named)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


_shown = 0
_last: tuple[int, Noted] | None = None
"""Number of warnings shown when the modules were last searched, and the result of that search."""


def _noted() -> Noted:
    """Return the warnings that this process has shown. The thousands of modules are searched only if one was shown since.

    A warning that is noted is shown. One that a script shows by a function of its own is not counted.
    """
    global _last
    counted = _are_counted()
    if counted and _last is not None and _last[0] == _shown:
        return {**_last[1], "": warnings.onceregistry}  # type: ignore[attr-defined]
    found = _found_in_modules()
    _last = (_shown, found) if counted else None
    return found


def _are_counted() -> bool:
    """Return whether Python's own function shows warnings. They are counted from the first call on."""
    global _pythons_shows, _last
    shows = getattr(warnings, "_showwarnmsg_impl", None)
    if shows is not _counting and isinstance(shows, types.FunctionType) and shows.__module__ == "warnings":
        _pythons_shows, _last = shows, None
        warnings._showwarnmsg_impl = shows = _counting  # type: ignore[attr-defined]
    return shows is _counting and warnings.showwarning is _PYTHONS_OWN


_pythons_shows: Any = None


def _counting(message: Any) -> None:
    global _shown
    _shown += 1
    _pythons_shows(message)


def _found_in_modules() -> Noted:
    found: Noted = {"": warnings.onceregistry}  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        noted = getattr(module, "__dict__", {}).get(_REGISTRY)
        if noted is not None:
            found[name] = noted
    return found


def _put(noted: Noted, instead_of: Noted) -> None:
    """Replace the record of shown warnings `instead_of` by `noted`."""
    warnings.onceregistry = noted.get("", {})  # type: ignore[attr-defined]
    for name in instead_of.keys() | noted.keys():
        module = sys.modules.get(name)
        if not name or module is None:
            continue
        if name in noted:
            module.__dict__[_REGISTRY] = noted[name]
        else:
            module.__dict__.pop(_REGISTRY, None)


def _forget_recorded() -> Any:
    """Stop the script's list (`catch_warnings(record=True)`) from recording warnings that would come from a worker.

    Return the function that recorded them, or None.
    """
    show = getattr(warnings, "_showwarnmsg_impl", None)
    if type(getattr(show, "__self__", None)) is not list:
        return None
    warnings._showwarnmsg_impl = lambda message: None  # type: ignore[attr-defined]
    return show
