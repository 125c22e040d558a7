"""The Loader's `cache=`: keep the encoded bytes of records in memory or on a local disk after their first read.

The cache is for datasets on slow or shared storage (NFS, Lustre, FUSE mounts of buckets). Images on local disk need none: the
operating system caches them. Entries are never evicted while a loader uses them. Each epoch reads every record once, in a new
order, so a cache that holds a share of the dataset serves that share of every epoch; least-recently-used would serve less.

    ram:8GiB              in this process's memory; every rank has its own
    disk:/nvme:200GiB     in files below /nvme, shared by all processes of this user on the machine, kept for later runs

On disk each dataset has a folder, named by its fingerprint and by size, times of change and inode of its files: a dataset that
has changed is cached anew. A CRC-32C is checked at each read: a crash while writing costs some reads, never a wrong image.
Folders of other datasets that no process uses are removed to make room, the least recently used first.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.sources.remote.eviction import mark_in_use, reserve_some
from headrace.errors import SourceError, UsageError
from headrace.system.files.file_identity import file_identity
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.text.sizes import parse_size

__all__ = ["ByteCache", "CacheLocation", "open_cache", "parse_cache"]

_EXAMPLE = "for example cache='ram:8GiB' or cache='disk:/mnt/nvme:200GiB'"


@dataclass(frozen=True, slots=True)
class ByteCache:
    """The parsed `cache=` option. folder: None caches in memory."""

    folder: Path | None
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """Where the bytes of one dataset are cached. The folder counts as in use while `lock_descriptor` is open."""

    folder: Path | None
    limit_bytes: int
    sizes: npt.NDArray[np.int64] | None  # [n] size of each record in bytes; None for a cache in memory
    lock_descriptor: int | None  # open file whose lock marks the folder as in use; None for a cache in memory


def parse_cache(text: str) -> ByteCache:
    """Parse `ram:SIZE` or `disk:FOLDER:SIZE`. Raises UsageError for anything else."""
    kind, _, rest = text.partition(":")
    folder, _, size = rest.rpartition(":")
    if (kind, bool(folder)) not in (("ram", False), ("disk", True)):
        raise UsageError(f"cache {text!r} is neither ram:SIZE nor disk:FOLDER:SIZE", hint=_EXAMPLE)
    try:
        limit = parse_size(size)
    except ValueError as error:
        raise UsageError(f"cache {text!r}: {error}", hint=_EXAMPLE) from error
    if limit == 0:
        raise UsageError(f"cache {text!r} has a size of 0 bytes", hint="give it a size, or drop cache=")
    return ByteCache(Path(folder).expanduser().absolute() if folder else None, limit)


def open_cache(cache: ByteCache, dataset: Dataset) -> CacheLocation:
    """Return where the bytes of `dataset` are cached. Make a folder on disk, and mark it as in use, so that it is not evicted.

    Raises UsageError for a stream or a dataset in an object store, SourceError for a folder that cannot be written.
    """
    if dataset.stream is not None:
        raise UsageError(f"{dataset.root} is a stream, which is read anew in each epoch", hint="drop cache=")
    if cache.folder is None:
        return CacheLocation(None, cache.limit_bytes, None, None)
    if dataset.fetcher is not None:
        raise UsageError(
            "the dataset is in an object store, whose images are already kept on disk",
            hint="drop cache=; HEADRACE_CACHE is the folder, HEADRACE_CACHE_SIZE its bound",
        )
    sizes, file_facts = _sizes(dataset)
    # A subfolder of our own, because making room removes folders beside this one.
    entry = cache.folder / "headrace-cache" / hashlib.sha256(dataset.fingerprint.encode() + b"\0" + file_facts).hexdigest()[:32]
    try:
        make_cache_folder(entry.parent)
        make_cache_folder(entry)
        lock_descriptor = mark_in_use(entry)
        granted_bytes = reserve_some(entry, min(int(sizes.sum()), cache.limit_bytes), at_least=0, limit=cache.limit_bytes)
    except OSError as error:
        raise SourceError(
            f"cannot cache in {cache.folder}: {error.strerror}",
            hint="give a folder that can be written: cache='disk:FOLDER:SIZE'",
        ) from error
    return CacheLocation(entry, granted_bytes, sizes, lock_descriptor)


def _sizes(dataset: Dataset) -> tuple[npt.NDArray[np.int64], bytes]:
    """Return the size of each record in bytes, and what identifies the content of each file."""
    table = dataset.table
    file_facts = np.zeros((len(table.files), 4), dtype=np.int64)
    for number, path in enumerate(table.files):
        try:
            found = os.stat(path)  # noqa: PTH116 (a million Path objects are slow)
        except OSError:
            continue  # reading the file raises the error
        file_facts[number] = np.array(file_identity(found), dtype=np.uint64).astype(np.int64)  # inodes take 64 bits
    sizes = np.where(table.size < 0, file_facts[table.file, 0] - table.offset, table.size)
    return sizes.astype(np.int64), file_facts.tobytes()
