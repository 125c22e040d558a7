"""Where a local job puts checkpoints and results: a folder, or an object store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from headrace.datasets.sources.remote.mirror import copy_object
from headrace.datasets.sources.remote.store import open_bucket
from headrace.errors import SourceError
from headrace.system.files.atomic_write import replacing
from headrace.training.weights.uploads import check_writable

__all__ = ["FolderPlace", "Place", "StorePlace"]


class Place(Protocol):
    """A folder or an object-store prefix that holds a job's checkpoints or results. File names are relative to the place."""

    def fetch(self, folder: Path) -> Iterable[str]:
        """Copy every file stored in this place into the local `folder`, and yield the name of each."""

    def put(self, file: Path, name: str) -> None:
        """Store a file under a name, whole or not at all. Raises `OSError` or `SourceError`."""

    def remove(self, name: str) -> None:
        """Remove an object; a missing one is no error."""


class FolderPlace:
    """A place that is a folder. No link in it is followed, nor one between `root`, the store (default: the place), and it.

    A store that came with somebody else's files may hold links. All methods raise `SourceError` for one.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self._folder = folder
        self._root = root if root is not None and folder.is_relative_to(root) else folder

    def _path(self, name: str) -> Path:
        """Return the path of a file of this place."""
        path = self._folder / name
        for folder in (path, *path.parents):
            if folder == self._root:
                break
            if folder.is_symlink():
                raise SourceError(f"{folder} is a link, which a local job does not follow", hint="--store FOLDER names a store")
        return path

    def fetch(self, folder: Path) -> Iterable[str]:
        """Copy every file of this place into `folder`, and yield the name of each."""
        for path in sorted(self._path("").rglob("*")):
            if path.is_file():
                name = path.relative_to(self._folder).as_posix()
                path = self._path(name)
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                yield name

    def put(self, file: Path, name: str) -> None:
        """Copy a file here. Raises `OSError` if it cannot be read or written."""
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is no error."""
        self._path(name).unlink(missing_ok=True)


class StorePlace:
    """A place that is a prefix of an object store: AWS's, or another one at `AWS_ENDPOINT_URL`.

    Raises `SourceError` if nothing can be written there, `MissingDependencyError` without obstore.
    """

    def __init__(self, url: str) -> None:
        self._bucket = open_bucket(url)
        check_writable(self._bucket)

    def fetch(self, folder: Path) -> Iterable[str]:
        """Download every object of this place into `folder`, and yield the name of each.

        Raises `SourceError` if the store refuses.
        """
        for entry in self._bucket.list():
            copy_object(self._bucket, entry, folder)
            yield entry.path

    def put(self, file: Path, name: str) -> None:
        """Upload a file. Raises `SourceError`, or `OSError` if it cannot be read."""
        file.stat()  # a missing file is the host's doing, a missing bucket the store's
        self._bucket.write(name, file)

    def remove(self, name: str) -> None:
        """Delete an object; a missing one is no error. Raises `SourceError` if the store refuses."""
        self._bucket.delete(name)
