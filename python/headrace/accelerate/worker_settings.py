"""Settings of the process that a worker keeps from its start: the current folder, Pillow's limits, and one thread for torch.

The script's loop may change its own. Where the script's code runs here in place of a worker, it finds the worker's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.accelerate.one_thread import one_thread

__all__ = ["WorkerSettings", "current_folder"]

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
            with one_thread():
                yield
        finally:
            if moves:
                os.chdir(str(folder))
            for (module, name), value in values.items():
                setattr(sys.modules[module], name, value)


def _values() -> dict[tuple[str, str], Any]:
    return {place: getattr(sys.modules[place[0]], place[1]) for place in VARIABLES if place[0] in sys.modules}
