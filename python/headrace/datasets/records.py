"""What a dataset is: a table of records (where the bytes are, which label) plus class names and a fingerprint.

A record is one image with key and label. The table is columns, one row a record, so that a million records are a few
arrays (memory-mapped where the source has an index on disk) and cross into native code without copying.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace.datasets.sidecar_files import SidecarFiles
from headrace.errors import SourceError

__all__ = ["Dataset", "PendingRecords", "RecordFetcher", "RecordTable", "Stream", "StreamPass", "StreamRecord"]

Kind = Literal["folder", "lst", "shards", "tar", "rec", "tfrecord", "pipe"]


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Where each record's bytes are; n rows. `size` -1 means the whole file from `offset` (an image file)."""

    files: tuple[str, ...]  # paths of image files, or of shards
    file: npt.NDArray[np.int32]  # [n] index into `files`
    offset: npt.NDArray[np.int64]  # [n] bytes from the start of the file
    size: npt.NDArray[np.int64]  # [n] bytes, or -1
    label: npt.NDArray[np.int64]  # [n] class index
    keys: Sequence[str]  # [n] the record's name: unique in the dataset, for messages and joins
    width: npt.NDArray[np.int32] | None = None  # [n] pixels, where the source knows
    height: npt.NDArray[np.int32] | None = None
    json_offset: npt.NDArray[np.int64] | None = None  # [n] where the record's JSON lies, in the same file
    json_size: npt.NDArray[np.int64] | None = None  # [n] bytes, 0 = it has none
    sidecars: SidecarFiles | None = None  # members beside the images, where there are any

    def __len__(self) -> int:
        return len(self.label)


class PendingRecords(Protocol):
    """Records on their way. `wait` returns their bytes, in order, or None: they lie in the table's files now."""

    def done(self) -> bool: ...
    def wait(self) -> list[bytes] | None: ...
    def cancel(self) -> None: ...


class RecordFetcher(Protocol):
    """Brings records from elsewhere; what cannot come is a SourceError when it is waited for."""

    def begin(self, records: npt.NDArray[np.int64], /) -> PendingRecords:
        """Starts to fetch records; returns at once."""

    def prefetch(self, records: npt.NDArray[np.int64], /) -> None:
        """Says that these will be wanted soon, after all that were begun; returns at once."""

    def read(self, record: int, offset: int, size: int, /) -> bytes | None:
        """Bytes of the file of one record, around or behind its image; None: they lie in the table's file now."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record that came with its bytes."""

    key: str
    label: int | str | None  # a number, a class name, or nothing
    data: bytes  # the encoded image
    json: bytes = b""


class StreamPass(Protocol):
    """A pass over a stream under way."""

    def __iter__(self) -> Iterator[StreamRecord]: ...

    def stop(self) -> None:
        """Ends it, also when it waits in another thread."""


class Stream(Protocol):
    """A dataset that can only be read in order, once in each pass."""

    name: str

    def records(self) -> int:
        """Records of one pass. Raises UnknownLengthError."""

    def read(self) -> StreamPass:
        """Begins the next pass."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """An opened dataset: what `headrace.open` returns and `headrace.Loader` reads."""

    root: str
    kind: Kind
    table: RecordTable
    classes: tuple[str, ...]
    fingerprint: str  # changes when records, their order, sizes or labels change
    fetcher: RecordFetcher | None = None  # None: everything is on local disk
    stream: Stream | None = None  # of a stream; its table is empty
    strays: tuple[str, ...] = ()  # members of archives that belong to no image; images that ImageFolder does not take

    def __len__(self) -> int:
        return len(self.table) if self.stream is None else self.stream.records()

    def __repr__(self) -> str:
        if self.stream is not None:
            return f"Dataset({self.root!r}, a stream)"
        return f"Dataset({self.root!r}, kind={self.kind!r}, records={len(self)}, classes={len(self.classes)})"

    def read(self, record: int) -> bytes:
        """The encoded bytes of one record. Raises SourceError when the file is gone or shorter than the index says."""
        self.check_stored()
        return self._read(record, int(self.table.offset[record]), int(self.table.size[record]))

    def check_stored(self) -> None:
        """Raises SourceError for a stream: it has no records that can be asked for."""
        if self.stream is not None:
            raise SourceError(
                f"{self.root} is a stream: its records can only be read in order, by a Loader",
                hint="pack and inspect take the channel's path: they copy it first",
            )

    def read_json(self, record: int) -> bytes:
        """The JSON that belongs to a record, empty where it has none. Raises as `read` does."""
        offset, size = self.table.json_offset, self.table.json_size
        if offset is None or size is None or not size[record]:
            return b""
        return self._read(record, int(offset[record]), int(size[record]))

    def read_extras(self, record: int) -> list[tuple[str, bytes]]:
        """Name (what follows KEY and a dot) and bytes of each member beside the image. Raises as `read` does."""
        sidecars = self.table.sidecars
        members = sidecars.members(record) if sidecars is not None else []
        return [(name, self._read(record, offset, size)) for name, offset, size in members]

    def _read(self, record: int, offset: int, size: int) -> bytes:
        table = self.table
        path = table.files[table.file[record]]
        if self.fetcher is not None and (data := self.fetcher.read(record, offset, size)) is not None:
            return data
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise SourceError(f"record {table.keys[record]!r}: cannot read {path}: {error.strerror}") from error
        if size >= 0 and len(data) != size:
            raise SourceError(
                f"record {table.keys[record]!r}: {path} ends at byte {offset + len(data)}, {offset + size} expected",
                hint=f"check the dataset:  headrace verify {self.root}",
            )
        return data


def fingerprint(keys: Sequence[str], sizes: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> str:
    """A digest of what the records are, independent of where they lie: SHA-256 of keys, sizes and labels, 32 hex digits."""
    digest = hashlib.sha256()
    for key in keys:
        digest.update(os.fsencode(key))
        digest.update(b"\0")
    digest.update(np.ascontiguousarray(sizes, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    return digest.hexdigest()[:32]


def existing(path: str | os.PathLike[str]) -> Path:
    """`path` as an absolute Path. Raises SourceError when nothing is there."""
    found = Path(path).expanduser().absolute()
    if not found.exists():
        raise SourceError(f"no such file or folder: {found}", hint="check the path (a URL begins with s3:// or the like)")
    return found
