"""`headrace.verify`: whether a packed dataset is what its manifest says, down to every byte, and if asked every pixel.

Checked: the manifest, each file's size and SHA-256, the index against the manifest, each record's CRC-32C, and that
the tar members around a record carry its key and label. With `decode`, every image is decoded completely.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace._native import crc32c
from headrace.datasets.open import local_copy
from headrace.datasets.shards import tar
from headrace.datasets.shards.index import Columns, Keys, read_columns
from headrace.datasets.shards.manifest import ERRORS, MANIFEST, Manifest, ShardFacts, read_manifest
from headrace.datasets.sidecar_files import SidecarFile
from headrace.datasets.sources.remote.store import is_url
from headrace.datasets.sources.shards import contradiction, is_packed, no_manifest
from headrace.errors import DecodeError, FormatError, SourceError, UsageError
from headrace.images.header import read_header
from headrace.packing.lossless import check_pixels
from headrace.system import machine

__all__ = ["Problem", "VerifyResult", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is off: in which file, at which record (key, or empty), in words."""

    file: str
    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was checked, and what is wrong with it."""

    path: str
    ok: bool
    records: int
    shards: int
    bytes: int  # of the shards that were read
    decoded: bool  # whether every image was decoded
    problems: tuple[Problem, ...]


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    workers: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> VerifyResult:
    """Checks the packed dataset at `path`; a problem is listed, not raised.

    `on_start` is told how many bytes there are to read, `on_progress` how many more were. Raises SourceError when
    there is no packed dataset at `path` at all, an unfinished one or several, UsageError for a wrong number of workers.
    """
    folder = local_copy(str(path)) if is_url(path) else Path(path).expanduser().absolute()
    where = str(path) if is_url(path) else str(folder)
    if not is_packed(folder):
        raise SourceError(f"no packed dataset in {where}: {MANIFEST} is missing", hint="headrace pack makes one")
    if not (folder / MANIFEST).exists():
        raise no_manifest(folder)
    count = workers if workers is not None else max(1, round(machine.cores().usable))
    if count < 1:
        raise UsageError(f"workers is {count}; at least 1 is needed")
    try:
        manifest = read_manifest(folder)
        columns = read_columns(folder / manifest.index.file)
    except FormatError as error:
        return VerifyResult(where, False, 0, 0, 0, decode, (Problem(MANIFEST, "", str(error)),))
    problems = list(_around(folder, manifest, columns))
    total = sum(shard.size for shard in manifest.shards)
    if on_start:
        on_start(total)
    report = on_progress or (lambda _: None)
    if not any(problem.file == manifest.index.file for problem in problems):
        with ThreadPoolExecutor(count, thread_name_prefix="headrace-verify") as pool:
            check = _ShardCheck(folder, manifest, columns, decode, report)
            for found in pool.map(check, range(len(manifest.shards))):
                problems += found
    return VerifyResult(where, not problems, manifest.records, len(manifest.shards), total, decode, tuple(problems))


def _around(folder: Path, manifest: Manifest, columns: Columns) -> Iterator[Problem]:
    """What is wrong outside the shards."""
    index = folder / manifest.index.file
    raw = index.read_bytes()
    if len(raw) != manifest.index.size or hashlib.sha256(raw).hexdigest() != manifest.index.sha256:
        yield Problem(manifest.index.file, "", "its bytes are not those that the manifest has the SHA-256 of")
        return
    problem = contradiction(folder, manifest, columns)  # a missing or resized shard is found with the shards
    if problem:
        yield Problem(manifest.index.file, "", problem)
        return
    counts = np.bincount(columns.label, minlength=len(manifest.classes)).tolist()
    if counts != list(manifest.per_class):
        yield Problem(MANIFEST, "", "counts.per_class is not what the index's labels add up to")
    if int(columns.size.sum()) != manifest.image_bytes:
        yield Problem(MANIFEST, "", "counts.image_bytes is not what the index's sizes add up to")
    rows = np.bincount(columns.shard, minlength=len(manifest.shards)).tolist()
    if rows != [shard.records for shard in manifest.shards] or np.any(np.diff(columns.shard) < 0):
        yield Problem(MANIFEST, "", "the shards' record counts are not those of the index")
    keys = Keys(columns.keys, columns.key_start)
    if len(set(keys)) != len(keys):
        yield Problem(manifest.index.file, "", "two records have the same key")
    rejected = (folder / ERRORS).read_bytes().count(b"\n") if (folder / ERRORS).is_file() else 0
    if rejected != manifest.rejected:
        yield Problem(ERRORS, "", f"lists {rejected:,} rejected records, the manifest counts {manifest.rejected:,}")
    known = {MANIFEST, manifest.index.file, ERRORS, *(shard.file for shard in manifest.shards)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield Problem(path.name, "", "does not belong to the dataset")


@dataclass(frozen=True, slots=True)
class _ShardCheck:
    folder: Path
    manifest: Manifest
    columns: Columns
    decode: bool
    on_progress: Callable[[int], None]

    def __call__(self, number: int) -> list[Problem]:
        shard = self.manifest.shards[number]
        try:
            with open(self.folder / shard.file, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != shard.size:
                    return [Problem(shard.file, "", f"has {size} bytes, the manifest says {shard.size}")]
                if not size:
                    return [Problem(shard.file, "", "is empty: even a shard without records has an end")]
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
                    return list(self._problems(shard, number, view))
        except OSError as error:
            return [Problem(shard.file, "", error.strerror or str(error))]

    def _problems(self, shard: ShardFacts, number: int, data: memoryview) -> Iterator[Problem]:
        if not self._digest_is(shard.sha256, data):
            yield Problem(shard.file, "", "its bytes are not those that the manifest has the SHA-256 of")
        keys = Keys(self.columns.keys, self.columns.key_start)
        rows: npt.NDArray[np.int64] = np.flatnonzero(self.columns.shard == number)
        for row in rows.tolist():
            try:
                detail = self._record(row, keys[row], data)
            except FormatError as error:  # a name that no member can have
                detail = str(error)
            if detail:
                yield Problem(shard.file, keys[row], detail)

    def _digest_is(self, expected: str, data: memoryview) -> bool:
        digest = hashlib.sha256()
        for at in range(0, len(data), 1 << 22):
            with data[at : at + (1 << 22)] as piece:
                digest.update(piece)
                self.on_progress(len(piece))
        return digest.hexdigest() == expected

    def _beside(self, row: int) -> list[SidecarFile]:
        """The members of a record behind its label, by the index."""
        columns = self.columns
        found = columns.sidecars.members(row) if columns.sidecars is not None else []
        if columns.json_offset is not None and columns.json_size is not None and columns.json_size[row]:
            found.append(("json", int(columns.json_offset[row]), int(columns.json_size[row])))
        return found

    def _record(self, row: int, key: str, data: memoryview) -> str | None:
        """What is wrong with one record, in words, or None."""
        offset, size = int(self.columns.offset[row]), int(self.columns.size[row])
        image = bytes(data[offset : offset + size])
        if crc32c(image) != int(self.columns.crc32c[row]):
            return "its CRC-32C is not the index's: the bytes have changed"
        behind = offset + size + len(tar.padding(size))
        label = tar.member(f"{key}.cls", b"%d" % self.columns.label[row])
        if data[behind : behind + len(label)] != label:
            return "the member behind it is not its label"
        for name, at, length in self._beside(row):
            expected_header = tar.header(f"{key}.{name}", length)
            if data[at - len(expected_header) : at] != expected_header:
                return f"there is no member {name!r} of {length:,} bytes where the index says"
        if not self.decode:
            return None
        try:
            header = read_header(image)
            check_pixels(image, header)
        except DecodeError as error:
            return str(error)
        expected = (int(self.columns.width[row]), int(self.columns.height[row]))
        if (header.width, header.height) != expected:
            return f"is {header.width} x {header.height} pixels, the index says {expected[0]} x {expected[1]}"
        return None
