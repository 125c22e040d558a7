"""Existing names near a path that does not exist, for the hint of an error."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

__all__ = ["near_path_hint"]

MOST_NAMES = 5000  # compare at most this many names of a folder: more would take long on a network file system


def near_path_hint(path: str | os.PathLike[str], otherwise: str) -> str:
    """Return "did you mean …?" with the existing path most like `path`; `otherwise` if none is alike.

    near_path_hint("/data/trian", "check the path")  # "did you mean /data/train?"
    """
    wanted = Path(path)
    try:
        parent = next(folder for folder in wanted.parents if folder.is_dir())
        first = wanted.relative_to(parent).parts[0]
        with os.scandir(parent) as entries:
            names = [entry.name for _, entry in zip(range(MOST_NAMES), entries, strict=False) if entry.name != first]
    except (OSError, StopIteration, ValueError):
        return otherwise
    by_lower = {name.lower(): name for name in sorted(names, reverse=True)}
    near = difflib.get_close_matches(first.lower(), by_lower, n=1)
    if not near:
        return otherwise
    found = parent / by_lower[near[0]]
    rest = wanted.relative_to(parent).parts[1:]
    whole = found.joinpath(*rest)
    return f"did you mean {whole if rest and whole.exists() else found}?"
