"""Shared by tar, RecordIO and TFRecord: the records found in containers become one Dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.sidecar_files import SidecarFile, SidecarFiles
from headrace.datasets.records.table import RecordTable
from headrace.datasets.shards.index import Columns
from headrace.datasets.sources.archives.container_index_cache import Scan, cached_scan
from headrace.errors import FormatError, SourceError
from headrace.system.text.utf8 import utf8_name

if TYPE_CHECKING:
    from headrace.datasets.records.table import Kind

__all__ = [
    "MAX_CLASSES",
    "ContainerRecords",
    "class_count",
    "merged",
    "numbered",
    "open_containers",
    "record_table",
    "unique_stems",
]

MAX_CLASSES = 10_000_000  # a larger label means damage; each class below it would take memory
_ALWAYS_CLASSES = 100_000  # as many classes may be named by any number of records
_SCANNERS = 8  # threads: scanning waits for storage most of the time


@dataclass(slots=True)
class ContainerRecords:
    """The records of one container in its order; each list has one entry a record."""

    keys: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[int | str | None] = field(default_factory=list)  # a class index, a class name, or None
    json_offsets: list[int] = field(default_factory=list)  # empty: no record has any
    json_sizes: list[int] = field(default_factory=list)
    sidecars: dict[int, list[SidecarFile]] = field(default_factory=dict)  # record -> its sidecar files
    strays: list[str] = field(default_factory=list)  # names of members without an image
    pieces: dict[int, bytes] = field(default_factory=dict)  # record -> bytes that the file stores in several pieces
    names: dict[int, str] = field(default_factory=dict)  # label -> class name, if the container holds it


def open_containers(root: Path, kind: Kind, files: Sequence[Path], scan: Callable[[Path], ContainerRecords]) -> Dataset:
    """Open `files` as one dataset. `scan` finds the records of one file and raises FormatError if it is damaged.

    Raises SourceError if no records are found.
    """
    found, extra = cached_scan(kind, files, lambda: _scanned(files, scan))
    if not len(found.columns):
        raise SourceError(f"no images in {root}", hint="check the path; `headrace pack -h` lists what can be read")
    table = record_table((*map(str, files), *([extra] if extra else [])), found.columns)
    mark = fingerprint(table.keys, table.size, table.label)
    return Dataset(str(root), kind, table, found.classes, mark, strays=found.strays)


def record_table(files: Sequence[str], columns: Columns) -> RecordTable:
    """Return the record table of an index, without the images' widths and heights."""
    return RecordTable(
        files=tuple(files),
        file=columns.shard,
        offset=columns.offset,
        size=columns.size,
        label=columns.label,
        keys=Keys(columns.keys, columns.key_start),
        json_offset=columns.json_offset,
        json_size=columns.json_size,
        sidecars=columns.sidecars,
    )


def unique_stems(files: Sequence[Path]) -> dict[Path, str]:
    """Return the prefix of the keys of each file's records: "" for a single file, else the start of the file's name."""
    if len(files) == 1:
        return {files[0]: ""}
    stems = {path: path.name.split(".")[0] for path in files}
    if len(set(stems.values())) < len(files):  # as in data.tfrecord-00000-of-00002
        stems = {path: path.name for path in files}
    return {path: f"{stem}/" for path, stem in stems.items()}


def _scanned(files: Sequence[Path], scan: Callable[[Path], ContainerRecords]) -> Scan:
    with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="headrace-scan") as pool:
        return merged(list(pool.map(scan, files)))


def merged(parts: Sequence[ContainerRecords]) -> Scan:
    """Concatenate the records of several containers."""
    keys = Keys.of(key for part in parts for key in part.keys)
    labels, classes = numbered([label for part in parts for label in part.labels], _names(parts))
    shard = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.keys) for part in parts])
    offset = np.array([offset for part in parts for offset in part.offsets], dtype=np.int64)
    size = np.array([size for part in parts for size in part.sizes], dtype=np.int64)
    extra = bytearray()
    base = 0
    for part in parts:
        for at, data in part.pieces.items():
            shard[base + at], offset[base + at], size[base + at] = len(parts), len(extra), len(data)
            extra += data
        base += len(part.keys)
    none = np.zeros(len(keys), dtype=np.int32)
    has_json = any(part.json_sizes for part in parts)
    columns = Columns(
        key_start=keys.start,
        label=labels,
        offset=offset,
        size=size,
        height=none,  # unknown until the image's header is read
        shard=shard,
        width=none,
        crc32c=none.astype(np.uint32),
        keys=keys.blob,
        json_offset=_column([part.json_offsets or [0] * len(part.keys) for part in parts]) if has_json else None,
        json_size=_column([part.json_sizes or [0] * len(part.keys) for part in parts]) if has_json else None,
        sidecars=SidecarFiles.of([part.sidecars.get(record, []) for part in parts for record in range(len(part.keys))])
        if any(part.sidecars for part in parts)
        else None,
    )
    return Scan(columns, classes, bytes(extra), tuple(name for part in parts for name in part.strays))


def _column(parts: Iterable[list[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([value for part in parts for value in part], dtype=np.int64)


def _names(parts: Sequence[ContainerRecords]) -> dict[int, str]:
    """Return class names by label, or {} if containers contradict each other."""
    names: dict[int, str] = {}
    for part in parts:
        for label, name in part.names.items():
            if names.setdefault(label, name) != name:
                return {}
    return names


def numbered(
    labels: Sequence[int | str | None], names: dict[int, str], records: int | None = None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]:
    """Return the class index of each label (-1 for None), and the class names as UTF-8 (`utf8_name`).

    Where any label is a name, all are, numbered in sorted order; else a number is its own class index.
    records: how many records have these labels together (default: one each).
    """
    texts = {label for label in labels if isinstance(label, str)}
    if texts:
        classes = tuple(sorted({str(label) for label in labels if label is not None}))
        index = {name: number for number, name in enumerate(classes)}
        return np.array([-1 if label is None else index[str(label)] for label in labels], dtype=np.int64), tuple(
            map(utf8_name, classes)
        )
    numbers = np.array([-1 if label is None else int(label) for label in labels], dtype=np.int64)
    top = class_count(numbers, records)
    return numbers, tuple(utf8_name(names.get(label, str(label))) for label in range(top))


def class_count(numbers: npt.NDArray[np.int64], records: int | None = None) -> int:
    """Return the number of classes for labels that are numbers; -1 means none. records: how many have them (default: one each).

    Raise FormatError for more than 100,000 classes that outnumber the records ten times: a single label of 9,999,999 would
    take 720 MB.
    """
    top = int(numbers.max(initial=-1)) + 1
    records = len(numbers) if records is None else records
    most = min(MAX_CLASSES, max(_ALWAYS_CLASSES, 10 * records))
    if top > most:
        raise FormatError(
            f"label {top - 1} is beyond {most:,} classes, the most for {records:,} records",
            hint="the labels are damaged, or no classes: number the classes from 0",
        )
    return top
