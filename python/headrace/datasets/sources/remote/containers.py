"""Tar, RecordIO and TFRecord files in an object store that are larger than the cache: records are fetched by ranged reads.

The first open reads each file once, one after the other, to find its records and their CRC-32C, and stores an index beside the
cache's sparse files. After that, records are fetched and checked like those of a packed dataset.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace._native import crc32c as native_crc32c
from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.shards.index import Columns, read_columns, serialized
from headrace.datasets.shards.manifest import INDEX, MANIFEST, FileFacts, Manifest, ShardFacts, read_manifest
from headrace.datasets.sources.archives.containers import ContainerRecords, merged, record_table
from headrace.datasets.sources.remote.eviction import mark_in_use, reserve_some
from headrace.datasets.sources.remote.mirror import copy_object
from headrace.datasets.sources.remote.shard_cache import boot, no_room
from headrace.datasets.sources.remote.shards import RemoteShards, empty_files, overhead
from headrace.datasets.sources.remote.store import Bucket, RemoteObject
from headrace.errors import SourceError
from headrace.system.files import open_files
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_cache import make_cache_folder
from headrace.system.files.private_files import private_opener

if TYPE_CHECKING:
    from headrace.datasets.records.table import Kind

__all__ = ["open_remote_containers"]

_LAYOUT = "containers 1"  # version of the cache's folders; another version makes a new entry
_STRAYS = "strays.json"
Scan = Callable[[Path], ContainerRecords]


def open_remote_containers(
    bucket: Bucket, objects: Sequence[RemoteObject], cache: Path, kind: Kind, scanner: Callable[[Sequence[Path]], Scan]
) -> Dataset:
    """Open `objects`, all of one kind, as one dataset. `scanner` returns the function that finds the records of one file.

    Raises SourceError if the store does not answer or the largest file does not fit into the cache, FormatError if a file is
    damaged.
    """
    listing = "".join(f"{entry.path}\0{entry.size}\0{entry.tag}\0" for entry in objects)
    name = hashlib.sha256(f"{_LAYOUT}\0{bucket.url}\0{listing}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    folder = cache / name
    make_cache_folder(folder)
    with open(folder / ".lock", "ab", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used = mark_in_use(folder)
        try:
            if not (folder / MANIFEST).exists():
                _prepare(bucket, objects, folder, kind, scanner)
            manifest, columns = read_manifest(folder), read_columns(folder / INDEX)
            open_files.require(2 * len(objects), bucket.url)
            fetcher = RemoteShards(bucket, folder, manifest, columns, used)
        except BaseException as error:
            os.close(used)
            if isinstance(error, OSError):
                raise no_room(folder, error.strerror) from error
            raise
    strays = tuple(json.loads((folder / _STRAYS).read_bytes()))
    table = record_table([str(folder / shard.file) for shard in manifest.shards], columns)
    mark = fingerprint(table.keys, table.size, table.label)
    return Dataset(bucket.url, kind, table, manifest.classes, mark, fetcher=fetcher, strays=strays)


def _prepare(
    bucket: Bucket, objects: Sequence[RemoteObject], folder: Path, kind: Kind, scanner: Callable[[Sequence[Path]], Scan]
) -> None:
    """Read each file once, and store the index of all records."""
    total, largest = sum(entry.size for entry in objects), max(entry.size for entry in objects)
    overhead_bytes = 64 * 4096 + 8192 * len(objects)  # an upper estimate: records are not counted yet
    reserve_some(folder, total + overhead_bytes, at_least=largest + overhead_bytes)
    data = folder / "data"
    paths = [data / entry.path for entry in objects]
    scan, parts, crc32c, shards = scanner(paths), list[ContainerRecords](), list[int](), list[ShardFacts]()
    for number, (entry, path) in enumerate(zip(objects, paths, strict=True)):
        copy_object(bucket, entry, data)
        parts.append(scan(path))
        if parts[-1].pieces:
            raise SourceError(
                f"{bucket.url}/{entry.path} holds records stored in several parts, and is too large for the cache",
                hint="set HEADRACE_CACHE to a larger disk, or pack a local copy:  headrace pack",
            )
        digest = _checksums(path, parts[-1], crc32c)
        shards.append(ShardFacts(f"container-{number:06d}", entry.size, digest, len(parts[-1].keys)))
        path.unlink()
    found = merged(parts)
    if not len(found.columns):
        raise SourceError(f"no images in {bucket.url}", hint="check the path; `headrace pack -h` lists what can be read")
    columns = replace(found.columns, crc32c=np.array(crc32c, dtype=np.uint32))
    manifest = _manifest(columns, found.classes, shards, kind)
    reserve_some(folder, total + overhead(manifest), at_least=overhead(manifest))
    atomic_write(folder / INDEX, serialized(columns))
    atomic_write(folder / "names.json", json.dumps([entry.path for entry in objects]).encode())
    atomic_write(folder / _STRAYS, json.dumps(found.strays).encode())
    empty_files(folder, manifest)
    (folder / "boot").write_text(boot())
    atomic_write(folder / MANIFEST, manifest.serialized())


def _checksums(path: Path, found: ContainerRecords, into: list[int]) -> str:
    """Append the CRC-32C of each record of a file to `into`; return the file's SHA-256."""
    with open(path, "rb") as file:
        for offset, size in zip(found.offsets, found.sizes, strict=True):
            file.seek(offset)
            into.append(native_crc32c(file.read(size)))
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(columns: Columns, classes: tuple[str, ...], shards: Sequence[ShardFacts], kind: Kind) -> Manifest:
    """Return the manifest of the files for the cache, in the form of a packed dataset's."""
    index = serialized(columns)
    counts = np.bincount(columns.label[columns.label >= 0], minlength=len(classes)).tolist()
    return Manifest(
        records=len(columns),
        image_bytes=int(columns.size.sum()),
        rejected=0,
        classes=classes,
        per_class=tuple(counts),
        shards=tuple(shards),
        index=FileFacts(INDEX, len(index), hashlib.sha256(index).hexdigest()),
        options={},
        source_kind=kind,
        source_fingerprint="",
    )
