"""Local folders in place of S3: `s3://bucket/key` is the file ROOT/bucket/key, or lies in a folder mapped to a prefix.

What a job writes goes to the addresses themselves where the store says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import SourceError
from headrace.launch.local.places import FolderPlace, Place, StorePlace

__all__ = ["LocalStore"]


class LocalStore:
    """Maps S3 addresses to local paths. prefixes: S3 prefix → folder with its content, such as the data of a channel.

    sends: whether what a job writes goes to the object store that its addresses name, not to folders below `root`.
    """

    def __init__(self, root: Path, prefixes: Mapping[str, Path] | None = None, *, sends: bool = False) -> None:
        self.root, self.sends = root, sends
        self._prefixes = {uri.rstrip("/"): folder for uri, folder in (prefixes or {}).items()}

    def path(self, uri: str) -> Path:
        """Return the path of an object or prefix, which need not exist. Raises `SourceError` for another kind of address."""
        address = uri.rstrip("/")
        if not {".", ".."}.isdisjoint(address.split("/")):
            raise SourceError(f"{uri} leads out of its prefix", hint="s3://bucket/prefix, without . and ..")
        for prefix, folder in self._prefixes.items():
            if address == prefix or address.startswith(f"{prefix}/"):
                return folder / address.removeprefix(prefix).lstrip("/")
        scheme, _, rest = address.partition("://")
        if scheme != "s3" or not rest:
            raise SourceError(f"{uri} is not an S3 address", hint="s3://bucket/prefix")
        return self.root / rest

    def place(self, uri: str) -> Place:
        """Return the place to which a job writes files for an S3 address. Raises `SourceError` if it cannot write there."""
        return StorePlace(uri) if self.sends else FolderPlace(self.path(uri), self.root)

    def objects(self, uri: str) -> list[tuple[str, Path]]:
        """Return name below the prefix and path of every object, sorted by name. As in S3, `…/tra` also matches `…/train/x`."""
        place = self.path(uri)
        if place.is_dir():
            return sorted((path.relative_to(place).as_posix(), path) for path in place.rglob("*") if path.is_file())
        if place.is_file():
            return [(place.name, place)]
        if uri.endswith("/") or not place.parent.is_dir():
            return []
        near = [path for path in place.parent.iterdir() if path.name.startswith(place.name)]
        found = [path for one in near for path in ([one] if one.is_file() else one.rglob("*")) if path.is_file()]
        return sorted((path.relative_to(place.parent).as_posix(), path) for path in found)
