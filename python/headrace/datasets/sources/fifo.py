"""Named pipes, through which SageMaker's Pipe mode sends a channel."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

__all__ = ["find_pipe"]


def find_pipe(path: Path) -> Path | None:
    """Return `path` if it is a named pipe, `PATH_0` if that is one (the first pipe of a channel), else None."""
    for candidate in (path, path.with_name(f"{path.name}_0")):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(candidate.stat().st_mode):
                return candidate
    return None
