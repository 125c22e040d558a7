"""Named pipes: where SageMaker's Pipe mode puts a channel."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

__all__ = ["find_pipe"]


def find_pipe(path: Path) -> Path | None:
    """The named pipe that `path` is, or the first one of the channel `path`; None when it is neither."""
    for candidate in (path, path.with_name(f"{path.name}_0")):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(candidate.stat().st_mode):
                return candidate
    return None
