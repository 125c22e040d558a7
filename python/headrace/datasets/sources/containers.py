"""What tar, RecordIO and TFRecord files have in common on their way to a Dataset: found records, labels, classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.datasets.records import Dataset, RecordTable, fingerprint
from headrace.datasets.shards.index import Columns, Keys
from headrace.datasets.sidecar_files import SidecarFile, SidecarFiles
from headrace.datasets.sources.container_index_cache import Scan, cached_scan
from headrace.errors import FormatError, SourceError

if TYPE_CHECKING:
    from headrace.datasets.records import Kind

__all__ = ["MAX_CLASSES", "ContainerRecords", "merged", "numbered", "open_containers", "record_table", "unique_stems"]

MAX_CLASSES = 10_000_000  # a label beyond this is damage, and would cost memory for every class below it
_SCANNERS = 8  # threads: scanning waits for storage most of the time


@dataclass(slots=True)
class ContainerRecords:
    """Records of one container in its order; a list has one entry a record."""

    keys: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[int | str | None] = field(default_factory=list)  # a number, a class name, or nothing
    json_offsets: list[int] = field(default_factory=list)  # empty when no record has any
    json_sizes: list[int] = field(default_factory=list)
    sidecars: dict[int, list[SidecarFile]] = field(default_factory=dict)  # record -> members beside its image
    strays: list[str] = field(default_factory=list)  # names of members that belong to no image
    pieces: dict[int, bytes] = field(default_factory=dict)  # record -> bytes that do not lie in one piece in the file
    names: dict[int, str] = field(default_factory=dict)  # label -> class name, where the container says it


def open_containers(root: Path, kind: Kind, files: Sequence[Path], scan: Callable[[Path], ContainerRecords]) -> Dataset:
    """Opens `files` as one dataset; `scan` reads the index of one of them and raises FormatError when it is damaged.

    Raises SourceError when no records are found.
    """
    found, extra = cached_scan(kind, files, lambda: _scanned(files, scan))
    if not len(found.columns):
        raise SourceError(f"no images in {root}", hint="check the path; `headrace pack -h` lists what can be read")
    table = record_table((*map(str, files), *([extra] if extra else [])), found.columns)
    mark = fingerprint(table.keys, table.size, table.label)
    return Dataset(str(root), kind, table, found.classes, mark, strays=found.strays)


def record_table(files: Sequence[str], columns: Columns) -> RecordTable:
    """Where the records of an index lie; sizes of images as the index has them are left out."""
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
    """A short name for each file to begin its records' keys with: "" for one file alone, else what its name starts with."""
    if len(files) == 1:
        return {files[0]: ""}
    stems = {path: path.name.split(".")[0] for path in files}
    if len(set(stems.values())) < len(files):  # data.tfrecord-00000-of-00002 and its like
        stems = {path: path.name for path in files}
    return {path: f"{stem}/" for path, stem in stems.items()}


def _scanned(files: Sequence[Path], scan: Callable[[Path], ContainerRecords]) -> Scan:
    with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="headrace-scan") as pool:
        return merged(list(pool.map(scan, files)))


def merged(parts: Sequence[ContainerRecords]) -> Scan:
    """What lies in several containers, one after the other."""
    keys = Keys.of([key for part in parts for key in part.keys])
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
        height=none,  # not known before the image's own header is read
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
    """Class names by label, where all containers agree on them; else none."""
    names: dict[int, str] = {}
    for part in parts:
        for label, name in part.names.items():
            if names.setdefault(label, name) != name:
                return {}
    return names


def numbered(
    labels: Sequence[int | str | None], names: dict[int, str]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]:
    """Labels as class indices (-1: none), and the classes: numbers stand for themselves, names are sorted."""
    texts = {label for label in labels if isinstance(label, str)}
    if texts:
        classes = tuple(sorted({str(label) for label in labels if label is not None}))
        index = {name: number for number, name in enumerate(classes)}
        return np.array([-1 if label is None else index[str(label)] for label in labels], dtype=np.int64), classes
    numbers = np.array([-1 if label is None else int(label) for label in labels], dtype=np.int64)
    top = int(numbers.max(initial=-1)) + 1
    if top > MAX_CLASSES:
        raise FormatError(f"label {top - 1} is beyond {MAX_CLASSES:,} classes: the container is damaged or holds no classes")
    return numbers, tuple(names.get(label, str(label)) for label in range(top))
