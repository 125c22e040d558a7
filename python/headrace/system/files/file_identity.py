"""Identify the content of a file without reading it, for the keys of caches.

Size and time of change alone do not: whoever rewrites a file can set both. The kernel sets the time of the last change of the
inode itself (ctime), and a file that takes another's name has another inode.
"""

from __future__ import annotations

import os

__all__ = ["file_identity"]


def file_identity(facts: os.stat_result) -> tuple[int, int, int, int]:
    """Return size in bytes, times of change of content and of inode in ns, and number of the inode."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
