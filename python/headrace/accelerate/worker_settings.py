"""Settings of the process that a worker keeps from its start: the current folder, Pillow's limits, those of torch and NumPy.

The script's loop may change its own. Where the script's code runs here in place of a worker, it finds the worker's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.overrides

from headrace.accelerate.one_thread import one_thread

__all__ = ["WorkerSettings", "current_folder"]

SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (np.geterr, lambda options: np.seterr(**options)),
    (np.get_printoptions, lambda options: np.set_printoptions(**options)),
)
"""What tells a setting of torch or NumPy, and what sets it."""

VARIABLES = (("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"), ("PIL.Image", "MAX_IMAGE_PIXELS"))


def current_folder() -> str | None:
    """Return the current folder, or None if it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 -- a text
    except OSError:
        return None


class WorkerSettings:
    """The settings as they are now, when a worker would start. `folder`: the current folder."""

    def __init__(self) -> None:
        self.folder = current_folder()
        self._values = _values()
        self._settings = [read() for read, _ in SETTINGS]
        self._modes = _function_modes()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While the block runs, the process has these settings."""
        folder, values = current_folder(), _values()
        moves = self.folder is not None and folder is not None and self.folder != folder
        for (module, name), value in self._values.items():
            setattr(sys.modules[module], name, value)
        if moves:
            os.chdir(str(self.folder))
        try:
            with one_thread(), self._settings_in_place(), ExitStack() as modes:
                for _ in range(_function_modes() - self._modes):
                    modes.enter_context(torch.overrides._pop_mode_temporarily())
                yield
        finally:
            if moves:
                os.chdir(str(folder))
            for (module, name), value in values.items():
                setattr(sys.modules[module], name, value)

    @contextmanager
    def _settings_in_place(self) -> Iterator[None]:
        before = [read() for read, _ in SETTINGS]
        _set(self._settings)
        try:
            yield
        finally:
            _set(before)


def _set(values: list[Any]) -> None:
    for (read, write), value in zip(SETTINGS, values, strict=True):
        if read() != value:
            write(value)


def _function_modes() -> int:
    """Return how many modes see each function of torch here, such as `with torch.device(…)`."""
    return int(torch._C._len_torch_function_stack())


def _values() -> dict[tuple[str, str], Any]:
    return {place: getattr(sys.modules[place[0]], place[1]) for place in VARIABLES if place[0] in sys.modules}
