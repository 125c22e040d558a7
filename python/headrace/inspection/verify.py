"""`headrace.verify`: check a packed dataset against its manifest, every byte, and on request every pixel.

Checks, in this order:
1. Manifest and index can be read; the index has the size and SHA-256 that the manifest states (`_check_files`).
2. The index agrees with the manifest: records, classes, counts, unique keys, places inside the shards (`_check_files`).
3. errors.jsonl has the stated number of lines; the folder has no other files (`_check_files`).
4. Each shard has the stated size and SHA-256 (`_ShardCheck`).
5. Each record has its CRC-32C, its tar header before it, its label and sidecar files behind it (`_ShardCheck._check_record`).
6. With `decode`: each image decodes completely and has the stated width and height (`_ShardCheck._check_record`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from headrace._native import crc32c
from headrace.datasets.open import local_copy
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.packed_keys import wrong_key
from headrace.datasets.records.sidecar_files import SidecarFile
from headrace.datasets.shards import tar
from headrace.datasets.shards.index import Columns, read_columns
from headrace.datasets.shards.manifest import ERRORS, MANIFEST, Manifest, ShardFacts, read_manifest
from headrace.datasets.sources.archives.shards import contradiction, has_manifest, is_packed, no_manifest
from headrace.datasets.sources.folders.folder import OnListed
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import DecodeError, FormatError, SourceError, UsageError
from headrace.images.header import read_header
from headrace.inspection.problems import Problem, VerifyResult
from headrace.inspection.verify_folder import is_folder_copy, verify_folder
from headrace.packing.encoding.lossless import check_pixels
from headrace.system.files.regular_file import regular_opener
from headrace.system.hardware import machine
from headrace.system.text.arguments import suggest_arguments
from headrace.system.text.size_limits import lines_of, record_limit, too_large

__all__ = ["Problem", "VerifyResult", "verify"]


@suggest_arguments()
def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    workers: int | None = None,
    on_listed: OnListed | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> VerifyResult:
    """Check every checksum of the packed dataset at `path`; return the problems found.

    path: folder or URL of a packed dataset; one in an object store is copied to the cache first.
    decode: also decode every image completely. Default: False.
    workers: threads. Default: one for each core.
    on_listed: called with the number of files just listed, of a folder copy. on_start: called with the bytes to read.
        on_progress: called with the bytes just read. Default: None.

    Raises SourceError if `path` holds no packed dataset, an unfinished one or several, UsageError for less than one worker.
    Example: `assert headrace.verify("packed/").ok`.
    """
    folder = local_copy(str(path)) if is_url(path) else Path(path).expanduser().absolute()
    where = str(path) if is_url(path) else str(folder)
    count = workers if workers is not None else max(1, round(machine.cores().usable))
    if count < 1:
        raise UsageError(f"workers is {count}; at least 1 is needed")
    if is_folder_copy(folder):
        return verify_folder(folder, count, decode=decode, on_listed=on_listed, on_start=on_start, on_progress=on_progress)
    if not is_packed(folder):
        raise SourceError(f"no packed dataset in {where}: {MANIFEST} is missing", hint="headrace pack makes one")
    if not has_manifest(folder):
        raise no_manifest(folder)
    try:
        manifest = read_manifest(folder)
        columns = read_columns(folder / manifest.index.file)
    except FormatError as error:
        return VerifyResult(where, False, 0, 0, 0, decode, (Problem(MANIFEST, "", str(error)),))
    problems = list(_check_files(folder, manifest, columns))
    total = sum(shard.size for shard in manifest.shards)
    if on_start:
        on_start(total)
    report = on_progress or (lambda _: None)
    if not any(problem.file == manifest.index.file for problem in problems):
        with ThreadPoolExecutor(count, thread_name_prefix="headrace-verify") as pool:
            check = _ShardCheck(folder, manifest, columns, _rows_of_shards(manifest, columns), decode, report)
            for found in pool.map(check, range(len(manifest.shards))):
                problems += found
    return VerifyResult(where, not problems, manifest.records, len(manifest.shards), total, decode, tuple(problems))


def _check_files(folder: Path, manifest: Manifest, columns: Columns) -> Iterator[Problem]:
    """Yield the problems of manifest, index and folder."""
    index = folder / manifest.index.file
    with open(index, "rb", opener=regular_opener) as file:
        same = os.fstat(file.fileno()).st_size == manifest.index.size
        same = same and hashlib.file_digest(file, "sha256").hexdigest() == manifest.index.sha256
    if not same:
        yield Problem(manifest.index.file, "", "its SHA-256 is not the manifest's: the bytes have changed")
        return
    problem = contradiction(folder, manifest, columns)  # _ShardCheck reports missing and resized shards
    if problem:
        yield Problem(manifest.index.file, "", problem)
        return
    counts = np.bincount(columns.label, minlength=len(manifest.classes)).tolist()
    if counts != list(manifest.per_class):
        yield Problem(MANIFEST, "", "counts.per_class differs from the labels of the index")
    if int(columns.size.sum()) != manifest.image_bytes:
        yield Problem(MANIFEST, "", "counts.image_bytes differs from the sizes of the index")
    rows = np.bincount(columns.shard, minlength=len(manifest.shards)).tolist()
    if rows != [shard.records for shard in manifest.shards] or np.any(np.diff(columns.shard) < 0):
        yield Problem(MANIFEST, "", "the shards' record counts differ from the index")
    keys = Keys(columns.keys, columns.key_start)
    if not keys.are_unique():
        yield Problem(manifest.index.file, "", "two records have the same key")
    if (row := wrong_key(keys)) is not None:
        yield Problem(manifest.index.file, keys[row], "is no name of a member: do not unpack the shards")
    rejected = 0
    if (folder / ERRORS).is_file():
        with open(folder / ERRORS, "rb", opener=regular_opener) as file:
            rejected = sum(line.endswith(b"\n") for line in lines_of(file))
    if rejected != manifest.rejected:
        yield Problem(ERRORS, "", f"lists {rejected:,} rejected records, the manifest counts {manifest.rejected:,}")
    known = {MANIFEST, manifest.index.file, ERRORS, *(shard.file for shard in manifest.shards)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield Problem(path.name, "", "does not belong to the dataset")


def _rows_of_shards(manifest: Manifest, columns: Columns) -> Sequence[npt.NDArray[np.int64]]:
    """Return the rows of each shard, in the index's order."""
    order = np.argsort(columns.shard, kind="stable")
    return np.split(order, np.searchsorted(columns.shard, np.arange(1, len(manifest.shards)), sorter=order))


@dataclass(frozen=True, slots=True)
class _ShardCheck:
    folder: Path
    manifest: Manifest
    columns: Columns
    rows: Sequence[npt.NDArray[np.int64]]  # for each shard, its rows of the index
    decode: bool
    on_progress: Callable[[int], None]

    def __call__(self, number: int) -> list[Problem]:
        shard = self.manifest.shards[number]
        try:
            with open(self.folder / shard.file, "rb", opener=regular_opener) as file:
                size = os.fstat(file.fileno()).st_size
                if size != shard.size:
                    return [Problem(shard.file, "", f"has {size} bytes, the manifest says {shard.size}")]
                if not size:
                    return [Problem(shard.file, "", "is empty: even a shard without records has an end")]
                return list(self._check_records(shard, number, file))
        except OSError as error:
            return [Problem(shard.file, "", error.strerror or str(error))]

    def _check_records(self, shard: ShardFacts, number: int, file: IO[bytes]) -> Iterator[Problem]:
        if not self._digest_is(shard.sha256, file):
            yield Problem(shard.file, "", "its SHA-256 is not the manifest's: the bytes have changed")
        keys = Keys(self.columns.keys, self.columns.key_start)
        for row in self.rows[number].tolist():
            try:
                detail = self._check_record(row, keys[row], file.fileno())
            except FormatError as error:  # a key that no member name can hold
                detail = str(error)
            if detail:
                yield Problem(shard.file, keys[row], detail)

    def _digest_is(self, expected: str, file: IO[bytes]) -> bool:
        digest = hashlib.sha256()
        while piece := file.read(1 << 22):
            digest.update(piece)
            self.on_progress(len(piece))
        return digest.hexdigest() == expected

    def _sidecars(self, row: int) -> list[SidecarFile]:
        """Return JSON and sidecar files of a record, as the index locates them."""
        columns = self.columns
        found = columns.sidecars.members(row) if columns.sidecars is not None else []
        if columns.json_offset is not None and columns.json_size is not None and columns.json_size[row]:
            found.append(("json", int(columns.json_offset[row]), int(columns.json_size[row])))
        return found

    def _check_record(self, row: int, key: str, shard: int) -> str | None:
        """Return in words the first fault of one record; None if it is intact. shard: the descriptor of its file.

        The file is read, not mapped: who cuts a mapped file off ends the process that looks at it.
        """
        offset, size = int(self.columns.offset[row]), int(self.columns.size[row])
        if size > (limit := record_limit()):  # a sparse shard of any size takes no disk
            return too_large(size, limit)
        image = os.pread(shard, size, offset)
        if crc32c(image) != int(self.columns.crc32c[row]):
            return "its CRC-32C is not the index's: the bytes have changed"
        if not _is_headed(key, size, shard, offset):
            return "the tar header before it is not its own"
        label_at = offset + size + len(tar.padding(size))
        label = tar.member(f"{key}.cls", b"%d" % self.columns.label[row])
        if os.pread(shard, len(label), label_at) != label:
            return "the member after it is not its label"
        for name, at, length in self._sidecars(row):
            expected_header = tar.header(f"{key}.{name}", length)
            if _before(shard, at, len(expected_header)) != expected_header:
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


def _before(shard: int, at: int, size: int) -> bytes:
    """Return up to `size` bytes of a file before the place `at`."""
    begin = max(0, at - size)
    return os.pread(shard, at - begin, begin)


def _is_headed(key: str, size: int, shard: int, at: int) -> bool:
    """Return whether the bytes before an image, which begins at `at`, end in its tar header, whatever its file extension is."""
    last = _before(shard, at, tar.BLOCK)  # its name ends in the extension, in which "_" may stand for what is not ASCII
    extension = last[:100].rstrip(b"\0").rpartition(b".")[2].decode("ascii", "replace")
    expected = tar.header(f"{key}.{extension}", size)
    return _before(shard, at, len(expected)) == expected or ("_" in extension and last == expected[-tar.BLOCK :])
