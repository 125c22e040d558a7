"""The table of a dataset's records, and what fetches records that are not on local disk or come as a stream.

The table has one row for each record and is stored as columns, so a million records are a few arrays. Native code reads these
arrays without a copy. They are memory-mapped if the source has an index on disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.file_paths import joined_files, selected_files
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.sidecar_files import SidecarFiles
from headrace.errors import SourceError
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.size_limits import record_limit, too_large

__all__ = [
    "SYSTEM_ERRORS",
    "Kind",
    "PendingRecords",
    "RecordFetcher",
    "RecordTable",
    "Stream",
    "StreamPass",
    "StreamRecord",
    "Tabled",
]

SYSTEM_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Numbers of errors that say nothing about a record: it may be sound, and the next ones will fail alike."""

Kind = Literal["folder", "lst", "shards", "tar", "rec", "tfrecord", "pipe", "mixed"]
"""What records are read from. "mixed": several datasets of different kinds, joined."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The location and label of each of n records. `size` -1 means the file from `offset` to its end (an image file)."""

    files: Sequence[str]  # paths of image files, or of shards
    file: npt.NDArray[np.int32]  # [n] index into `files`
    offset: npt.NDArray[np.int64]  # [n] bytes from the start of the file
    size: npt.NDArray[np.int64]  # [n] bytes, or -1
    label: npt.NDArray[np.int64]  # [n] class index
    keys: Sequence[str]  # [n] name of the record, unique in the dataset
    width: npt.NDArray[np.int32] | None = None  # [n] pixels; None: the source does not store them
    height: npt.NDArray[np.int32] | None = None
    json_offset: npt.NDArray[np.int64] | None = None  # [n] bytes from the start of the same file to the record's JSON
    json_size: npt.NDArray[np.int64] | None = None  # [n] bytes of the JSON; 0: the record has none
    sidecars: SidecarFiles | None = None  # None: no record has any
    crc32c: npt.NDArray[np.uint32] | None = None  # [n] checksum of each record's bytes, which loaders compare; None: not known
    file_size: npt.NDArray[np.int64] | None = None  # [n] bytes of each image file when it was listed; None: not known
    file_change: npt.NDArray[np.int64] | None = None  # [n] the file's `change_number` then

    def __len__(self) -> int:
        return len(self.label)

    def read(self, record: int, offset: int, size: int, *, hint: str | None = None) -> bytes:
        """Return `size` bytes at `offset` of the file of a record; -1: up to its end.

        Raises SourceError if the file is missing or, with `hint`, too short.
        """
        path = self.files[self.file[record]]
        try:
            with open(path, "rb", opener=regular_opener) as file:
                wanted = size if size >= 0 else os.fstat(file.fileno()).st_size - offset
                if wanted > (limit := record_limit()):
                    raise OSError(errno.EFBIG, f"it {too_large(wanted, limit)}")
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise SourceError(f"record {self.keys[record]!r}: cannot read {path}: {error.strerror}") from error
        if size >= 0 and len(data) != size:
            found = f"{path} ends at byte {offset + len(data)}, {offset + size} expected"
            raise SourceError(f"record {self.keys[record]!r}: {found}", hint=hint)
        return data

    def selected(self, rows: npt.NDArray[np.int64]) -> RecordTable:
        """Return the table of the records at `rows`, in this order. A row may come several times."""
        files, file = selected_files(self.files, self.file, rows)
        keys = self.keys if isinstance(self.keys, Keys) else Keys.of(self.keys)
        columns = {name: _taken(getattr(self, name), rows) for name in _OPTIONAL}
        sidecars = None if self.sidecars is None else self.sidecars.selected(rows)
        return RecordTable(
            files=files,
            file=file,
            offset=self.offset[rows],
            size=self.size[rows],
            label=self.label[rows],
            keys=keys.selected(rows),
            sidecars=sidecars,
            **columns,
        )

    @staticmethod
    def joined(tables: Sequence[RecordTable]) -> RecordTable:
        """Concatenate tables. A column that one of them lacks is left out; records of tables without JSON have none."""
        lengths = [len(table.files) for table in tables]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
        columns = {name: _concatenated([getattr(table, name) for table in tables]) for name in _OPTIONAL}
        if any(table.json_size is not None for table in tables):
            for name in ("json_offset", "json_size"):
                given = [getattr(table, name) for table in tables]
                none = [np.zeros(len(table), dtype=np.int64) for table in tables]
                columns[name] = np.concatenate([a if a is not None else b for a, b in zip(given, none, strict=True)])
        return RecordTable(
            files=joined_files([table.files for table in tables]),
            file=np.concatenate([table.file + start for table, start in zip(tables, starts, strict=True)]).astype(np.int32),
            offset=np.concatenate([table.offset for table in tables]),
            size=np.concatenate([table.size for table in tables]),
            label=np.concatenate([table.label for table in tables]),
            keys=Keys.joined([table.keys if isinstance(table.keys, Keys) else Keys.of(table.keys) for table in tables]),
            sidecars=SidecarFiles.joined([(table.sidecars, len(table)) for table in tables]),
            **columns,
        )


# Columns that a table may lack.
_OPTIONAL = ("width", "height", "json_offset", "json_size", "crc32c", "file_size", "file_change")


def _taken(column: npt.NDArray[Any] | None, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
    return None if column is None else column[rows]


def _concatenated(columns: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    some = [column for column in columns if column is not None]
    return np.concatenate(some) if len(some) == len(columns) else None


class PendingRecords(Protocol):
    """Records being fetched. `wait` returns their bytes in order, or None if the table's files now hold them."""

    def done(self) -> bool: ...
    def wait(self) -> list[bytes] | None: ...
    def cancel(self) -> None: ...


class RecordFetcher(Protocol):
    """Interface of what fetches records that are not on local disk. `wait` raises SourceError if a record cannot be fetched."""

    def begin(self, records: npt.NDArray[np.int64], /) -> PendingRecords:
        """Start fetching records from their source, and return at once. The result's `wait` returns their bytes."""

    def prefetch(self, records: npt.NDArray[np.int64], /) -> None:
        """Announce records that will be read soon, to be fetched after all begun ones. Return at once."""

    def read(self, record: int, offset: int, size: int, /) -> bytes | None:
        """Return `size` bytes at `offset` of a record's file; None: the table's own file, on local disk, holds them by now."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record read from a stream, with its bytes."""

    key: str
    label: int | str | None  # a class index, a class name, or None
    data: bytes  # the encoded image
    json: bytes = b""


class StreamPass(Protocol):
    """The records of one pass over a stream, to iterate over once."""

    def __iter__(self) -> Iterator[StreamRecord]: ...

    def stop(self) -> None:
        """End the pass, even if another thread waits for its next record."""


class Stream(Protocol):
    """A dataset that can only be read in order, once a pass."""

    name: str

    def records(self) -> int:
        """Return the number of records of one pass. Raise UnknownLengthError if nothing states it before the data."""

    def read(self) -> StreamPass:
        """Begin the next pass over the stream, and return it."""


class Tabled(Protocol):
    """The parts of a dataset that notebooks need to show pictures and facts."""

    @property
    def kind(self) -> Kind: ...
    @property
    def table(self) -> RecordTable: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def fetcher(self) -> RecordFetcher | None: ...
    @property
    def stream(self) -> Stream | None: ...
    def __len__(self) -> int: ...
    def class_name(self, label: int) -> str:
        """Return the name of a class, "" without a label."""

    def read(self, record: int) -> bytes:
        """Return the encoded image of a record."""
