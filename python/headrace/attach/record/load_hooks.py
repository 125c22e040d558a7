"""Install the hook modules when PyTorch and its data loader are imported, and time imports until training starts.

The environment names the hook modules (`HEADRACE_HOOKS`, comma-separated). Each has a function `install()`, which is called
once in each process (the main process, spawned workers, torchrun's ranks) when `torch` and `torch.utils.data.dataloader` are
completely imported. Forked workers inherit the installed hooks. A hook named `package:module` is installed when that package
is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from headrace.attach.record import log
from headrace.attach.record.unseen_frames import drop_own_frames, left_out_of_warnings

__all__ = [
    "HOOKS_VARIABLE",
    "HOOK_FAILED",
    "PROCESS_STARTED_S",
    "SESSION_VARIABLE",
    "disable",
    "start",
    "stop_timing_imports",
    "when_imported",
]

HOOKS_VARIABLE = "HEADRACE_HOOKS"
SESSION_VARIABLE = "HEADRACE_SESSION_DIR"
PLAIN_VARIABLE = "HEADRACE_PLAIN_FILE"
"""A file in a job's output for reasons why something runs plain (`launch/own_code/templates/headrace_entry.py`)."""

HOOK_FAILED = "training steps, because a hook of headrace failed"
"""Text of the session's `not_measured` line for a process whose steps are no longer timed."""

AWAITED = ("torch", "torch.utils.data.dataloader")

PROCESS_STARTED_S = time.monotonic()
"""Time of the first import of this module (monotonic seconds), a few milliseconds after the interpreter started."""

_finished: set[str] = set()
_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}
_state = {"disabled": False}

_started: set[str] = set()
_imports: list[tuple[str, float, float]] = []
_timing = {"on": False, "depth": 0}
TIMED_LOADERS = (importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader)


def start() -> None:
    """Install the hooks when PyTorch is imported, or now if it has been."""
    _finished.update(name for name in AWAITED if name in sys.modules)
    _timing["on"] = SESSION_VARIABLE in os.environ and not _finished
    if _finished.issuperset(AWAITED):
        _install()
    elif not any(isinstance(finder, _AwaitingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AwaitingFinder())
    for name in _new_hooks():
        package, colon, module = name.partition(":")
        if colon:
            _started.add(name)
            when_imported(package, partial(_install_one, module))


def _new_hooks() -> list[str]:
    """Return the hooks that are not started in this process yet: a block of `headrace.watch` adds hooks to present ones."""
    return [name for name in os.environ.get(HOOKS_VARIABLE, "").split(",") if name and name not in _started]


def _install_one(name: str, _: ModuleType | None = None) -> None:
    try:
        importlib.import_module(name).install()
    except Exception:
        disable(name)


def when_imported(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call `function` with the module `name` when it is imported, or now if it has been. `disable` reports an error."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _call(name, function, module)
        return
    _awaited.setdefault(name, []).append(function)
    if not any(isinstance(finder, _AwaitingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AwaitingFinder())


def stop_timing_imports() -> list[tuple[str, float, float]]:
    """Return name, start and seconds of each outermost import since the process began, and stop timing them."""
    _timing["on"] = False
    imports = _imports[:]
    _imports.clear()
    _retire()
    return imports


def _retire() -> None:
    """Remove the finder when no module is awaited."""
    if _finished.issuperset(AWAITED) and not _awaited and not _timing["on"]:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AwaitingFinder)]


def _call(name: str, function: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        function(module)
    except Exception:
        disable(f"the hook for {name}")


class Guarded:
    """A hook whose first error turns it off and never reaches the script. where: its name in the line that says so."""

    where: str
    _off = False

    def guarded(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function`, unless the hook is off."""
        if not self._off:
            try:
                function(*args)
            except Exception:
                self._off = True
                disable(self.where)


def disable(where: str) -> None:
    """Print the current exception in one line, once in a process. `where` names the hook that no longer measures."""
    if not _state["disabled"]:
        _state["disabled"] = True
        reason = traceback.format_exc(limit=-1).strip().splitlines()
        detail = f"{reason[-1]} ({reason[1].strip()})" if len(reason) > 2 else reason[-1]
        words = f"{where} is off in process {os.getpid()}: {detail}"
        log.log_line(f"headrace: {words}")
        _keep_for_the_job(words)


def _keep_for_the_job(words: str) -> None:
    """Add a line to the output of the job whose script this is, if it is one: nobody reads its log to the end."""
    path = os.environ.get(PLAIN_VARIABLE)
    with suppress(OSError):
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{words}\n")


def _install() -> None:
    for name in _new_hooks():
        if ":" not in name:
            _started.add(name)
            _install_one(name)


def _import_finished(name: str) -> None:
    for function in _awaited.pop(name, ()):
        _call(name, function, sys.modules[name])
    if name in AWAITED:
        _finished.add(name)
        if _finished.issuperset(AWAITED):
            _install()
    _retire()


class _AwaitingFinder(importlib.abc.MetaPathFinder):
    """A finder that lets the other finders find an awaited module, and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        wanted = fullname in AWAITED or fullname in _awaited
        if not wanted and not (_timing["on"] and _timing["depth"] == 0):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and (wanted or type(spec.loader) in TIMED_LOADERS):
                    spec.loader = _AwaitingLoader(spec.loader)
                return spec
        return None


class _AwaitingLoader(importlib.abc.Loader):
    """A loader that calls the module's own loader, and reports when the module is completely executed."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        try:
            return self._loader.create_module(spec)
        except BaseException as error:  # such as a library that an extension module needs and that is not there
            drop_own_frames(error)
            raise

    @left_out_of_warnings  # a module that warns of its own import names the line of the script that imports it
    def exec_module(self, module: ModuleType) -> None:
        # The module must keep its own loader: pickling and resource look-ups use `__spec__.loader`.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        begin_s = time.monotonic()
        _timing["depth"] += 1
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            _timing["depth"] -= 1
        if _timing["on"] and _timing["depth"] == 0:
            _imports.append((module.__name__, begin_s, time.monotonic() - begin_s))
        _import_finished(module.__name__)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)
