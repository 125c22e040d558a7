"""The record of `pack --layout folder`: the files of a copy, as lines of JSON on disk and as columns in memory."""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.keys import Keys
from headrace.errors import FormatError
from headrace.system.files.atomic_write import replacing
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.size_limits import lines_of
from headrace.system.text.utf8 import name_from_utf8, utf8_name

__all__ = ["RECORD", "CopiedFile", "CopiedFiles", "json_line", "opened_record", "write_record"]

RECORD = "headrace-folder.jsonl"
"""File name of the record of a copy: a header line, then a line for each file. It is a file at the root, which ImageFolder
ignores.
"""

FORMAT = "headrace-folder"
VERSION = 1

_KINDS = ("", "marked", "reduced", "copied", "missing")  # the first stands for a file that is not copied yet
_CRC_VALUES = 1 << 32
_LARGEST = (1 << 63) - 1  # of a column
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the copy.

    `source_size`, `source_changed_ns`: of the original, to find changed ones. `error`: why it is unchanged.
    """

    path: str  # below the root, UTF-8 (bytes that are none as %XX)
    kind: str  # "marked", "reduced", "copied", or "missing" if the original could not be read
    source_size: int
    source_changed_ns: int
    size: int
    crc32c: int
    error: str | None = None

    def as_fields(self) -> dict[str, str | int | None]:
        """Return the fields by name: the JSON object of this file's line in the copy's list (`RECORD`)."""
        return {name: getattr(self, name) for name in _TYPES}


_TYPES = {
    **dict.fromkeys(("path", "kind"), (str,)),
    **dict.fromkeys(("source_size", "source_changed_ns", "size", "crc32c"), (int,)),
    "error": (str, type(None)),
}
assert [*_TYPES] == [field.name for field in fields(CopiedFile)]


class CopiedFiles:
    """The files of a copy in the order of the tree, as columns: an object for each would take 600 bytes.

    paths: of the files below the root. A file is added at its row when it has been copied.
    """

    def __init__(self, paths: Keys) -> None:
        self.paths = paths
        self.errors: dict[int, str] = {}
        self.size = np.zeros(len(paths), dtype=np.int64)
        self.source_size = np.zeros(len(paths), dtype=np.int64)
        self._kind = np.zeros(len(paths), dtype=np.uint8)
        self._changed_ns = np.zeros(len(paths), dtype=np.int64)
        self._crc32c = np.zeros(len(paths), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.paths)

    def __setitem__(self, row: int, entry: CopiedFile) -> None:
        self._kind[row] = _KINDS.index(entry.kind)
        self.size[row], self.source_size[row] = entry.size, entry.source_size
        self._changed_ns[row], self._crc32c[row] = entry.source_changed_ns, entry.crc32c
        if entry.error is not None:
            self.errors[row] = entry.error

    def __getitem__(self, row: int) -> CopiedFile:
        return CopiedFile(
            path=utf8_name(self.paths[row]),
            kind=self.kind(row),
            source_size=int(self.source_size[row]),
            source_changed_ns=int(self._changed_ns[row]),
            size=int(self.size[row]),
            crc32c=int(self._crc32c[row]),
            error=self.errors.get(row),
        )

    def kind(self, row: int) -> str:
        """Return the kind of the file at a row; "" if it is not copied yet."""
        return _KINDS[self._kind[row]]

    def count(self, *kinds: str) -> int:
        """Return the number of files of these kinds; by default of all that are copied."""
        return len(self.rows(*kinds))

    def rows(self, *kinds: str) -> npt.NDArray[np.int64]:
        """Return the rows of the files of these kinds; by default of all that are copied."""
        return np.flatnonzero(np.isin(self._kind, [_KINDS.index(kind) for kind in kinds or _KINDS[1:]]))

    def copied(self) -> Iterator[CopiedFile]:
        """Yield the files that are in the copy by now, in the order of the rows."""
        return (self[int(row)] for row in self.rows())

    @staticmethod
    def of(entries: Iterable[CopiedFile]) -> CopiedFiles:
        """Return the files that the record of a copy lists, in its order."""
        kinds, crc32c, errors = array("B"), array("I"), dict[int, str]()
        size, source_size, changed_ns = array("q"), array("q"), array("q")

        def paths() -> Iterator[str]:
            for row, entry in enumerate(entries):
                kinds.append(_KINDS.index(entry.kind))
                size.append(entry.size)
                source_size.append(entry.source_size)
                changed_ns.append(entry.source_changed_ns)
                crc32c.append(entry.crc32c)
                if entry.error is not None:
                    errors[row] = entry.error
                yield name_from_utf8(entry.path)

        files = CopiedFiles(Keys.of(paths()))
        files._kind, files._crc32c = np.frombuffer(kinds, dtype=np.uint8), np.frombuffer(crc32c, dtype=np.uint32)
        files.size, files.source_size = np.frombuffer(size, dtype=np.int64), np.frombuffer(source_size, dtype=np.int64)
        files._changed_ns, files.errors = np.frombuffer(changed_ns, dtype=np.int64), errors
        return files

    def rows_of(self, paths: Sequence[str]) -> list[int | None]:
        """Return the row of each file by its path; None for one that is not among these."""
        places = np.searchsorted(self._hashes[0], Keys.of(paths).hashes())
        rows = self._hashes[1][np.minimum(places, len(self) - 1)].tolist()
        return [row if self.paths[row] == path else None for row, path in zip(rows, paths, strict=True)]

    @functools.cached_property
    def _hashes(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """The hashes of all paths in ascending order, and the row of each."""
        found = self.paths.hashes()
        order = np.argsort(found)
        return found[order], order


@contextmanager
def opened_record(target: Path) -> Iterator[tuple[dict[str, Any], Iterator[CopiedFile]]]:
    """Yield the header and the files of a copy's record. Raises FormatError if it is damaged, FileNotFoundError without one.

    A last line that a killed copy left unfinished is ignored.
    """
    opened = functools.partial(open, target / RECORD, encoding="utf-8", errors="replace", newline="\n", opener=regular_opener)
    try:
        with opened() as file:
            lines = lines_of(file)
            header = json.loads(next(lines, ""))
            if header["format"] != FORMAT or header["version"] != VERSION or not isinstance(header["options"], dict):
                raise ValueError(f"format {header['format']} {header['version']}")
            header["complete"] = header["complete"] is True
            yield header, (_checked_entry(CopiedFile(**json.loads(line))) for line in lines if line.endswith("\n"))
    except (ValueError, KeyError, TypeError, RecursionError) as reason:
        raise FormatError(
            f"{target / RECORD} is damaged: {reason}", hint="remove it, and give the same command again"
        ) from None


def write_record(target: Path, header: Mapping[str, Any], entries: Iterable[CopiedFile]) -> None:
    """Replace the record of a folder copy. Raises OSError if it cannot be written."""
    head = {"format": FORMAT, "version": VERSION, **header}
    with replacing(target / RECORD) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(map(json_line, chain([head], (entry.as_fields() for entry in entries))))


def json_line(value: Mapping[str, Any]) -> str:
    """Return one line of the record of a folder copy: `value` as JSON, with a newline."""
    return _encode(value) + "\n"


def _checked_entry(entry: CopiedFile) -> CopiedFile:
    """Return an entry whose values have their types and whose path stays in the copy. Raises ValueError for any other."""
    for name, types in _TYPES.items():
        value = getattr(entry, name)
        if type(value) not in types:
            raise ValueError(f"{name} is {value!r:.80}")
        if type(value) is int and not -_LARGEST <= value <= _LARGEST:
            raise ValueError(f"{name} is {value:.3e}" if abs(value) < 10**300 else f"{name} is too large")
    if entry.kind not in _KINDS[1:] or min(entry.size, entry.source_size, entry.crc32c) < 0 or entry.crc32c >= _CRC_VALUES:
        raise ValueError(f"the entry of {entry.path!r:.80} is wrong")
    if entry.path.startswith("/") or ".." in entry.path.split("/") or "\0" in entry.path:
        raise ValueError(f"the name {entry.path!r:.80} leads out of the copy")
    return entry
