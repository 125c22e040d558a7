"""The size limit of the cache of remote data, and the eviction of the least recently used entries.

The limit is `$HEADRACE_CACHE_SIZE` (for example 200GiB), else nine tenths of the free disk space. Each entry is a folder. It
counts with the size it may grow to (file `size`), and is in use while a process holds a shared lock on its file `.use`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from headrace.errors import SourceError, UsageError
from headrace.system.files.private_files import private_opener
from headrace.system.text.sizes import parse_size, size_text

__all__ = ["cache_limit_bytes", "mark_in_use", "reserve", "reserve_some", "reserved_bytes"]

MOST_DIGITS = 20
_FREE_SHARE = 0.9
_SHARED = 0.9  # share of the remaining space for a dataset that is larger than it


def cache_limit_bytes(cache: Path) -> int:
    """Return the bytes that all entries together may take. Raise UsageError if the variable is no size."""
    text = os.environ.get("HEADRACE_CACHE_SIZE")
    if not text:
        return int((shutil.disk_usage(cache).free + _taken(cache)) * _FREE_SHARE)
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"HEADRACE_CACHE_SIZE: {error}") from error


def reserve(entry: Path, size: int) -> None:
    """Reserve `size` bytes for the folder `entry`. Raise SourceError if the limit does not allow them."""
    if reserve_some(entry, size, at_least=size) < size:
        raise AssertionError("unreachable")


def reserve_some(entry: Path, size: int, *, at_least: int, limit: int | None = None) -> int:
    """Reserve `size` bytes, or as many as possible, for the folder `entry`; return how many.

    limit: bytes that all entries together may take. Default: `cache_limit_bytes`.

    If `size` does not fit, a tenth of the space stays free for others. Raises SourceError if less than `at_least` is left.
    """
    cache = entry.parent
    with open(cache / ".lock", "ab", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes must not reserve the same bytes
        limit = cache_limit_bytes(cache) if limit is None else limit
        if at_least > limit:
            raise SourceError(
                f"the dataset has {size_text(size)}, the cache in {cache} may take {size_text(limit)}",
                hint="set HEADRACE_CACHE to a larger disk, or HEADRACE_CACHE_SIZE to a larger size; of a packed dataset "
                "(headrace pack) only the index must fit, of tar, .rec and .tfrecord files the largest one",
            )
        others = sorted((path for path in cache.iterdir() if path.is_dir() and path != entry), key=_last_used)
        free = limit - sum(map(reserved_bytes, others))
        for other in others:
            if free >= size:
                break
            free += _evict(other)
        reserved = size if free >= size else max(at_least, int(free * _SHARED))
        if free < at_least:
            raise SourceError(
                f"the cache in {cache} is full of data in use, and {size_text(at_least)} more are needed",
                hint="set HEADRACE_CACHE to another folder, or HEADRACE_CACHE_SIZE to a larger size",
            )
        (entry / "size").write_text(str(reserved))
        return reserved


def reserved_bytes(entry: Path) -> int:
    """Return the bytes that are reserved for the entry."""
    try:
        with open(entry / "size", encoding="ascii") as file:
            return int(file.read(MOST_DIGITS))
    except (OSError, ValueError):
        return 0


def mark_in_use(entry: Path) -> int:
    """Mark the entry as used now, and as in use until the returned descriptor is closed."""
    os.utime(entry)
    descriptor = private_opener(os.fspath(entry / ".use"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _evict(entry: Path) -> int:
    """Remove an entry unless it is in use; return the bytes that become free."""
    size = reserved_bytes(entry)
    descriptor = private_opener(os.fspath(entry / ".use"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    else:
        shutil.rmtree(entry, ignore_errors=True)
        return size
    finally:
        os.close(descriptor)


def _taken(cache: Path) -> int:
    """Return the bytes on disk: all of a mirror's, the allocated blocks of sparse shards."""
    entries = [path for path in cache.iterdir() if path.is_dir()]
    sparse = sum(file.stat().st_blocks * 512 for entry in entries for file in entry.iterdir() if file.is_file())
    return sparse + sum(reserved_bytes(entry) for entry in entries if (entry / "complete").exists())


def _last_used(entry: Path) -> float:
    return entry.stat().st_mtime
