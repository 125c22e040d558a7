"""Opening of files that a path, a list or a manifest names: only regular files, and never with a wait.

Opening a named pipe waits for its other end, and reading a device may never end. Raised errors are OSErrors whose `strerror`
says what stands at the path; messages put it after the path.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from headrace.system.text.size_limits import larger_than, record_limit, too_large

__all__ = ["check_regular", "kind_of_file", "open_regular", "read_regular", "regular_opener"]

_PIECE = 1 << 16
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def kind_of_file(mode: int) -> str | None:
    """Return the kind of file that a `stat` mode describes, in words ("a named pipe"), or None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return "a folder"
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


def check_regular(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the `stat` result of the regular file at `path`; links are followed. Raises OSError for anything else."""
    try:
        facts = os.stat(path)  # noqa: PTH116 (image folders ask a million times)
    except FileNotFoundError as error:
        if os.path.islink(path):  # noqa: PTH114
            raise OSError(errno.ENOENT, "a link to a file that does not exist", os.fspath(path)) from error
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link to itself, not a file", os.fspath(path)) from error
        raise
    if (words := kind_of_file(facts.st_mode)) is not None:
        code = errno.EISDIR if stat.S_ISDIR(facts.st_mode) else errno.EINVAL
        raise OSError(code, f"{words}, not a file", os.fspath(path))
    return facts


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. Raises OSError for anything else, even if swapped during the call."""
    check_regular(path)
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if (words := kind_of_file(os.fstat(descriptor).st_mode)) is not None:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{words}, not a file", os.fspath(path))
    return descriptor


def regular_opener(path: str, flags: int) -> int:
    """Open a regular file for `open(path, opener=regular_opener)`."""
    return open_regular(path, flags)


def read_regular(path: Path, *, limit: int | None = None) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for more than `limit` bytes (default: `record_limit`)."""
    most, words = (record_limit(), too_large) if limit is None else (limit, larger_than)
    with open(path, "rb", opener=regular_opener) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, words(size, most), os.fspath(path))
        pieces, total = [file.read(size)], size
        while piece := file.read(_PIECE):  # it grows, or states no size, as files of /proc do
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise OSError(errno.EFBIG, words(total, most), os.fspath(path))
        return b"".join(pieces)
