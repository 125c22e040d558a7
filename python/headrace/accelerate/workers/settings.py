"""Process settings that a worker keeps from its start: current folder, limits of Pillow, settings of torch and NumPy.

The script's loop may change its own. Where the script's code runs here in place of a worker, it finds the worker's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from headrace.accelerate.workers.one_at_a_time import one_at_a_time
from headrace.accelerate.workers.one_thread import one_thread

__all__ = ["PILLOWS_PIXEL_LIMIT", "WorkerSettings", "changed_setting", "collate_as_worker", "current_folder"]

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A function that returns a setting, and one that sets it."""


def _print_options() -> Any:
    """Return torch's options for texts of tensors. `torch.set_printoptions` cannot set all of them one by one."""
    return torch._tensor_str.PRINT_OPTS


def collate_as_worker(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as torch's `collate_tensor_fn` does in a worker: into memory of the first tensor's dtype.

    In another process torch promotes dtypes.
    """
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:  # torch refuses these
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    out = torch.empty((len(batch), *first.size()), dtype=first.dtype, device=first.device)
    return torch.stack(batch, 0, out=out)


def _collate_functions() -> dict[Any, Any]:
    """Return torch's functions by type as a worker would call them."""
    found: dict[Any, Any] = default_collate_fn_map.copy()
    if found.get(torch.Tensor) is collate_tensor_fn:
        found[torch.Tensor] = collate_as_worker
    return found


def _set_collate_functions(functions: dict[Any, Any]) -> None:
    """Set the functions of torch's `default_collate` by type. Their order matters."""
    default_collate_fn_map.clear()
    default_collate_fn_map.update(functions)


SETTINGS: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (np.geterr, lambda options: np.seterr(**options)),
    (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    (lambda: vars(_print_options()).copy(), lambda options: vars(_print_options()).update(options)),
    (default_collate_fn_map.copy, _set_collate_functions),
)
"""The settings of torch and NumPy. Those of Pillow are found at run time (`_settings`)."""

_COLLATE = SETTINGS[-1]

PILLOWS_PIXEL_LIMIT = 1024 * 1024 * 1024 // 4 // 3
"""Pillow's default `MAX_IMAGE_PIXELS`. With a lower one Pillow warns of, or refuses, images that native code decodes."""

VARIABLES = (("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"), ("PIL.Image", "MAX_IMAGE_PIXELS"))


def changed_setting() -> str | None:
    """Return the name of a setting that the script has changed and that images depend on, or None."""
    pillow: Any = sys.modules.get("PIL.Image")
    if torch.get_default_dtype() is not torch.float32:
        return "torch's default dtype"
    if getattr(sys.modules.get("PIL.ImageFile"), "LOAD_TRUNCATED_IMAGES", False):
        return "PIL.ImageFile.LOAD_TRUNCATED_IMAGES"
    limit = getattr(pillow, "MAX_IMAGE_PIXELS", PILLOWS_PIXEL_LIMIT)
    return None if limit == PILLOWS_PIXEL_LIMIT else "PIL.Image.MAX_IMAGE_PIXELS"


def current_folder() -> str | None:
    """Return the current folder, or None if it has been deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 -- a text
    except OSError:
        return None


class WorkerSettings:
    """The settings of this process when a pass starts, which a worker would keep. `folder`: the current folder."""

    def __init__(self) -> None:
        self.folder = current_folder()
        self._values = [(setting, setting[0]()) for setting in _settings()]
        self._values.append((_COLLATE, _collate_functions()))
        self._modes = _function_modes()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager: apply these settings to the process, with torch on one thread; restore its own at the end."""
        with one_at_a_time():
            yield from self._exchanged()

    def _exchanged(self) -> Iterator[None]:
        folder, before = current_folder(), [(setting, setting[0]()) for setting in _settings()]
        moves = self.folder is not None and folder is not None and self.folder != folder
        _set(self._values)
        if moves:
            os.chdir(str(self.folder))
        try:
            with one_thread(), ExitStack() as modes:
                for _ in range(_function_modes() - self._modes):
                    modes.enter_context(torch.overrides._pop_mode_temporarily())
                if torch._C._len_torch_dispatch_stack():  # none was there: the loader would not be taken over
                    modes.enter_context(_disable_current_modes())
                yield
        finally:
            if moves:
                os.chdir(str(folder))
            _set(before)


def _settings() -> list[Setting]:
    """Return all settings. Pillow's are those of its modules that are imported."""
    imported = [(sys.modules[module], name) for module, name in VARIABLES if module in sys.modules]
    return [*SETTINGS, *((partial(getattr, module, name), partial(setattr, module, name)) for module, name in imported)]


def _set(values: list[tuple[Setting, Any]]) -> None:
    for (read, write), value in values:
        if read() != value:
            write(value)


def _function_modes() -> int:
    """Return the number of active torch function modes, such as `with torch.device(…)`."""
    return int(torch._C._len_torch_function_stack())
