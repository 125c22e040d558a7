"""The limit on open files of this process: shards stay open as far as it allows. Many systems allow 1,024 files at first."""

from __future__ import annotations

import resource

from headrace.errors import SourceError

__all__ = ["allow", "limit", "require"]

_OTHERS = 512
"""Ask for this many open files beyond the shards: for sockets, and files of libraries and of the script."""

_FEWEST_OTHERS = 64
"""Accept a limit that leaves at least this many open files beyond the shards."""


def allow(files: int) -> bool:
    """Raise the limit on open files (getrlimit(2), RLIMIT_NOFILE) to fit `files` shards. Return False if that is forbidden."""
    needed = files + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    new = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if new > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    return new >= files + _FEWEST_OTHERS


def limit() -> int:
    """Return how many files this process may open (RLIMIT_NOFILE, the soft limit)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def require(files: int, root: str) -> None:
    """Raise the limit on open files for the `files` shards of the dataset at `root`. Raise `SourceError` if forbidden."""
    if not allow(files):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise SourceError(
            f"{root} has {files} shards, and this process may open {hard} files",
            hint=f"raise the limit (ulimit -Hn {files + _OTHERS}; docker run --ulimit nofile=…), or pack into larger shards",
        )
