"""The listing of a pack: the source's records with their keys, and the rejected ones with reasons."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace._native import file_facts
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.division import key_numbers, relabeled, split_salt
from headrace.datasets.records.file_paths import FilesBelow
from headrace.datasets.records.keys import Keys, repeated_values
from headrace.datasets.records.labels import labels_looked_for
from headrace.datasets.records.packed_keys import packed_keys, wrong_key
from headrace.datasets.sources.folders.folder import IMAGE_EXTENSIONS, THREADS, OnListed, change_of_file
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import FormatError, SourceError
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.ordered import OrderedColumn, OrderedKeys, Positions

__all__ = ["Listing", "Rejection", "list_records", "split"]

_CHUNK = 1 << 12  # records that are looked at together

Reason = Literal["unlabeled", "duplicate", "unreadable", "undecodable", "no image"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A source record that is not packed. `file`: its name in the source; `detail`: the reason as a sentence."""

    file: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the records to pack, in the source's order, one entry a record."""

    rows: npt.NDArray[np.int64]  # of the dataset's table
    keys: Keys  # unique, escaped
    sizes: npt.NDArray[np.int64]  # bytes in the source
    changed: npt.NDArray[np.int64]  # a number that changes with each record's file; 0: unknown
    labels: npt.NDArray[np.int64]  # indices into the listing's `classes`


@dataclass(frozen=True, slots=True)
class Listing:
    """The records to pack, in packing order. Its columns are those of `columns` in this order."""

    dataset: Dataset
    columns: Columns
    classes: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    renamed: int  # number of duplicate keys that got a suffix
    order: Positions | None = None  # in `columns`; None: all, as they stand

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> OrderedColumn:
        """The row of each record in `dataset.table`, in packing order."""
        return OrderedColumn(self.columns.rows, self.order)

    @property
    def keys(self) -> OrderedKeys:
        """The key of each record, in packing order."""
        return OrderedKeys(self.columns.keys, self.order)

    @property
    def sizes(self) -> OrderedColumn:
        """Bytes of each record's image in the source."""
        return OrderedColumn(self.columns.sizes, self.order)

    @property
    def changed(self) -> OrderedColumn:
        """A number that changes with each record's file; 0: unknown."""
        return OrderedColumn(self.columns.changed, self.order)

    @property
    def labels(self) -> OrderedColumn:
        """The label of each record, an index into `classes`."""
        return OrderedColumn(self.columns.labels, self.order)

    def sidecar_counts(self) -> Mapping[str, int]:
        """Return the number of sidecar files by name, in the source."""
        sidecars = self.dataset.table.sidecars
        chosen = sidecars.selected(self.rows[:]) if sidecars is not None else None
        return {} if chosen is None else chosen.counts()

    def name(self, at: int) -> str:
        """Return the record's name in the source, for messages."""
        return self.dataset.table.keys[int(self.rows[at])]

    def change_digest(self, begin: int, end: int) -> str:
        """Return a digest of sizes and times of change of the records' files from `begin` to `end`, 32 hex digits."""
        facts = np.stack([self.changed[begin:end], self.sizes[begin:end]])
        return blake2b(facts.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def selected(self, chosen: Positions, *, rejected: tuple[Rejection, ...]) -> Listing:
        """Return the records at the positions `chosen`, in that order. It shares the columns."""
        order = chosen if self.order is None else self.order[chosen]
        return Listing(self.dataset, self.columns, self.classes, rejected, self.renamed, order)


def list_records(dataset: Dataset, options: PackOptions, on_listed: OnListed | None = None) -> Listing:
    """List the records of `dataset` to pack, in the order of `options.shuffle`.

    on_listed: called with the number of a list's files that were just looked at. Default: None.

    Raises SourceError for unlabeled, unreadable or duplicate records if the options say "stop", and if no record is left;
    UsageError for an unknown class.
    """
    table = dataset.table
    classes, labels = _relabeled(dataset, options.classes)
    rejected = [Rejection(name, "unlabeled", "not in a class folder") for name in _outside_classes(dataset)]
    rejected += [Rejection(table.keys[int(i)], "unlabeled", "no label") for i in np.flatnonzero(table.label < 0)]
    if rejected and options.unlabeled == "stop":
        raise SourceError(
            f"{len(rejected)} images without a label in {dataset.root}, first: {rejected[0].file}",
            hint="move them into class folders, or leave them out:  --unlabeled skip",
        )
    rows = np.flatnonzero(labels >= 0)
    why = "ImageFolder takes no files of this ending" if dataset.kind == "folder" else "belongs to no image"
    strays = [_stray(name, why) for name in dataset.strays]
    ignored = "a folder that is hidden, or of a Mac's archive"
    strays += [Rejection(f"{name}/", "no image", ignored) for name in dataset.ignored_folders]
    if options.undecodable == "stop" and (stopping := next((one for one in strays if one.reason == "unreadable"), None)):
        raise SourceError(f"{stopping.file} cannot be packed: it is {stopping.detail}", hint="take it out of the source")
    keys = _keys(dataset, rows)
    positions, keys, duplicates, renamed = _without_duplicates(dataset, rows, keys, options)
    rows = rows if positions is None else rows[positions]
    if not len(rows):
        which = "a label" if options.classes is None else "a label that is wanted"
        raise SourceError(
            f"nothing to pack in {dataset.root}: none of {len(table)} records has {which}",
            hint=labels_looked_for(dataset) or "`headrace inspect` shows its classes",
        )
    sizes, changed = _sizes_and_times(dataset, rows, on_listed)
    irregular = [Rejection(table.keys[int(row)], "unreadable", "not a file") for row in rows[sizes < 0]]
    if irregular and options.undecodable == "stop":
        raise SourceError(
            f"{irregular[0].file} is a pipe, a device or a folder, not an image", hint="take it out of the source"
        )
    out = (*rejected, *strays, *duplicates, *irregular)
    listing = Listing(dataset, Columns(rows, keys, sizes, changed, _of(labels, rows)), classes, out, renamed)
    if irregular:
        listing = listing.selected(np.flatnonzero(sizes >= 0), rejected=listing.rejected)
    if not len(listing):
        raise SourceError(f"nothing to pack in {dataset.root}: no record is a file", hint="check the paths of the list")
    _refuse_resizing_with_sidecar_images(listing, options)
    if options.shuffle is None:
        return listing
    return listing.selected(_random_order(listing, f"order {options.shuffle}".encode()[:16]), rejected=listing.rejected)


def _stray(name: str, why: str) -> Rejection:
    """Return the rejection of a stray; its name may end in the reason why it cannot be read, in brackets (`open_folder`)."""
    found = re.fullmatch(r"(?s)(.+) \((a [^()]*(?:not a file|does not exist))\)", name)
    return Rejection(name, "no image", why) if found is None else Rejection(found[1], "unreadable", found[2])


def split(listing: Listing, options: PackOptions) -> dict[str, Listing]:
    """Return the listing of each output folder: `{"": listing}`, or train, val and test by the options' ratios.

    The choice depends on the keys and `options.seed` alone, as that of `Dataset.split`. Each split keeps the order. Rejections
    are listed with the first split.
    """
    if not options.splits:
        return {"": listing}
    drawn = _random_order(listing, split_salt(options.seed))
    test = round(len(listing) * options.test_ratio)
    train = min(round(len(listing) * options.train_ratio), len(listing) - test)
    parts = {"train": drawn[:train], "val": drawn[train : len(drawn) - test], "test": drawn[len(drawn) - test :]}
    filled = {name: part for name, part in parts.items() if len(part)}
    for part in filled.values():
        part.sort()
    first = next(iter(filled))
    return {name: listing.selected(part, rejected=listing.rejected if name == first else ()) for name, part in filled.items()}


def _of(column: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values of these rows, which ascend; the column itself if these are all."""
    return column if len(rows) == len(column) else column[rows]


def _random_order(listing: Listing, salt: bytes) -> Positions:
    """Return a permutation that depends on keys and salt only."""
    numbers = key_numbers(listing.columns.keys, salt)
    if listing.order is not None:
        numbers = numbers[listing.order]
    order: Positions = np.argsort(numbers, kind="stable")
    del numbers  # a column more counts here
    return order.astype(np.int32) if len(order) < 1 << 31 else order


def _relabeled(dataset: Dataset, wanted: tuple[str, ...] | None) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return classes and labels after the class filter; label -1 marks records that are left out."""
    if wanted is None:
        return dataset.classes, dataset.table.label
    return relabeled(dataset.classes, dataset.table.label, wanted, dataset.root)


def _refuse_resizing_with_sidecar_images(listing: Listing, options: PackOptions) -> None:
    """Raise SourceError if images change their size and sidecar images do not: masks would not fit."""
    if options.extras == "drop" or not options.resizes:
        return
    images = [name for name in listing.sidecar_counts() if name.lower().endswith(IMAGE_EXTENSIONS)]
    if images:
        raise SourceError(
            f"{listing.dataset.root} holds {images[0]} beside its images, which would not fit images of another size",
            hint="leave it out:  --extras drop; or leave out what changes the size",
        )


def _outside_classes(dataset: Dataset) -> Iterator[str]:
    """Yield images in an image folder that are in no class folder; torchvision ignores them silently."""
    if dataset.kind == "folder" and dataset.classes and not dataset.is_part and Path(dataset.root).is_dir():
        with os.scandir(dataset.root) as entries:
            yield from sorted(
                entry.name for entry in entries if entry.is_file() and entry.name.lower().endswith(IMAGE_EXTENSIONS)
            )


def _keys(dataset: Dataset, rows: npt.NDArray[np.int64]) -> Keys:
    """Return the keys of these rows in the pack. Raise FormatError for a key in an index that no packing makes."""
    names = dataset.table.keys if isinstance(dataset.table.keys, Keys) else Keys.of(dataset.table.keys)
    if len(rows) < len(names):
        names = names.selected(rows)
    if dataset.kind == "shards" and (row := wrong_key(names)) is not None:
        raise FormatError(
            f"the index of {dataset.root} holds the key {names[row]!r}, which is no name of a member",
            hint="headrace did not pack it: do not unpack its shards",
        )
    return packed_keys(dataset.kind, names)


def _without_duplicates(
    dataset: Dataset, rows: npt.NDArray[np.int64], keys: Keys, options: PackOptions
) -> tuple[npt.NDArray[np.int64] | None, Keys, list[Rejection], int]:
    """Return the positions to keep (None: all), their keys, the rejected records, and the number of renamed keys.

    Only keys whose hash occurs twice are looked at as texts.
    """
    seen: set[str] = set()
    again: dict[int, str] = {}  # position -> key, of the second and later records of a key
    for at in repeated_values(keys.hashes()).tolist():
        key = keys[at]
        if key in seen:
            again[at] = key
        seen.add(key)
    if not again:
        return None, keys, [], 0
    if options.duplicates == "stop":
        raise SourceError(
            f"two records have the key {next(iter(again.values()))!r} in {dataset.root}",
            hint="choose:  --duplicates rename (numbers them) or --duplicates skip (keeps the first)",
        )
    if options.duplicates == "skip":
        names = dataset.table.keys
        rejected = [Rejection(names[int(rows[at])], "duplicate", f"key {key!r} came before") for at, key in again.items()]
        positions = np.delete(np.arange(len(keys)), list(again))
        return positions, keys.selected(positions), rejected, 0
    renamed = _numbered(again, keys)
    return None, Keys.of(renamed.get(at, key) for at, key in enumerate(keys)), [], len(renamed)


def _numbered(again: Mapping[int, str], keys: Keys) -> dict[int, str]:
    """Return a new key for each of these records: the first of KEY~2, KEY~3, … that no other record has."""
    hashes = keys.hashes()
    order = np.argsort(hashes)
    ascending, numbers, given = hashes[order], Counter[str](), dict[int, str]()
    for at, key in again.items():
        while True:
            numbers[key] += 1
            new = f"{key}~{numbers[key] + 1}"
            wanted = Keys.of([new]).hashes()
            begin, end = (np.searchsorted(ascending, wanted, side)[0] for side in ("left", "right"))
            if all(keys[row] != new for row in order[begin:end].tolist()):
                break
        given[at] = new
    return given


def _sizes_and_times(
    dataset: Dataset, rows: npt.NDArray[np.int64], on_listed: OnListed | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the size of each record in bytes, and a number that changes when its file does.

    A missing file counts as 0 bytes here and is rejected when it is read; -1 means not a regular file. Cache files of a remote
    dataset change with every fetch, so the name of their folder, which identifies the objects, stands for it.
    """
    table, is_copy = dataset.table, is_url(dataset.root)
    if table.file_size is not None and table.file_change is not None and not is_copy:
        return _of(table.file_size, rows), _of(table.file_change, rows)
    if isinstance(table.files, FilesBelow):
        return _facts_of_files(table.files, rows, on_listed, is_copy=is_copy)
    file = table.file if len(rows) == len(table) else table.file[rows]
    sizes, is_file = _of(table.size, rows), np.zeros(len(table.files), dtype=bool)
    is_file[file[sizes < 0]] = True  # beside shards, in joined datasets
    times, bytes_of = np.zeros(len(table.files), dtype=np.int64), np.zeros(len(table.files), dtype=np.int64)
    for number in set(file.tolist()):  # np.unique imports numpy.ma: 9 ms of a short command
        path = table.files[number]
        if dataset.fetcher is not None and not is_file[number]:
            times[number] = int.from_bytes(blake2b(os.fsencode(Path(path).parent.name), digest_size=7).digest())
            continue
        with contextlib.suppress(OSError):  # reading the file reports the error
            facts = os.stat(path)  # noqa: PTH116 (as above)
            times[number], bytes_of[number] = change_of_file(facts, copied=is_copy), facts.st_size
    return (np.where(sizes < 0, bytes_of[file], sizes) if is_file.any() else sizes), times[file]


def _facts_of_files(
    files: FilesBelow, rows: npt.NDArray[np.int64], on_listed: OnListed | None, *, is_copy: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return sizes and times of change of image files, of which row i is file i. Several are looked at at a time."""
    sizes, times = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)

    def look(begin: int) -> int:
        wanted = rows[begin : begin + _CHUNK]
        first, end = int(wanted[0]), int(wanted[-1]) + 1
        is_whole = end - first == len(wanted)  # they ascend
        some = _as_on_disk(files.names.part(first, end) if is_whole else files.names.selected(wanted))
        for column, facts in zip((sizes, times), file_facts(files.folder, some.blob, some.start, is_copy), strict=True):
            column[begin : begin + _CHUNK] = np.frombuffer(facts, dtype=np.int64)
        return len(some)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-list") as pool:
        for count in pool.map(look, range(0, len(rows), _CHUNK)):
            if on_listed is not None:
                on_listed(count)
    return sizes, times


def _as_on_disk(names: Keys) -> Keys:
    """Return the bytes that these names have in the file system: no others, but for a locale of another encoding."""
    if sys.getfilesystemencoding() == "utf-8":
        return names
    encoded = [os.fsencode(name) for name in names]
    return Keys.of_lengths(b"".join(encoded), np.array([len(name) for name in encoded], dtype=np.int64).tobytes())
