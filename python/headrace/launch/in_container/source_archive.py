"""The source archive of a job that SageMaker's SDKs made: where the request names it, and how it is unpacked.

Somebody else may have written it: no member leaves the folder, no link, device or pipe is made, size and number are bounded.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import SourceError
from headrace.system.text.sizes import size_text

__all__ = ["DIRECTORY", "PROGRAM", "REMEDY", "fetch_source", "named_source", "unpack_source"]

PROGRAM = "sagemaker_program"
"""Hyperparameter of SageMaker's SDK 2: the script."""

DIRECTORY = "sagemaker_submit_directory"
"""Hyperparameter of SageMaker's SDK 2: the archive or folder that has the script."""

MOST_FILES, MOST_BYTES = 100_000, 5_000_000_000
"""Unpack no archive of more members or bytes: code has fewer."""

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


def unpack_source(archive: Path, folder: Path) -> None:
    """Unpack a source archive into a folder. Raises `SourceError` for a damaged archive and for members that no source has."""
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter=_Bounds(archive).check)
    except (tarfile.TarError, OSError, EOFError, zlib.error, UnicodeError) as error:
        raise SourceError(
            f"{archive} cannot be unpacked: {error}", hint="it is to be a tar.gz of the script's folder"
        ) from None


class _Bounds:
    """What was unpacked so far, and the check of the next member."""

    def __init__(self, archive: Path) -> None:
        self._archive, self._files, self._bytes = archive, 0, 0

    def check(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        """Return the member as it is unpacked. Raises `SourceError` where it is not."""
        self._files += 1
        self._bytes += member.size
        if not (member.isreg() or member.isdir()):
            raise self._refused(member, "is a link, a device or a pipe")
        if self._files > MOST_FILES or self._bytes > MOST_BYTES:
            raise self._refused(member, f"is beyond {MOST_FILES:,} files or {size_text(MOST_BYTES)}")
        try:
            return tarfile.data_filter(member, folder)
        except tarfile.FilterError:
            raise self._refused(member, "leads out of the folder") from None

    def _refused(self, member: tarfile.TarInfo, why: str) -> SourceError:
        hint = "make it anew of files and folders: tar -czhf sourcedir.tar.gz -C project ."
        return SourceError(f"{self._archive}: {member.name[:200]!r} {why}", hint=hint)
