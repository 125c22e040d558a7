"""Folders and files that only their owner may read: sessions hold commands, paths and output of the user's jobs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PRIVATE_FILE", "PRIVATE_FOLDER", "make_private_folder", "private_opener"]

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def make_private_folder(folder: Path) -> None:
    """Make `folder` with mode 0700, and its missing parents with the usual mode. A folder that exists keeps its mode.

    Raises `OSError`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`: a new file gets mode 0600, an old one keeps its mode."""
    return os.open(path, flags, PRIVATE_FILE)
