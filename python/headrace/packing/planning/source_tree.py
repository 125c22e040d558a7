"""The files of a tree, for a copy of it and its check. Links are followed inside the tree and into folders that the user names.

A tree of a stranger may hold links to anything that the user may read, such as /proc/self/environ: those are listed instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SourceTree", "TreeFile"]


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A regular file of the tree, or a link that leads out of it. `path`: below the root."""

    path: str
    leads_out: bool = False


class SourceTree:
    """The tree at `root`; `follow`: folders outside, into which its links are followed."""

    def __init__(self, root: Path, follow: Sequence[Path] = ()) -> None:
        self.root = root
        self._whole = root.resolve()
        self._allowed = (self._whole, *(folder.resolve() for folder in follow))

    def files(self) -> Iterator[TreeFile]:
        """Yield regular files and links that lead out of the tree, in sorted order; what is neither is left out.

        Links to folders of the tree are not entered.
        """
        for folder, folders, names in os.walk(self.root, followlinks=True):
            out = [name for name in folders if self.leads_out(Path(folder, name))]
            folders[:] = sorted(name for name in folders if name not in out and not self._is_inner_link(Path(folder, name)))
            for name in sorted([*names, *out]):
                path = Path(folder, name)
                below = str(path.relative_to(self.root))
                if self.leads_out(path):
                    yield TreeFile(below, leads_out=True)
                elif path.is_file():
                    yield TreeFile(below)

    def folder_links(self) -> Iterator[Path]:
        """Yield the tree's links to its own folders."""
        for folder, folders, _ in os.walk(self.root, followlinks=True):
            paths = [Path(folder, name) for name in folders]
            links = [path for path in paths if not self.leads_out(path) and self._is_inner_link(path)]
            entered = [path.name for path in paths if path not in links and not self.leads_out(path)]
            yield from (link for link in links if link.resolve().is_relative_to(self._whole))
            folders[:] = sorted(entered)

    def leads_out(self, path: Path) -> bool:
        """Return whether `path` is a link whose target exists and is neither in the tree nor in a folder to follow."""
        if not path.is_symlink() or not path.exists():
            return False
        target = path.resolve()
        return not any(target.is_relative_to(folder) for folder in self._allowed)

    def _is_inner_link(self, path: Path) -> bool:
        """Return whether `path` is a link to a folder of the tree, or to one above itself, which would lead in a circle."""
        if not path.is_symlink():
            return False
        target = path.resolve()
        above = (self._whole, path.parent.resolve())
        return target.is_relative_to(self._whole) or any(folder.is_relative_to(target) for folder in above)
