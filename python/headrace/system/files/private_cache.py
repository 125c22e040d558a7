"""Cache folders in places that other users may write, such as /tmp and /dev/shm.

What a cache holds is trusted: indexes say where images lie, and images train models. So a cache belongs to the user of this
process (or to root, who may prepare one), and nobody else may write into it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.errors import SourceError
from headrace.system.files.private_files import PRIVATE_FOLDER, foreign_part, user_text, writable_by_others

__all__ = ["make_cache_folder", "owned_file"]


def make_cache_folder(folder: Path) -> Path:
    """Make `folder` with mode 0700 unless it exists, check who owns it and who may write, and return it.

    A link at the end of the path is not followed in a folder where others may make links. Raises SourceError if another user
    owns the folder, may write into it, or made a folder above it in one such as /tmp, OSError if it cannot be made.
    """
    for missing in reversed([one for one in (folder, *folder.parents) if not os.path.lexists(one)]):
        missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    facts = os.lstat(folder)
    if stat.S_ISLNK(facts.st_mode):
        if facts.st_uid not in (os.geteuid(), 0):
            raise _untrusted_cache(folder, f"is a link made by {user_text(facts.st_uid)}")
        facts = folder.stat()
    if facts.st_uid not in (os.geteuid(), 0):
        raise _untrusted_cache(folder, f"belongs to {user_text(facts.st_uid)}")
    if writable_by_others(facts) and not facts.st_mode & stat.S_ISVTX:
        raise _untrusted_cache(folder, f"may be written by other users (mode {stat.S_IMODE(facts.st_mode):04o})")
    found = foreign_part(folder.absolute())
    if found is not None:
        raise _untrusted_cache(folder, f"lies in {found.path}, which belongs to {user_text(found.user)}")
    return folder


def owned_file(path: Path) -> bool:
    """Return whether `path` is a regular file of this user or of root: others' files in a sticky folder are not used."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid in (os.geteuid(), 0)


def _untrusted_cache(folder: Path, why: str) -> SourceError:
    """Return the error for a cache folder that another user owns or may write into."""
    return SourceError(
        f"the cache folder {folder} {why}: what it holds cannot be trusted",
        hint="use a folder of your own (HEADRACE_CACHE=FOLDER; cache='disk:FOLDER:SIZE'), or take it:  chmod 700, chown",
    )
