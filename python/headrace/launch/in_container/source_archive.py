"""The source archive of a job that SageMaker's SDKs made: where the request names it, and how it is unpacked.

Somebody else may have written it: no member leaves the folder, no link, device or pipe is made, size and number are bounded.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from headrace.errors import FormatError, SourceError
from headrace.system.files.private_files import output_opener
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.sizes import size_text

if TYPE_CHECKING:
    from headrace.datasets.sources.archives.tar import StreamedMember, TarStream

__all__ = ["DIRECTORY", "PROGRAM", "REMEDY", "fetch_source", "is_source_archive", "named_source", "unpack_source"]

PROGRAM = "sagemaker_program"
"""Hyperparameter of SageMaker's SDK 2: the script."""

DIRECTORY = "sagemaker_submit_directory"
"""Hyperparameter of SageMaker's SDK 2: the archive or folder that has the script."""

MOST_FILES, MOST_BYTES = 100_000, 5_000_000_000
"""Unpack no archive of more members or bytes: code has fewer."""

UNASKED_BYTES, LARGEST_RATIO = 100_000_000, 100
"""Beyond so many bytes, unpack at most so many for each byte of the archive: code packs to a fifth."""

GZIP = b"\x1f\x8b"
"""How gzip files begin."""

PIECE = 1 << 20

REMEDY = "--source-dir brings the source: a folder, a tar.gz file, or the URL of one; --fetch copies it from its address"


def named_source(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return the script and the place of its source, as hyperparameters of SDK 2 name them, or empty texts."""
    program, place = (str(parameters.get(name) or "") for name in (PROGRAM, DIRECTORY))
    return program, place


def fetch_source(place: str, folder: Path) -> None:
    """Fill a folder with the source at a place: a folder, or a tar archive, here or at a URL of an object store.

    Raises `SourceError` where there is none.
    """
    # The container's first process seldom needs a store.
    from headrace.datasets.sources.remote.mirror import copy_object
    from headrace.datasets.sources.remote.store import is_url, open_bucket

    if not is_url(place):
        if Path(place).is_dir():
            shutil.copytree(place, folder, dirs_exist_ok=True)
        elif Path(place).is_file():
            unpack_source(Path(place), folder)
        else:
            raise SourceError(f"there is no source archive {place}", hint=REMEDY)
        return
    address, _, name = place.rpartition("/")
    bucket = open_bucket(address)
    if (entry := bucket.find(name)) is None:
        raise SourceError(f"there is no source archive {place}", hint=REMEDY)
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        copy_object(bucket, entry, Path(scratch))
        unpack_source(Path(scratch) / name, folder)


def is_source_archive(path: Path) -> bool:
    """Return whether a file begins as an archive that `unpack_source` reads."""
    try:
        with _opened(path) as stream:
            return next(_archive(path, stream).members(), None) is not None
    except (FormatError, *_DAMAGE):
        return False


def unpack_source(archive: Path, folder: Path) -> None:
    """Unpack a source archive into a folder. Raises `SourceError` for a damaged archive and for members that no source has."""
    try:
        with _opened(archive) as stream:
            reader, bounds = _archive(archive, stream), _Bounds(archive)
            for member in reader.members():
                _write(reader, member, folder / bounds.checked(member))
    except (FormatError, *_DAMAGE) as error:
        raise SourceError(
            f"{archive} cannot be unpacked: {error}", hint="it is to be a tar.gz of the script's folder"
        ) from None


_DAMAGE = (OSError, EOFError, zlib.error, ValueError)  # the last for names that no file can have


def _opened(path: Path) -> IO[bytes]:
    with open(path, "rb", opener=regular_opener) as file:
        packed = file.read(2) == GZIP
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else open(path, "rb", opener=regular_opener)


def _archive(path: Path, stream: IO[bytes]) -> TarStream:
    # The container's first process seldom needs it.
    from headrace.datasets.sources.archives.tar import TarStream

    return TarStream(path, stream)


def _write(archive: TarStream, member: StreamedMember, target: Path) -> None:
    """Write a member, with no rights for others to write, and none of another user."""
    if member.is_folder:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb", opener=output_opener) as file:
        while data := archive.read(PIECE):
            file.write(data)
    target.chmod(member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600)


class _Bounds:
    """What was unpacked so far, and the check of the next member."""

    def __init__(self, archive: Path) -> None:
        self._archive, self._files, self._bytes = archive, 0, 0
        self._most = min(MOST_BYTES, max(UNASKED_BYTES, LARGEST_RATIO * archive.stat().st_size))

    def checked(self, member: StreamedMember) -> str:
        """Return the member's name in the folder. Raises `SourceError` for one that is not unpacked."""
        self._files += 1
        self._bytes += member.size
        if not (member.is_file or member.is_folder):
            raise self._refused(member, "is a link, a device or a pipe")
        if self._files > MOST_FILES or self._bytes > self._most:
            raise self._refused(member, f"is beyond {MOST_FILES:,} files or {size_text(self._most)}")
        if ".." in (parts := member.name.split("/")):
            raise self._refused(member, "leads out of the folder")
        return "/".join(part for part in parts if part)

    def _refused(self, member: StreamedMember, why: str) -> SourceError:
        hint = "make it anew of files and folders: tar -czhf sourcedir.tar.gz -C project ."
        return SourceError(f"{self._archive}: {member.name[:200]!r} {why}", hint=hint)
