"""Search the source text of the script's own modules.

Installed packages, Python's own modules and headrace are not searched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.accelerate.script.library_code import is_installed

__all__ = ["module_with", "modules_beside"]

LONGEST_TEXT = 1 << 20
"""Do not search files of more bytes than this: they hold data."""

_known: set[str] = set()
"""Names of the modules that have been examined."""

_own: dict[str, Path] = {}
"""The examined modules that are the script's own, with the paths of their files."""

_without: dict[re.Pattern[str], set[str]] = {}
"""For each pattern the modules of the script that do not contain it, which are not searched again."""


def module_with(pattern: re.Pattern[str]) -> str | None:
    """Return the name of a module of the script whose source contains the pattern, or None.

    The script's worker functions and datasets are in modules that are imported by now.
    """
    for name, module in modules_beside(_known):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not is_installed(path):
            _own[name] = Path(path)
    without = _without.setdefault(pattern, set())
    for name in [name for name in _own if name not in without]:
        if _holds(_own[name], pattern):
            return name
        if name in _known:
            without.add(name)
    return None


def modules_beside(known: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield each imported module that is not in `known`, by name and object, and add its name to `known`.

    So each module is looked at once, and not in each epoch: a job has thousands. One whose import has not ended stays unknown.
    """
    for name in [name for name in list(sys.modules) if name not in known]:
        module = sys.modules.get(name)
        yield name, module
        if not getattr(getattr(module, "__spec__", None), "_initializing", False):
            known.add(name)


def _holds(path: Path, pattern: re.Pattern[str]) -> bool:
    try:
        if path.stat().st_size > LONGEST_TEXT:
            return False
        return pattern.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
