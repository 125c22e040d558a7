"""Sidecar files: masks, captions, second images (`KEY.seg.png`, `KEY.txt`) of each record, as ragged columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SidecarFile", "SidecarFiles"]

_NEVER_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]")  # in names of members these bytes are escaped
SidecarFile = tuple[str, int, int]  # (name without KEY and a dot, bytes from the start of the archive, size in bytes)


@dataclass(frozen=True, slots=True)
class SidecarFiles:
    """The sidecar files of all records. Record `i` has the rows `start[i]` to `start[i + 1]`, in the archive of its image.

    Labels (`KEY.cls`) and JSON (`KEY.json`) are not sidecar files.
    """

    start: npt.NDArray[np.int64]  # [n + 1]
    offset: npt.NDArray[np.int64]  # [rows] bytes from the start of the archive
    size: npt.NDArray[np.int64]  # [rows] bytes
    name: npt.NDArray[np.int64]  # [rows] index into `names`
    names: tuple[str, ...]  # names without KEY and a dot, as "seg.png"; sorted, unique

    @staticmethod
    def of(records: Sequence[Sequence[SidecarFile]]) -> SidecarFiles | None:
        """Store the sidecar files of each record; return None if no record has any."""
        members = [member for record in records for member in record]
        if not members:
            return None
        names = tuple(sorted({name for name, _, _ in members}))
        number = {name: i for i, name in enumerate(names)}
        return SidecarFiles(
            start=np.cumsum([0, *map(len, records)], dtype=np.int64),
            offset=np.array([offset for _, offset, _ in members], dtype=np.int64),
            size=np.array([size for _, _, size in members], dtype=np.int64),
            name=np.array([number[name] for name, _, _ in members], dtype=np.int64),
            names=names,
        )

    @staticmethod
    def joined(parts: Sequence[tuple[SidecarFiles | None, int]]) -> SidecarFiles | None:
        """Concatenate the sidecar files of several datasets; each part is (sidecar files or None, number of records)."""
        some = [sidecars for sidecars, _ in parts if sidecars is not None]
        if not some:
            return None
        names = sorted({name for sidecars in some for name in sidecars.names})
        number = {name: i for i, name in enumerate(names)}
        counts = [np.zeros(count, dtype=np.int64) if sidecars is None else np.diff(sidecars.start) for sidecars, count in parts]
        return SidecarFiles(
            start=np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64),
            offset=np.concatenate([sidecars.offset for sidecars in some]),
            size=np.concatenate([sidecars.size for sidecars in some]),
            name=np.concatenate([np.array([number[one] for one in sidecars.names])[sidecars.name] for sidecars in some]),
            names=tuple(names),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def in_memory(self) -> SidecarFiles:
        """Return a copy that holds no file open."""
        return SidecarFiles(self.start.copy(), self.offset.copy(), self.size.copy(), self.name.copy(), self.names)

    def members(self, record: int) -> list[SidecarFile]:
        """Return the sidecar files of one record."""
        places = range(int(self.start[record]), int(self.start[record + 1]))
        return [(self.names[self.name[i]], int(self.offset[i]), int(self.size[i])) for i in places]

    def of_records(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of sidecar files of each of these records."""
        return self.start[rows + 1] - self.start[rows]

    def selected(self, rows: npt.NDArray[np.int64]) -> SidecarFiles | None:
        """Return the sidecar files of some records, in this order; None if these have none."""
        count = self.of_records(rows)
        start = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        if not start[-1]:
            return None
        places = np.arange(int(start[-1]), dtype=np.int64) + np.repeat(self.start[rows] - start[:-1], count)
        used, name = np.unique(self.name[places], return_inverse=True)
        return SidecarFiles(start, self.offset[places], self.size[places], name, tuple(self.names[i] for i in used.tolist()))

    def counts(self) -> Mapping[str, int]:
        """Return the number of sidecar files by name."""
        return dict(zip(self.names, np.bincount(self.name, minlength=len(self.names)).tolist(), strict=True))

    def problem(self) -> str | None:
        """Return in words the first inconsistency in columns read from a file; None if there is none."""
        members = len(self.offset)
        if len(self.size) != members or len(self.name) != members:
            return "the columns of the extra members differ in length"
        if self.start[0] != 0 or self.start[-1] != members or bool(np.any(self.start[1:] < self.start[:-1])):
            return "column 'extra_start' does not cut the extra members into one piece for each record"
        if np.any((self.name < 0) | (self.name >= len(self.names))):
            return "column 'extra_name' names none of 'extra_names'"
        if (wrong := next((name for name in self.names if _NEVER_IN_NAMES.search(name)), None)) is not None:
            return f"'extra_names' holds {wrong[:60]!r}, which is no ending of a member's name"
        return None
