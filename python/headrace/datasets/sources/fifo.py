"""Named pipes, through which SageMaker's Pipe mode sends a channel."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.errors import SourceError
from headrace.system.files.private_files import user_text

__all__ = ["check_pipe", "find_pipe"]


def find_pipe(path: Path) -> Path | None:
    """Return `path` if it is a named pipe; if nothing is at `path`, `PATH_0` if that is one (the first pipe of a channel).

    None otherwise. Raises SourceError for the pipe of another user.
    """
    try:
        candidate, facts = path, path.stat()
    except OSError:  # in a folder such as /tmp, everybody could make a pipe beside a dataset: what exists comes first
        candidate = path.with_name(f"{path.name}_0")
        try:
            facts = candidate.stat()
        except OSError:
            return None
    if not stat.S_ISFIFO(facts.st_mode):
        return None
    check_pipe(candidate, facts)
    return candidate


def check_pipe(pipe: Path, facts: os.stat_result) -> None:
    """Raise SourceError unless `facts` are those of a named pipe that this user or root made: what it sends is trained on."""
    if not stat.S_ISFIFO(facts.st_mode):
        raise SourceError(f"{pipe} is no named pipe any more", hint="check the path")
    if facts.st_uid not in (os.geteuid(), 0):
        raise SourceError(
            f"{pipe} is a named pipe that belongs to {user_text(facts.st_uid)}",
            hint="name the folder or the file of the images; if they come through this pipe, make it yourself",
        )
