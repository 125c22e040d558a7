"""Tell a script's own files from those of libraries, of Python and of headrace."""

from __future__ import annotations

import os
import re

from headrace.attach.record.unseen_frames import OWN_FOLDERS

__all__ = ["is_own", "library_path"]

_LIBRARY = re.compile(rf".*-packages{os.sep}|.*{os.sep}lib{os.sep}python3\.\d+{os.sep}")
"""The folders of libraries (site-packages, dist-packages) and of Python's own modules."""

_TYPED = ("<string>", "<stdin>", "<ipython")
"""Code of the script without a file: `python -c`, standard input, cells of a notebook."""


def library_path(file: str) -> str | None:
    """Return the path of a library's file below its folder, such as "torch/nn/linear.py"; None for the script's own file.

    An empty path: the file is headrace's, or stands for made code, such as "<frozen importlib>".
    """
    if file.startswith(OWN_FOLDERS) or (file.startswith("<") and not file.startswith(_TYPED)):
        return ""
    found = _LIBRARY.match(file)
    return file[found.end() :] if found else None


def is_own(file: str) -> bool:
    """Return whether a file is the script's own."""
    return library_path(file) is None
