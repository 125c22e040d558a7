"""The files of a tree, for a copy of it and its check. Links are followed inside the tree and into folders that the user names.

A tree of a stranger may hold links to anything that the user may read, such as /proc/self/environ: those are listed instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SourceTree", "TreeFile"]


@dataclass(slots=True)
class TreeFile:
    """A regular file of the tree, or a link that leads out of it. `path`: below the root."""

    path: str
    leads_out: bool = False


class SourceTree:
    """The tree at `root`; `follow`: folders outside, into which its links are followed."""

    def __init__(self, root: Path, follow: Sequence[Path] = ()) -> None:
        self.root = root
        self.folder_links: list[Path] = []
        """The tree's links to its own folders, known once `files` has ended."""
        self._whole = root.resolve()
        self._allowed = (self._whole, *(folder.resolve() for folder in follow))

    def files(self) -> Iterator[TreeFile]:
        """Yield regular files and links that lead out of the tree, in sorted order; what is neither is left out.

        Links to folders of the tree are not entered.
        """
        self.folder_links.clear()
        folders = [""]
        while folders:
            below = folders.pop()
            inside, names = self._looked_at(below)
            for name in sorted(names):
                yield TreeFile(below + name, leads_out=names[name])
            folders += [f"{below}{name}/" for name in sorted(inside, reverse=True)]

    def _looked_at(self, below: str) -> tuple[list[str], dict[str, bool]]:
        """Return the folders to enter and the files of a folder, each with whether it is a link that leads out.

        Only links are looked at one by one: of all others the folder itself says what they are.
        """
        inside: list[str] = []
        names: dict[str, bool] = {}
        try:
            with os.scandir(self.root / below) as found:
                entries = list(found)
        except OSError:  # a folder that may not be read is left out
            entries = []
        for entry in entries:
            if entry.is_symlink():
                self._add_link(Path(entry.path), inside, names)
            elif entry.is_dir():
                inside.append(entry.name)
            elif entry.is_file():
                names[entry.name] = False
        return inside, names

    def _add_link(self, path: Path, inside: list[str], names: dict[str, bool]) -> None:
        if self.leads_out(path):
            names[path.name] = True
        elif not path.is_dir():
            if path.is_file():
                names[path.name] = False
        elif not self._is_inner_link(path):
            inside.append(path.name)
        elif path.resolve().is_relative_to(self._whole):
            self.folder_links.append(path)

    def leads_out(self, path: Path) -> bool:
        """Return whether `path` is a link whose target exists and is neither in the tree nor in a folder to follow."""
        if not path.is_symlink() or not path.exists():
            return False
        target = path.resolve()
        return not any(target.is_relative_to(folder) for folder in self._allowed)

    def _is_inner_link(self, path: Path) -> bool:
        """Return whether a link is one to a folder of the tree, or to one above itself, which would lead in a circle."""
        target = path.resolve()
        above = (self._whole, path.parent.resolve())
        return target.is_relative_to(self._whole) or any(folder.is_relative_to(target) for folder in above)
