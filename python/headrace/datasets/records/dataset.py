"""A dataset: a table of records (location of the bytes, label), class names and a fingerprint.

A record is one image with key and label.
"""

from __future__ import annotations

import hashlib
import operator
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.division import chosen_rows, class_labels, relabeled, split_rows
from headrace.datasets.records.keys import Keys
from headrace.datasets.records.notebook import dataset_facts, dataset_strip, names_text, notebook_html
from headrace.datasets.records.part_fetcher import joined_fetcher, selected_fetcher
from headrace.datasets.records.table import Kind, RecordFetcher, RecordTable, Stream
from headrace.errors import DecodeError, FormatError, RecordIndexError, SourceError, UsageError
from headrace.images.with_pillow import rgb_picture
from headrace.system.files.near_paths import near_path_hint
from headrace.system.text.arguments import suggest_arguments, unknown_name
from headrace.system.text.json import parse_json
from headrace.system.text.other_libraries import OF_DATASET, OF_SPLIT
from headrace.system.text.redaction import without_url_secrets

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Dataset", "existing", "fingerprint", "joined", "of_classes"]


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

    `subset`, `split`, slices and `+` return a part or a union: a Dataset with a table, targets and a fingerprint of its own.
    No image is read or copied for it.
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
    is_part: bool = False  # made of other datasets: `root` has more records, or it is several

    def __len__(self) -> int:
        return len(self.table) if self.stream is None else self.stream.records()

    def __repr__(self) -> str:
        if self.stream is not None:
            return f"Dataset({without_url_secrets(self.root)!r}, a stream)"
        names = f" ({names_text(self.classes, 3)})" if self.classes else ""
        root = without_url_secrets(self.root)
        part = "part of " if self.is_part else ""
        ignored = f", ignored folders: {names_text(self.ignored_folders, 3)}" if self.ignored_folders else ""
        facts = f"records={len(self)}, classes={len(self.classes)}{names}{ignored}"
        return f"Dataset({part}{root!r}, kind={self.kind!r}, {facts})"

    def _repr_html_(self) -> str:
        """Return facts and a strip of pictures, which notebooks show."""
        return notebook_html(f"Dataset {without_url_secrets(self.root)}", dataset_facts(self), dataset_strip(self))

    @overload
    def __getitem__(self, record: SupportsIndex) -> tuple[Image.Image, int]: ...
    @overload
    def __getitem__(self, record: slice | Iterable[Any]) -> Dataset: ...
    def __getitem__(self, record: SupportsIndex | slice | Iterable[Any]) -> tuple[Image.Image, int] | Dataset:
        """Return the image of one record, a Pillow image in RGB, and its label, -1 if it has none; or a part, as `subset` does.

        record: its row in the table; negative rows count from the end. Or a slice, several rows, or a mask: then a Dataset.

        Raises RecordIndexError (also an IndexError) outside the dataset, SourceError for a stream or a missing file,
        DecodeError for a damaged image, MissingDependencyError without Pillow.
        Example: `image, label = dataset[0]; first = dataset[:100]`.
        """
        self.check_stored()
        try:
            row = operator.index(record)  # type: ignore[arg-type]
        except TypeError:
            if isinstance(record, slice) or (isinstance(record, Iterable) and not isinstance(record, str | bytes | tuple)):
                return self.subset(record)
            raise UsageError(
                f"a dataset takes the number of one record, not {record!r}", hint="or a slice, a list of numbers, a mask"
            ) from None
        if not -len(self) <= row < len(self):
            raise RecordIndexError(f"{self.root} has {len(self)} records: there is no record {row}")
        row %= len(self)
        try:
            return rgb_picture(self.read(row)), int(self.table.label[row])
        except DecodeError as error:
            key = self.table.keys[row]
            raise DecodeError(f"record {key!r} of {self.root}: {error}", key=key, status=error.status) from error

    def subset(
        self, which: slice | Iterable[Any] | None = None, *, classes: Iterable[str | SupportsIndex] | None = None
    ) -> Dataset:
        """Return a part: the records that `which` chooses, or those of some classes.

        which: indices (a list, range, array or tensor; negative ones count from the end), in the order of the part, where one
            may come several times; or a mask, one bool a record; or a slice. Default: None, all records.
        classes: names or labels of classes. Labels and `classes` stay those of the whole dataset:
            `headrace.open(path, classes=[…])` numbers them anew. Default: None, all classes.

        Raises RecordIndexError for an index outside the dataset, UsageError for an unknown class, a mask of another length, or
        if neither is given; SourceError for a stream.
        Example: `cats = data.subset(classes=["cat"]); some = data.subset([3, 5, 8])`.
        """
        self.check_stored()
        if which is None and classes is None:
            raise UsageError(
                "subset takes indices, a mask, or classes=", hint='data.subset([0, 5]) or data.subset(classes=["cat"])'
            )
        rows = np.arange(len(self)) if which is None else chosen_rows(which, len(self), self.root)
        if classes is not None:
            rows = rows[np.isin(self.table.label[rows], class_labels(self.classes, classes, self.root))]
        return self._part(rows)

    @suggest_arguments(OF_SPLIT)
    def split(self, ratio: float, seed: int = 0, *, stratified: bool = False) -> tuple[Dataset, Dataset]:
        """Return two parts without a common record: a random share of the records, and the rest, both in the dataset's order.

        The choice depends on the records' keys and the seed alone. `headrace pack --train-ratio RATIO --seed SEED` makes the
        same choice, so a folder and its pack are split alike.

        ratio: share of the first part, between 0 and 1.
        seed: chooses other records; 0 to 2**63 - 1. Default: 0.
        stratified: take this share of each class, but for rounding. Default: False.

        Raises UsageError for another ratio or seed, SourceError for a stream.
        Example: `train, val = data.split(0.9, seed=0, stratified=True)`.
        """
        self.check_stored()
        first, rest = split_rows(self, ratio, seed, stratified=stratified)
        return self._part(first), self._part(rest)

    def __add__(self, other: Dataset) -> Dataset:
        """Return the union: the records of both, one after the other. `headrace.open([a, b])` opens one from paths.

        Equal `classes` stay. Otherwise classes are the same where their names are: labels of `self` stay, those of `other` are
        renumbered. Raises UsageError if one has class names and the other only numbers, SourceError for a stream.
        Example: `both = headrace.open("2023") + headrace.open("2024")`.
        """
        return joined([self, other]) if isinstance(other, Dataset) else NotImplemented

    def _part(self, rows: npt.NDArray[np.int64]) -> Dataset:
        """Return the records at `rows` as a dataset of its own."""
        table = self.table.selected(rows)
        return replace(
            self,
            table=table,
            fetcher=selected_fetcher(self.fetcher, rows, table),
            fingerprint=_fingerprint_of(table),
            strays=(),
            ignored_folders=(),
            other_files=0,
            is_part=True,
        )

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
            return parse_json(raw) if raw else None
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
        if self.fetcher is not None and (data := self.fetcher.read(record, offset, size)) is not None:
            return data
        check = None if self.is_part else f"check the dataset:  headrace verify {shlex.quote(str(self.root))}"
        return self.table.read(record, offset, size, hint=check)


def joined(datasets: Sequence[Dataset]) -> Dataset:
    """Return the union of datasets as `Dataset.__add__` does, with the records of each one after the other."""
    for one in datasets:
        one.check_stored()
    if len(datasets) == 1:
        return datasets[0]
    classes, tables = datasets[0].classes, [datasets[0].table]
    for one in datasets[1:]:
        classes, labels = _common_labels(classes, one, datasets[0])
        tables.append(replace(one.table, label=labels))
    table = RecordTable.joined(tables)
    kinds = {one.kind for one in datasets}
    return Dataset(
        root=" + ".join(dict.fromkeys(one.root for one in datasets)),
        kind=kinds.pop() if len(kinds) == 1 else "mixed",
        table=table,
        classes=classes,
        fingerprint=_fingerprint_of(table),
        fetcher=joined_fetcher([(one.fetcher, len(one)) for one in datasets], table),
        is_part=True,
    )


def _common_labels(classes: tuple[str, ...], one: Dataset, first: Dataset) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the class names of `classes` and `one` together, and the labels of `one` among them."""
    labels = one.table.label
    shorter, longer = sorted((classes, one.classes), key=len)
    if longer[: len(shorter)] == shorter and (shorter or not longer or not (labels >= 0).any()):
        return longer, labels
    if not classes or not one.classes:
        raise UsageError(
            f"{first.root} and {one.root} cannot be joined: only one of them has names for its classes",
            hint="give both class names, or both numbers",
        )
    for names in (classes, one.classes):
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise UsageError(
                f"{first.root} and {one.root} cannot be joined: two of their classes have the name {twice!r}",
                hint="give each class a name of its own, or both datasets the same classes",
            )
    names = tuple(dict.fromkeys((*classes, *one.classes)))
    place = {name: number for number, name in enumerate(names)}
    new = np.array([*(place[name] for name in one.classes), -1], dtype=np.int64)  # the last entry is for label -1
    return names, new[labels]


def of_classes(dataset: Dataset, classes: Iterable[str]) -> Dataset:
    """Return the records of these classes only, numbered in this order, as `headrace pack --classes` does.

    Raises UsageError for an unknown class, SourceError for a stream or if no record is left.
    """
    dataset.check_stored()
    names, labels = relabeled(dataset.classes, dataset.table.label, classes, dataset.root)
    part = dataset._part(np.flatnonzero(labels >= 0))
    if not len(part):
        raise SourceError(f"none of {len(dataset)} records of {dataset.root} has a label that is wanted")
    table = replace(part.table, label=labels[labels >= 0])
    fetcher = selected_fetcher(part.fetcher, np.arange(len(table)), table)
    return replace(part, table=table, classes=names, fingerprint=_fingerprint_of(table), fetcher=fetcher)


def _fingerprint_of(table: RecordTable) -> str:
    """Return the fingerprint of a table's records, with the files' sizes and the checksums that are known."""
    mark = fingerprint(table.keys, table.size if table.file_size is None else table.file_size, table.label)
    if table.crc32c is None:
        return mark
    return hashlib.sha256(mark.encode() + np.ascontiguousarray(table.crc32c, dtype="<u4").tobytes()).hexdigest()[:32]


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
