"""The files of a folder, for tests that compare two folders byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below `folder` by its relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
