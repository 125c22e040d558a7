"""Copies of whole datasets from object stores in the cache: image folders, tars, .rec, .tfrecord.

Objects are read in parallel, large ones in parts, to temporary names. An interrupted copy continues with the missing objects.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.datasets.sources.remote.eviction import mark_in_use, reserve
from headrace.datasets.sources.remote.store import Bucket, RemoteObject
from headrace.errors import SourceError
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.private_files import private_opener

__all__ = ["copy_object", "mirror"]

_CONNECTIONS = 32
_held: list[int] = []  # descriptors that mark copies as in use until this process ends: they may be read by path at any time
_PART = 8 << 20  # bytes of one request


def mirror(
    bucket: Bucket,
    cache: Path,
    objects: list[RemoteObject] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Return the folder with a copy of everything below the bucket's URL, or of `objects`; make the copy if there is none.

    on_progress: called with the bytes done and the bytes in all.

    Raises SourceError if there are no objects, the store does not answer, or the cache has no room.
    """
    objects = bucket.list() if objects is None else objects
    if not objects:
        raise SourceError(f"no object in {bucket.url}", hint="check the address: it is a prefix that ends between two slashes")
    listing = "".join(f"{entry.path}\0{entry.size}\0{entry.tag}\0" for entry in objects)
    entry = cache / hashlib.sha256(f"{bucket.url}\0{listing}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    make_cache_folder(entry)
    total = sum(found.size for found in objects)
    with open(entry / ".lock", "ab", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here and then finds the whole copy
        _held.append(mark_in_use(entry))
        if not (entry / "complete").exists():
            reserve(entry, total)
            _copy(bucket, objects, entry / "data", on_progress or (lambda done, of: None), total)
            (entry / "complete").touch()
    return entry / "data"


def _copy(
    bucket: Bucket, objects: list[RemoteObject], folder: Path, on_progress: Callable[[int, int], None], total: int
) -> None:
    done = 0
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="headrace-mirror") as pool:
        try:
            for size in pool.map(lambda entry: copy_object(bucket, entry, folder), objects):
                done += size
                on_progress(done, total)
        except OSError as error:
            raise SourceError(
                f"cannot write to the cache {folder}: {error.strerror}",
                hint="free some space, or set HEADRACE_CACHE to another disk, and try again: it continues",
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def copy_object(bucket: Bucket, entry: RemoteObject, folder: Path) -> int:
    """Copy one object into `folder` unless it is there; return its size in bytes.

    Raises SourceError if the store does not answer, or if the object changes between two parts of it.
    """
    path = folder / entry.path
    if path.exists() and path.stat().st_size == entry.size:
        return entry.size
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another object may be called NAME.part: the rest of a copy that somebody broke off.
    part = path.with_name(f".{hashlib.sha256(os.fsencode(entry.path)).hexdigest()[:32]}.part")
    before = bucket.find(entry.path) if entry.size > _PART else None
    with open(part, "wb") as file:
        for at in range(0, entry.size, _PART):
            file.write(bucket.read_range(entry.path, at, min(_PART, entry.size - at)))
    if before is not None and (before.size != entry.size or bucket.find(entry.path) != before):
        part.unlink()
        hint = "try again when nothing writes to it"
        raise SourceError(f"{bucket.url}/{entry.path} changed while it was copied", hint=hint)
    os.utime(part, (entry.modified_s, entry.modified_s))  # so that a second copy does not look like a changed file
    # Not by `replacing`: a copy that is made again after a kill overwrites the same `.part` file instead of adding one.
    os.replace(part, path)  # noqa: PTH105 (a million of them)
    return entry.size
