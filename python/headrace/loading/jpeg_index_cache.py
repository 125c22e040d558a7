"""Where checkpoint indexes of JPEGs are kept from one run to the next: a file for each list of records, in a bounded folder.

An index says where in a JPEG's bit stream each part of the image begins; decoding a crop with it costs what the crop costs
(crates/headrace-core/src/jpeg/index.rs). It carries length and CRC-32C of the bytes that it was made from, and the decoder
checks both each time: an index of a file that has changed is never used, and is made anew.

The folder is `$HEADRACE_INDEX_CACHE` ("off": none), else `jpeg-index` in the cache folder (`$HEADRACE_CACHE`, else
`~/.cache/headrace`). Its files are removed, those not used for longest first, when they take more than 2 GiB together.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.sources.container_index_cache import cache_folder

__all__ = ["INDEX_FOLDER", "index_file", "index_folder"]

INDEX_FOLDER = "HEADRACE_INDEX_CACHE"
LIMIT_BYTES = 2 << 30
_OFF = ("off", "0", "no", "none")


def index_folder() -> Path | None:
    """The folder, or None where it is turned off."""
    given = os.environ.get(INDEX_FOLDER)
    if not given:
        return cache_folder() / "jpeg-index"
    return None if given.lower() in _OFF else Path(given).expanduser()


def index_file(
    files: Sequence[str], file: npt.NDArray[np.int32], offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> Path | None:
    """The index file of the records that these columns list; None where there is none to be had (turned off, not writable).

    It need not exist yet. Its name is a digest of the list, so that record numbers mean the same in every process that uses it.
    """
    folder = index_folder()
    if folder is None:
        return None
    digest = hashlib.sha256("\0".join(files).encode("utf-8", "surrogateescape"))
    for column in (file, offset, size):
        digest.update(np.ascontiguousarray(column).tobytes())
    path = folder / f"{digest.hexdigest()[:32]}.index"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return None
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
        _make_room(folder, path)
    except OSError:
        return None  # a read-only home costs the indexes between runs, nothing else
    return path


def _make_room(folder: Path, keep: Path) -> None:
    """Removes files that were not used for longest, until all take at most the limit."""
    with os.scandir(folder) as entries:
        found = [
            (entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries if entry.name.endswith(".index")
        ]
    excess = sum(size for _, size, _ in found) - LIMIT_BYTES
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        if path != str(keep):
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            excess -= size
