"""Write a file so that readers see the old content or the new content, never a part.

The data goes to a temporary file, which then takes the name of the target: rename(2) replaces a name atomically.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace.system.files.private_files import new_file
from headrace.system.files.regular_file import kind_of_file

__all__ = ["TEMPORARY_PREFIX", "atomic_write", "replacing", "sync_folder", "write_output"]

TEMPORARY_PREFIX = ".partial-"
"""How the names of temporary files begin. A killed process leaves its file behind; the prefix tells what may be removed."""


def atomic_write(
    path: Path, data: bytes | str, *, sync: bool = False, private: bool = False, temporary_folder: Path | None = None
) -> None:
    """Write `data` to `path` in one piece. Text is encoded as UTF-8.

    `sync`: wait until the data is on the disk before the file gets its name. `temporary_folder`: where the temporary file
    stands, on the same file system (default: the folder of `path`, which must exist). `private`: only the owner may read the
    file (mode 0600). Raise `OSError`.
    """
    with replacing(path, sync=sync, temporary_folder=temporary_folder, private=private) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_output(path: Path, data: bytes | str) -> None:
    """Write a file that the user has named, in one piece. A link to a file is replaced, never written through.

    `/dev/stdout` and the other names of the kernel are written to. Raise `OSError`.
    """
    if path.parts[:2] in (("/", "dev"), ("/", "proc")) and path.parts[2:3] != ("shm",):
        with open(path, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
    else:
        atomic_write(path, data)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = False, temporary_folder: Path | None = None, private: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block ends. An error removes it and leaves `path`.

    The temporary file exists and is empty; no other user can have prepared it. Its name ends with that of `path`, for writers
    that choose a format by the suffix. Arguments as in `atomic_write`.
    """
    _refuse_device(path)
    name = f"{TEMPORARY_PREFIX}{os.getpid()}-{threading.get_native_id()}-{path.name}"
    temporary = (temporary_folder or path.parent) / name
    new_file(temporary, private=private)
    try:
        yield temporary
        if sync:
            _sync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the error of the block is the one that matters
            temporary.unlink(missing_ok=True)
        raise


def _refuse_device(path: Path) -> None:
    """Raise OSError for a device, a pipe or a socket, which root would replace by a file."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode) and not stat.S_ISDIR(mode) and (words := kind_of_file(mode)) is not None:
            raise OSError(errno.EINVAL, f"is {words}, not a file", os.fspath(path))


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk: after it, a renamed file keeps its name through a power failure."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
