"""Packed datasets on local disk (docs/reference/format.md).

The index is memory-mapped, so opening takes milliseconds at any size.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.shards.index import Columns, read_columns, selected
from headrace.datasets.shards.manifest import MANIFEST, Manifest, read_manifest
from headrace.datasets.sources.archives.containers import record_table
from headrace.errors import FormatError, SourceError
from headrace.system.files.regular_file import check_regular

__all__ = ["contradiction", "has_manifest", "is_packed", "no_manifest", "open_shards"]

_PARTS = ("train", "val", "test")  # folders that `pack --train-ratio` makes


def is_packed(folder: Path) -> bool:
    """Return whether `folder` holds a packed dataset, an unfinished one, or the splits of one."""
    names = (MANIFEST, ".packing", *(f"{part}/{MANIFEST}" for part in _PARTS))
    return any(os.path.lexists(folder / name) for name in names)


def has_manifest(folder: Path) -> bool:
    """Return whether `folder` has a manifest; a link to a missing one counts, so that reading it says what is wrong."""
    return os.path.lexists(folder / MANIFEST)


def open_shards(folder: Path, *, part: bool = False) -> Dataset:
    """Open a packed dataset. `part`: open the shards that are in the folder, even if others of the manifest are missing.

    Raises FormatError if manifest, index and shards contradict each other, SourceError if the pack is unfinished or `folder`
    holds several datasets. The bytes of the shards are not read: `headrace verify` checks them.
    """
    if not has_manifest(folder):
        raise no_manifest(folder)
    manifest = read_manifest(folder)
    index = folder / manifest.index.file
    if index.exists() and index.stat().st_size != manifest.index.size:
        raise FormatError(f"{index} has {index.stat().st_size} bytes, the manifest says {manifest.index.size}", hint=_HINT)
    columns = read_columns(index)
    if part and len(columns) == manifest.records:
        manifest, columns = _present_shards(folder, manifest, columns)
    problem = contradiction(folder, manifest, columns) or _missing(folder, manifest)
    if problem:
        raise FormatError(problem, hint=_HINT)
    table = record_table([str(folder / shard.file) for shard in manifest.shards], columns)
    table = replace(table, width=columns.width, height=columns.height, crc32c=columns.crc32c)
    # The index holds every record's key, size and label, so its digest changes with any of them.
    digest = manifest.index.sha256[:32]
    return Dataset(str(folder), "shards", table, manifest.classes, fingerprint_of(digest, manifest) if part else digest)


_HINT = (
    "the dataset is damaged or half copied: copy it again, or pack again; a host that is given only some of the shards "
    "(ShardedByS3Key) opens them with headrace.open(path, part=True)"
)


def fingerprint_of(digest: str, manifest: Manifest) -> str:
    """Return the fingerprint of a part of a dataset's shards."""
    names = "".join(f"{shard.file}\n" for shard in manifest.shards)
    return hashlib.sha256(f"{digest}\n{names}".encode()).hexdigest()[:32]


def _present_shards(folder: Path, manifest: Manifest, columns: Columns) -> tuple[Manifest, Columns]:
    """Return manifest and index of the shards that are present. Raise SourceError if there are none."""
    present = [number for number, shard in enumerate(manifest.shards) if (folder / shard.file).is_file()]
    if not present:
        raise SourceError(f"{folder} holds the manifest of a packed dataset, and none of its shards")
    rows = np.flatnonzero(np.isin(columns.shard, present))
    shards = tuple(manifest.shards[number] for number in present)
    renumbered = np.searchsorted(present, columns.shard[rows]).astype(np.int32)
    return replace(manifest, shards=shards, records=len(rows)), selected(columns, rows, renumbered)


def _missing(folder: Path, manifest: Manifest) -> str | None:
    """Return which shard is missing or has another size than the manifest says, or None. Shards are not read."""
    for shard in manifest.shards:
        path = folder / shard.file
        try:
            size = check_regular(path).st_size
        except OSError as error:
            return f"{path} is missing" if error.errno == errno.ENOENT else f"cannot read {path}: {error.strerror}"
        if size != shard.size:
            return f"{path} has {size} bytes, the manifest says {shard.size}"
    return None


def contradiction(folder: Path, manifest: Manifest, columns: Columns) -> str | None:
    """Return where the index contradicts the manifest so that records cannot be located, or None. Shards are not read."""
    if len(columns) != manifest.records:
        return f"{folder / manifest.index.file} has {len(columns)} rows, the manifest says {manifest.records} records"
    if np.any((columns.shard < 0) | (columns.shard >= len(manifest.shards))):
        return f"the index of {folder} names a shard that the manifest does not have"
    if np.any((columns.label < 0) | (columns.label >= len(manifest.classes))):
        return f"the index of {folder} holds a label without a class"
    sizes = np.array([shard.size for shard in manifest.shards], dtype=np.int64)
    room = sizes[columns.shard]
    outside = _outside(columns.offset, columns.size, room)
    if columns.json_offset is not None and columns.json_size is not None:
        outside |= _outside(columns.json_offset, columns.json_size, room)
    if (sidecars := columns.sidecars) is not None:
        there = np.repeat(room, np.diff(sidecars.start))
        outside[
            np.repeat(np.arange(len(columns)), np.diff(sidecars.start))[_outside(sidecars.offset, sidecars.size, there)]
        ] = True
    if np.any(outside):
        at = int(np.flatnonzero(outside)[0])
        return f"the index of {folder} puts record {at} outside its shard {manifest.shards[columns.shard[at]].file}"
    return None


def _outside(offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64], room: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    # `offset > room - size` instead of `offset + size > room`: the sum of two wrong values may overflow.
    return (offset < 0) | (size < 0) | (size > room) | (offset > room - size)


def no_manifest(folder: Path) -> SourceError:
    """Return the error for packed data without a manifest: the pack is unfinished, or the folder holds several datasets."""
    if (folder / ".packing").exists():
        return SourceError(
            f"the pack in {folder} is unfinished", hint=f"give its `headrace pack … {folder}` command again: it continues"
        )
    parts = [part for part in _PARTS if (folder / part / MANIFEST).exists()]
    return SourceError(
        f"{folder} holds {len(parts)} datasets: {', '.join(parts)}", hint=f"give one of them, for example {folder / parts[0]}"
    )
