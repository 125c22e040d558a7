"""The bound of the cache of remote data: entries that were not used for longest make room; nothing grows beyond it.

The bound is `$HEADRACE_CACHE_SIZE` (for example 200GiB), else nine tenths of what the disk has free. Each entry is a
folder; it counts as large as it may become (`size`), and is in use while a process holds its `.use` shared.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from headrace.errors import SourceError, UsageError
from headrace.system.sizes import parse_size, size_text

__all__ = ["cache_limit_bytes", "mark_in_use", "reserve", "reserve_some", "reserved_bytes"]

_FREE_SHARE = 0.9
_SHARED = 0.9  # of what is left, for a dataset that is larger than that


def cache_limit_bytes(cache: Path) -> int:
    """Bytes that all entries together may take. Raises UsageError when the variable is no size."""
    text = os.environ.get("HEADRACE_CACHE_SIZE")
    if not text:
        return int((shutil.disk_usage(cache).free + _taken(cache)) * _FREE_SHARE)
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"HEADRACE_CACHE_SIZE: {error}") from error


def reserve(entry: Path, size: int) -> None:
    """Makes room for `size` bytes in the folder `entry`. Raises SourceError when the bound does not allow them."""
    if reserve_some(entry, size, at_least=size) < size:
        raise AssertionError("unreachable")


def reserve_some(entry: Path, size: int, *, at_least: int, limit: int | None = None) -> int:
    """Makes room for `size` bytes, or for as many as there can be, in the folder `entry`; returns how many.

    All entries together take at most `limit` bytes (None: `cache_limit_bytes`).
    Of less than `size`, a tenth stays free for others. Raises SourceError when that is below `at_least`.
    """
    cache = entry.parent
    with open(cache / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes do not promise the same bytes
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
        given = size if free >= size else max(at_least, int(free * _SHARED))
        if free < at_least:
            raise SourceError(
                f"the cache in {cache} is full of data in use, and {size_text(at_least)} more are needed",
                hint="set HEADRACE_CACHE to another folder, or HEADRACE_CACHE_SIZE to a larger size",
            )
        (entry / "size").write_text(str(given))
        return given


def reserved_bytes(entry: Path) -> int:
    """Bytes that the entry may take."""
    try:
        return int((entry / "size").read_text())
    except (OSError, ValueError):
        return 0


def mark_in_use(entry: Path) -> int:
    """Marks the entry as used now, and in use until the returned descriptor is closed."""
    os.utime(entry)
    descriptor = os.open(entry / ".use", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _evict(entry: Path) -> int:
    """Removes an entry that nobody uses; returns the bytes that this gives back."""
    size = reserved_bytes(entry)
    descriptor = os.open(entry / ".use", os.O_RDWR | os.O_CREAT, 0o644)
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
    """Bytes on disk: a mirror's are all there, the files of a remote dataset are sparse."""
    entries = [path for path in cache.iterdir() if path.is_dir()]
    sparse = sum(file.stat().st_blocks * 512 for entry in entries for file in entry.iterdir() if file.is_file())
    return sparse + sum(reserved_bytes(entry) for entry in entries if (entry / "complete").exists())


def _last_used(entry: Path) -> float:
    return entry.stat().st_mtime
