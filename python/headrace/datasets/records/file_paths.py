"""The paths of a table's image files, stored as names below a folder: a million `str` take five times as much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.keys import Keys

__all__ = ["FilesBelow", "joined_files", "selected_files"]


class FilesBelow(Sequence[str]):
    """The paths of the image files in a folder, stored as names below it and joined when a path is read.

    A name that begins with a slash is a whole path.
    """

    __slots__ = ("folder", "names")

    def __init__(self, folder: str, names: Keys) -> None:
        self.folder, self.names = folder, names  # the folder ends in a slash

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(map(self._path, self.names[index]))
        return self._path(self.names[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._path, self.names)

    def _path(self, name: str) -> str:
        return name if name.startswith("/") else self.folder + name


def selected_files(
    files: Sequence[str], file: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> tuple[Sequence[str], npt.NDArray[np.int32]]:
    """Return the files of these rows, and the index of each row's file among them. `file`: the index of every row's file.

    Of image files the rows keep one entry each, in their order; of shards only those that a row lies in remain.
    """
    if isinstance(files, FilesBelow):
        return FilesBelow(files.folder, files.names.selected(file[rows])), np.arange(len(rows), dtype=np.int32)
    used, numbers = np.unique(file[rows], return_inverse=True)
    return tuple(files[number] for number in used.tolist()), numbers.astype(np.int32)


def joined_files(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    """Concatenate the files of several tables."""
    below = [files for files in parts if isinstance(files, FilesBelow)]
    if len(below) < len(parts):
        return tuple(path for files in parts for path in files)
    if len({files.folder for files in below}) == 1:
        return FilesBelow(below[0].folder, Keys.joined([files.names for files in below]))
    return FilesBelow("/", Keys.of(path for files in below for path in files))
