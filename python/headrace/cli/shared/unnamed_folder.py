"""The folders of results below the current one whose names are headrace's own: `run`, `headrace-trials-NAME`, that of a job."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import UsageError
from headrace.system.files.private_files import check_unnamed_folder

__all__ = ["unnamed_folder"]


def unnamed_folder(name: str) -> Path:
    """Return the folder `name` below the current one, which need not exist.

    Raises `UsageError` for a link in its place, which may have come with somebody else's files, and for another user's folder
    in one such as /tmp.
    """
    try:
        check_unnamed_folder(Path(name))
    except OSError as reason:
        raise UsageError(
            f"cannot use the folder {name} here: {reason.strerror}", hint="--out FOLDER names another one, or this one"
        ) from None
    return Path(name)
