"""Commands of Python processes that headrace starts for itself.

`python -m` and `python -c` put the current folder in front of `sys.path`: a `json.py` there, in a dataset or an archive of
somebody else, would run in the place of Python's own. Our processes get `-P`, which leaves that folder out. The user's own
command keeps Python's rules, and PYTHONPATH holds for both.
"""

from __future__ import annotations

import sys

__all__ = ["own_module", "own_text"]


def own_module(name: str, *words: str) -> list[str]:
    """Return the command line that runs headrace's module `name` with this Python interpreter.

    own_module("headrace", "train", "--config", "run.toml")
    """
    return [sys.executable, "-P", "-m", name, *words]


def own_text(program: str, *words: str, python: str = sys.executable) -> list[str]:
    """Return the command line that runs `program`, Python source of headrace's own. python: the interpreter, 3.11 or newer."""
    return [python, "-P", "-c", program, *words]
