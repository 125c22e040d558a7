"""The result of a pack, and its sums over the parts of a split."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.datasets.shards.index import read_columns
from headrace.datasets.shards.manifest import INDEX, Manifest
from headrace.packing.planning.listing import Listing

__all__ = ["PackResult", "complete_result", "incomplete_result", "relocated", "summed"]


@dataclass(frozen=True, slots=True)
class PackResult:
    """The counts, sizes and rate of a pack, and where it is."""

    path: str
    complete: bool  # False: units that other jobs of an array pack are still missing
    records: int
    shards: int
    bytes: int  # of the shards
    errors: int  # rejected records, which errors.jsonl lists
    renamed: int  # records whose key got a number because another record has the same key
    img_s: float | None  # None: nothing was left to pack
    seconds: float
    source_bytes: int
    extras: Mapping[str, int]  # number of sidecar files in the source by name
    parts: tuple[PackResult, ...] = ()  # one for each of train, val, test
    framing_bytes: int = 0  # share of `bytes` in tar headers, labels and padding; 0 while units are missing
    unmarked: int = 0  # JPEGs that keep their bytes because restart markers cannot be written; 0 while units are missing
    other_files: int = 0  # in the source's class folders, with endings that are no image's: left out, and not among `errors`
    repacked: int = 0  # shards of an earlier run that were packed again because source files have changed


def complete_result(destination: Path, manifest: Manifest, listing: Listing, packed: int, started_s: float) -> PackResult:
    """Return the result of a committed pack. `packed`: records that this run packed."""
    seconds = time.perf_counter() - started_s
    return PackResult(
        path=str(destination),
        complete=True,
        records=manifest.records,
        shards=len(manifest.shards),
        bytes=sum(shard.size for shard in manifest.shards),
        errors=manifest.rejected,
        renamed=listing.renamed,
        img_s=packed / seconds if packed else None,
        seconds=seconds,
        source_bytes=int(listing.sizes.sum()),
        extras={} if manifest.options.get("extras") == "drop" else listing.sidecar_counts(),
        framing_bytes=_framing_bytes(destination, manifest),
        unmarked=manifest.unmarked,
        other_files=listing.dataset.other_files,
    )


def incomplete_result(destination: Path, listing: Listing, packed: int, shards: int, started_s: float) -> PackResult:
    """Return the result of one job of an array (`unit=`) while others still pack: `errors` and `source_bytes` are still 0."""
    seconds = time.perf_counter() - started_s
    return PackResult(
        path=str(destination),
        complete=False,
        records=packed,
        shards=shards,
        bytes=sum(path.stat().st_size for path in destination.glob("shard-*.tar")),
        errors=0,
        renamed=listing.renamed,
        img_s=packed / seconds if packed else None,
        seconds=seconds,
        source_bytes=0,
        extras={},
    )


def summed(path: str, parts: Sequence[PackResult]) -> PackResult:
    """Return the result of the whole pack: counts, bytes and seconds added over train, val and test."""
    seconds = sum(part.seconds for part in parts)
    packed = [part.img_s * part.seconds for part in parts if part.img_s is not None]
    return PackResult(
        path=path,
        complete=all(part.complete for part in parts),
        records=sum(part.records for part in parts),
        shards=sum(part.shards for part in parts),
        bytes=sum(part.bytes for part in parts),
        errors=sum(part.errors for part in parts),
        renamed=parts[0].renamed,
        img_s=sum(packed) / seconds if packed else None,
        seconds=seconds,
        source_bytes=sum(part.source_bytes for part in parts),
        extras=dict(sum((Counter(part.extras) for part in parts), Counter())),
        parts=tuple(parts),
        framing_bytes=sum(part.framing_bytes for part in parts),
        unmarked=sum(part.unmarked for part in parts),
        other_files=parts[0].other_files,
        repacked=sum(part.repacked for part in parts),
    )


def relocated(result: PackResult, folder: str, url: str) -> PackResult:
    """Return the result with paths in the store at `url` instead of in the local `folder`."""
    parts = tuple(relocated(part, folder, url) for part in result.parts)
    return replace(result, path=url + result.path.removeprefix(folder), parts=parts)


def _framing_bytes(destination: Path, manifest: Manifest) -> int:
    """Return the bytes of the shards that belong to no image, JSON or sidecar file."""
    columns = read_columns(destination / INDEX)
    attached = 0 if columns.json_size is None else int(columns.json_size.sum())
    attached += 0 if columns.sidecars is None else int(columns.sidecars.size.sum())
    return sum(shard.size for shard in manifest.shards) - manifest.image_bytes - attached
