"""Temporary folders that do not stay: a folder whose process was killed is removed when the next one is made."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["scratch_folder"]

LOCK_FILE = ".in-use"
"""File in each scratch folder, locked while a process uses the folder, also seen from other containers."""

LEAST_AGE_S = 60.0
"""Seconds. Do not remove younger scratch folders: a process creates the lock file an instant before it locks it."""


@contextmanager
def scratch_folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Context manager: yield a new private folder `headrace-PURPOSE-…` for temporary files, and remove it afterwards.

    parent: where it is made (default: the folder for temporary files).

    Folders of the same purpose that killed processes of this user left behind are removed first.

        with scratch_folder("run") as folder: ...
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent, purpose)
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-{purpose}-", dir=parent))
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: after a minute the folder may be taken for abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path, purpose: str) -> None:
    for folder in parent.glob(f"headrace-{purpose}-*"):
        with suppress(OSError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether this user made the folder and no process holds its lock. Raises OSError where that cannot be found out."""
    found = folder.lstat()
    if found.st_uid != os.geteuid() or not folder.is_dir() or folder.is_symlink():
        return False
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        file = os.fstat(lock)
        if not stat.S_ISREG(file.st_mode) or time.time() - file.st_mtime < LEAST_AGE_S:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
        return True
    finally:
        os.close(lock)
