"""Make the native resize follow the installed version of Pillow."""

from __future__ import annotations

import functools
import importlib.metadata

from headrace._native import follow_pillow

__all__ = ["follow_installed_pillow"]


@functools.cache
def follow_installed_pillow() -> None:
    """Resize in the order of passes of the installed Pillow: version 13 changed it.

    A forked worker inherits this. Reading the version takes some milliseconds.
    """
    try:
        follow_pillow(int(importlib.metadata.version("pillow").partition(".")[0]))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return  # without Pillow, no loader is taken over
