"""`cache=` of Loader: the encoded bytes of records, kept in memory or on a local disk after their first read.

For datasets on slow or shared storage (NFS, Lustre, FUSE mounts of buckets). Images on local disk need none: the operating
system caches them. What has once been cached stays: each epoch reads every record once, in a new order, so a cache that holds
a share of the dataset serves that share of every epoch. (Least-recently-used would throw away what comes next, and serve less.)

    ram:8GiB              in this process's memory; every rank has its own
    disk:/nvme:200GiB     in files below /nvme, shared by all processes on the machine, kept for later runs

On disk each dataset has a folder, named by its fingerprint and by size and time of change of its files, so a changed dataset is
cached anew. The bytes carry a CRC-32C that is checked at each read: a machine that fails costs some reads, never a wrong image.
Folders of other datasets that are not in use make room, those not used for longest first.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records import Dataset
from headrace.datasets.sources.remote.eviction import mark_in_use, reserve_some
from headrace.errors import SourceError, UsageError
from headrace.system.sizes import parse_size

__all__ = ["ByteCache", "Kept", "open_cache", "parse_cache"]

_EXAMPLE = "for example cache='ram:8GiB' or cache='disk:/mnt/nvme:200GiB'"


@dataclass(frozen=True, slots=True)
class ByteCache:
    """What `cache=` asks for. `folder` None: memory."""

    folder: Path | None
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A place for one dataset's bytes: what the native table is given, and a descriptor that says "in use" while it is open."""

    folder: Path | None
    limit_bytes: int
    sizes: npt.NDArray[np.int64] | None  # [n] bytes of each record, for a disk
    used: int | None


def parse_cache(text: str) -> ByteCache:
    """Reads `ram:SIZE` or `disk:FOLDER:SIZE`. Raises UsageError, in words, for anything else."""
    kind, _, rest = text.partition(":")
    folder, _, size = rest.rpartition(":")
    if (kind, bool(folder)) not in (("ram", False), ("disk", True)):
        raise UsageError(f"cache {text!r} is neither ram:SIZE nor disk:FOLDER:SIZE", hint=_EXAMPLE)
    try:
        limit = parse_size(size)
    except ValueError as error:
        raise UsageError(f"cache {text!r}: {error}", hint=_EXAMPLE) from error
    if limit == 0:
        raise UsageError(f"cache {text!r} holds nothing", hint="give it a size, or drop cache=")
    return ByteCache(Path(folder).expanduser().absolute() if folder else None, limit)


def open_cache(cache: ByteCache, dataset: Dataset) -> Kept:
    """The place in `cache` for the bytes of `dataset`. Raises SourceError where the folder cannot be written."""
    if dataset.stream is not None:
        raise UsageError(f"{dataset.root} is a stream, which comes once an epoch by itself", hint="drop cache=")
    if cache.folder is None:
        return Kept(None, cache.limit_bytes, None, None)
    if dataset.fetcher is not None:
        raise UsageError(
            "the dataset is in an object store, whose images are already kept on disk",
            hint="drop cache=; HEADRACE_CACHE is the folder, HEADRACE_CACHE_SIZE its bound",
        )
    sizes, facts = _sizes(dataset)
    # A folder of our own: what makes room is what lies in it.
    entry = cache.folder / "headrace-cache" / hashlib.sha256(dataset.fingerprint.encode() + b"\0" + facts).hexdigest()[:32]
    try:
        entry.mkdir(parents=True, exist_ok=True)
        used = mark_in_use(entry)
        given = reserve_some(entry, min(int(sizes.sum()), cache.limit_bytes), at_least=0, limit=cache.limit_bytes)
    except OSError as error:
        raise SourceError(
            f"cannot cache in {cache.folder}: {error.strerror}",
            hint="give a folder that can be written: cache='disk:FOLDER:SIZE'",
        ) from error
    return Kept(entry, given, sizes, used)


def _sizes(dataset: Dataset) -> tuple[npt.NDArray[np.int64], bytes]:
    """The size of each record in bytes, and size and time of change of each file."""
    table = dataset.table
    facts = np.zeros((len(table.files), 2), dtype=np.int64)
    for number, path in enumerate(table.files):
        try:
            found = os.stat(path)  # noqa: PTH116 (a million Path objects are slow)
        except OSError:
            continue  # reading it will say so
        facts[number] = found.st_size, found.st_mtime_ns
    sizes = np.where(table.size < 0, facts[table.file, 0] - table.offset, table.size)
    return sizes.astype(np.int64), facts.tobytes()
