"""A dataset: a table of records (location of the bytes, label), class names and a fingerprint.

A record is one image with key and label.
"""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.keys import Keys
from headrace.datasets.records.notebook import dataset_facts, dataset_strip, names_text, notebook_html
from headrace.datasets.records.table import Kind, RecordFetcher, RecordTable, Stream
from headrace.errors import DecodeError, FormatError, RecordIndexError, SourceError, UsageError
from headrace.images.with_pillow import rgb_picture
from headrace.system.files.near_paths import near_path_hint
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.arguments import unknown_name
from headrace.system.text.other_libraries import OF_DATASET
from headrace.system.text.redaction import without_url_secrets
from headrace.system.text.size_limits import record_limit, too_large

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Dataset", "existing", "fingerprint"]


class _Opened:
    """Base of Dataset, which is made by `headrace.open`."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raise UsageError for `Dataset("photos")`."""
        if 0 < len(arguments) + len(named) < _REQUIRED:  # none: of a copy
            raise UsageError("a Dataset is made by headrace.open", hint='headrace.open("photos")')
        return object.__new__(cls)


_REQUIRED = 5  # arguments of a Dataset that have no default


@dataclass(frozen=True)
class Dataset(_Opened):
    """An opened dataset: records from one source, with class names. `headrace.open` returns it, `headrace.Loader` reads it.

    `len(dataset)` is the number of records; it raises UnknownLengthError for a stream of unknown length. `root` is the path or
    URL, `table` the place, size, label and key of each record, and `classes` the names of the labels.

    As torchvision's `ImageFolder`, it has `class_to_idx`, `targets` and `samples`, and `dataset[i]` is (image, label) of record
    i. A notebook shows the facts and a strip of pictures.
    Example: `data = headrace.open("photos"); image, label = data[0]; data.classes[label]`.
    """

    root: str  # path or URL
    kind: Kind
    table: RecordTable
    classes: tuple[str, ...]  # class names; a label is an index into them
    fingerprint: str  # differs if records, their order, sizes or labels differ
    fetcher: RecordFetcher | None = None  # None: everything is on local disk
    stream: Stream | None = None  # None: not a stream; the table of a stream is empty
    strays: tuple[str, ...] = ()  # members of archives without an image; images that ImageFolder ignores
    ignored_folders: tuple[str, ...] = ()  # in an image folder: hidden ones, and those of a Mac's archive
    other_files: int = 0  # in the class folders, with endings that are no image's

    def __len__(self) -> int:
        return len(self.table) if self.stream is None else self.stream.records()

    def __repr__(self) -> str:
        if self.stream is not None:
            return f"Dataset({without_url_secrets(self.root)!r}, a stream)"
        names = f" ({names_text(self.classes, 3)})" if self.classes else ""
        root = without_url_secrets(self.root)
        ignored = f", ignored folders: {', '.join(self.ignored_folders[:3])}" if self.ignored_folders else ""
        ignored += " …" if len(self.ignored_folders) > 3 else ""
        return f"Dataset({root!r}, kind={self.kind!r}, records={len(self)}, classes={len(self.classes)}{names}{ignored})"

    def _repr_html_(self) -> str:
        """Return facts and a strip of pictures, which notebooks show."""
        return notebook_html(f"Dataset {without_url_secrets(self.root)}", dataset_facts(self), dataset_strip(self))

    def __getitem__(self, record: SupportsIndex) -> tuple[Image.Image, int]:
        """Return the image of one record, a Pillow image in RGB, and its label, -1 if it has none.

        record: its row in the table; negative rows count from the end.

        Raises RecordIndexError (also an IndexError) outside the dataset, SourceError for a stream or a missing file,
        DecodeError for a damaged image, MissingDependencyError without Pillow. Example: `image, label = dataset[0]`.
        """
        self.check_stored()
        try:
            row = operator.index(record)
        except TypeError:
            raise UsageError(
                f"a dataset takes the number of one record, not {record!r}", hint="for several, [dataset[i] for i in range(10)]"
            ) from None
        if not -len(self) <= row < len(self):
            raise RecordIndexError(f"{self.root} has {len(self)} records: there is no record {row}")
        row %= len(self)
        try:
            return rgb_picture(self.read(row)), int(self.table.label[row])
        except DecodeError as error:
            key = self.table.keys[row]
            raise DecodeError(f"record {key!r} of {self.root}: {error}", key=key, status=error.status) from error

    if not TYPE_CHECKING:  # else a type checker would accept any name

        def __getattr__(self, name: str) -> object:
            raise unknown_name("a Dataset", name, dir(type(self)), OF_DATASET)

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and label of each record, as ImageFolder has them; of a record in a container its key. `imgs` is the same."""
        self.check_stored()
        names = self.table.files if self.kind in ("folder", "lst") else self.table.keys
        return list(zip(names, self.targets, strict=True))

    imgs = samples

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[int]:
        """The label of each record, -1 for none. Raises SourceError for a stream. `table.label` has them as an array."""
        self.check_stored()
        labels: list[int] = self.table.label.tolist()
        return labels

    def class_name(self, label: int) -> str:
        """Return the name of a label, "" for a label without one."""
        return self.classes[label] if 0 <= label < len(self.classes) else ""

    def read(self, record: int) -> bytes:
        """Return the encoded bytes of one record. Raise SourceError if its file is missing or shorter than the index says."""
        self.check_stored()
        return self._read(record, int(self.table.offset[record]), int(self.table.size[record]))

    def check_stored(self) -> None:
        """Raise SourceError for a stream, whose records cannot be read in any order."""
        if self.stream is not None:
            raise SourceError(
                f"{self.root} is a stream: its records can only be read in order, by a Loader",
                hint="pack and inspect take the channel's path: they copy it first",
            )

    def read_json(self, record: int) -> bytes:
        """Return the JSON of a record, b"" if it has none. Raises what `read` raises."""
        offset, size = self.table.json_offset, self.table.json_size
        if offset is None or size is None or not size[record]:
            return b""
        return self._read(record, int(offset[record]), int(size[record]))

    def parsed_json(self, record: int) -> Any:
        """Return the parsed JSON of a record, or None. Raise FormatError for damaged JSON, else what `read` raises."""
        raw = self.read_json(record)
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:
            raise FormatError(
                f"record {self.table.keys[record]!r}: its JSON cannot be read: {error}",
                hint="repair it, or drop with_json",
            ) from error

    def read_extras(self, record: int) -> list[tuple[str, bytes]]:
        """Return name (`seg.png` of KEY.seg.png) and bytes of each sidecar file of a record. Raises what `read` raises."""
        sidecars = self.table.sidecars
        members = sidecars.members(record) if sidecars is not None else []
        return [(name, self._read(record, offset, size)) for name, offset, size in members]

    def _read(self, record: int, offset: int, size: int) -> bytes:
        table = self.table
        path = table.files[table.file[record]]
        if self.fetcher is not None and (data := self.fetcher.read(record, offset, size)) is not None:
            return data
        try:
            with open(path, "rb", opener=regular_opener) as file:
                wanted = size if size >= 0 else os.fstat(file.fileno()).st_size - offset
                if wanted > (limit := record_limit()):
                    raise OSError(errno.EFBIG, f"it {too_large(wanted, limit)}")
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise SourceError(f"record {table.keys[record]!r}: cannot read {path}: {error.strerror}") from error
        if size >= 0 and len(data) != size:
            raise SourceError(
                f"record {table.keys[record]!r}: {path} ends at byte {offset + len(data)}, {offset + size} expected",
                hint=f"check the dataset:  headrace verify {shlex.quote(str(self.root))}",
            )
        return data


def fingerprint(keys: Sequence[str], sizes: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> str:
    """Return the SHA-256 of keys, sizes and labels, 32 hex digits; it does not depend on paths."""
    digest = hashlib.sha256()
    if isinstance(keys, Keys) and sys.getfilesystemencoding() == "utf-8":  # then `os.fsencode` gives the bytes that it holds
        for blob, start in keys.chunks():
            digest.update(np.insert(blob, start[1:], 0).data)
    else:
        for key in keys:
            digest.update(os.fsencode(key))
            digest.update(b"\0")
    digest.update(np.ascontiguousarray(sizes, dtype="<i8").data)
    digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()[:32]


def existing(path: str | os.PathLike[str]) -> Path:
    """Return `path` as an absolute Path. Raise SourceError if it does not exist."""
    found = Path(path).expanduser().absolute()
    if not found.exists():
        if found.is_symlink():
            raise SourceError(
                f"{found} is a link to {found.readlink()}, which does not exist", hint="restore the file, or remove the link"
            )
        raise SourceError(
            f"no such file or folder: {found}",
            hint=near_path_hint(found, "check the path (a URL begins with s3:// or the like)"),
        )
    return found
