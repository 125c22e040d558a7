"""Open files: shards are kept open, one descriptor each, and many systems allow a process 1,024 at first."""

from __future__ import annotations

import resource

from headrace.errors import SourceError

__all__ = ["allow", "need"]

_OTHERS = 512  # sockets, libraries' files and what else a training process has open
_FEWEST = 64  # of those, at least


def allow(files: int) -> bool:
    """Raises this process's limit (getrlimit(2), RLIMIT_NOFILE) so that `files` more fit; False: the system forbids it."""
    needed = files + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    new = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if new > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    return new >= files + _FEWEST


def need(files: int, root: str) -> None:
    """As `allow`, for what cannot be done without. Raises SourceError."""
    if not allow(files):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise SourceError(
            f"{root} has {files} shards, and this process may open {hard} files",
            hint=f"raise the limit (ulimit -Hn {files + _OTHERS}; docker run --ulimit nofile=…), or pack into larger shards",
        )
