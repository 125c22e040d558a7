"""Modules of the script that compare the class of a tensor by `type()`, which tells a deferred tensor from torch's own.

`isinstance` and `__class__` do not. The text of the script's own modules is searched, not those of installed packages.
"""

from __future__ import annotations

import functools
import re
import site
import sys
import sysconfig
from pathlib import Path

__all__ = ["compares_tensor_types"]

_COMPARISON = re.compile(r"type\([^\n]{1,80}\)\s*(is|is\s+not|==|!=|in|not\s+in)\s[^\n]{0,60}\b(Tensor|tensor|Image)\b")
LONGEST_TEXT = 1 << 20
"""Search no file of more bytes: it holds data."""

_searched: dict[str, bool] = {}


def compares_tensor_types() -> str | None:
    """Return the name of a module of the script that compares `type(…)` with a class of tensors, or None.

    Modules are searched once. The script's worker functions and datasets are in modules that are imported by then.
    """
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        if path not in _searched:
            _searched[path] = not _is_installed(path) and _compares(Path(path))
        if _searched[path]:
            return name
    return None


def _is_installed(path: str) -> bool:
    return path.startswith(_installed()) or "/site-packages/" in path or "/dist-packages/" in path


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of installed packages, of Python itself and of this package."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({str(Path(path)) for path in [*paths, *site.getsitepackages(), *_own_folders()] if path})


def _own_folders() -> list[str]:
    user = site.getusersitepackages()
    return [user, str(Path(__file__).parents[1])]


def _compares(path: Path) -> bool:
    try:
        if path.stat().st_size > LONGEST_TEXT:
            return False
        return _COMPARISON.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
