"""The version of Pillow that the script uses, which the native resize follows."""

from __future__ import annotations

import functools
import importlib.metadata

from headrace._native import follow_pillow

__all__ = ["follow_installed_pillow"]


@functools.cache
def follow_installed_pillow() -> None:
    """Resize as the installed Pillow does: its version 13 changed the order of the two passes.

    A forked worker inherits this. Reading the version takes some milliseconds.
    """
    try:
        follow_pillow(int(importlib.metadata.version("pillow").partition(".")[0]))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return  # without Pillow, no loader is taken over
