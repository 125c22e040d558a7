"""The folder that keeps JPEG indexes from one run to the next: a file for each list of records, and one for any images.

A JPEG index holds bit offsets inside one JPEG from which decoding can start, so that a crop costs only its own part
(crates/headrace-core/src/jpeg/index.rs). It carries length and keyed digest of the bytes that it was made from, and the key.
The decoder checks them each time: the index of a file that has changed, or of another file that was made to look the same, is
never used, and is made again. Processes share the files while they run (crates/headrace-core/src/engine/index_file.rs). The
folder and its files are private, because the keys are in them.

The folder is `$HEADRACE_INDEX_CACHE` ("off": none), else `jpeg-index` in the cache folder (`$HEADRACE_CACHE`, else
`~/.cache/headrace`). When its files take more than 2 GiB together, the least recently used are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.sources.archives.container_index_cache import cache_folder
from headrace.errors import SourceError
from headrace.system.files.private_cache import make_cache_folder, owned_file

__all__ = ["INDEX_FOLDER", "index_file", "index_folder", "shared_index_file"]

INDEX_FOLDER = "HEADRACE_INDEX_CACHE"
LIMIT_BYTES = 2 << 30
#: Empty the shared index file above this size, in bytes: the indexes of about 500,000 photographs of 470×400.
SHARED_LIMIT_BYTES = 1 << 30
_CHUNK = 1 << 16  # paths that are digested at a time
_OFF = ("off", "0", "no", "none")


def index_folder() -> Path | None:
    """Return the folder of stored JPEG indexes, or None if storing them is turned off."""
    given = os.environ.get(INDEX_FOLDER)
    if not given:
        return cache_folder() / "jpeg-index"
    return None if given.lower() in _OFF else Path(given).expanduser()


def index_file(
    files: Sequence[str], file: npt.NDArray[np.int32], offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> Path | None:
    """Return the index file of the records in these columns, which need not exist yet; None if turned off or not writable.

    Its name is a digest of the columns, so that record numbers mean the same in every process that uses it.
    """
    folder = index_folder()
    if folder is None:
        return None
    digest, left, separator = hashlib.sha256(), iter(files), ""
    while some := list(islice(left, _CHUNK)):  # all paths in one text would take as much memory as the dataset
        digest.update((separator + "\0".join(some)).encode("utf-8", "surrogateescape"))
        separator = "\0"
    for column in (file, offset, size):
        digest.update(np.ascontiguousarray(column).data)
    return _usable(folder / f"{digest.hexdigest()[:32]}.index")


def shared_index_file() -> Path | None:
    """Return the index file of images that are found by their bytes (`_native.IndexStore`); None if turned off or not writable.

    It need not exist yet. Call this once per run, in its first process: a file that has reached its limit is removed.
    """
    folder = index_folder()
    path = None if folder is None else _usable(folder / "shared.index")
    if path is not None:
        with contextlib.suppress(OSError):
            if path.stat().st_blocks * 512 >= SHARED_LIMIT_BYTES:
                path.unlink()  # processes that use it keep it until they end
    return path


def _usable(path: Path) -> Path | None:
    """Return the path if this user can write a file there. Note its use, and make room for it."""
    folder = path.parent
    try:
        make_cache_folder(folder)
        if os.path.lexists(path) and not owned_file(path):
            return None  # another user's, in a folder that several may write
        if not os.access(folder, os.W_OK):
            return None
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, follow_symlinks=False)
        _make_room(folder, path)
    except SourceError as error:
        warnings.warn(f"JPEG indexes are not stored: {error} ({error.hint})", RuntimeWarning, stacklevel=3)
        return None
    except OSError:
        return None  # without the folder each run makes its indexes again
    return path


def _make_room(folder: Path, keep: Path) -> None:
    """Remove the least recently used files until all together take at most the limit."""
    with os.scandir(folder) as entries:
        facts = [(entry.stat(), entry.path) for entry in entries if entry.name.endswith(".index")]
    # The unused part of a table takes no room.
    found = [(fact.st_mtime, min(fact.st_size, fact.st_blocks * 512), path) for fact, path in facts]
    excess = sum(size for _, size, _ in found) - LIMIT_BYTES
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        if path != str(keep):
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            excess -= size
