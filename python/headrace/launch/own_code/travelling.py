"""headrace as it travels to a job beside a script: the installed package, and the packages that an image may lack.

A container needs no package index then. The files go below `.headrace` in the code folder: the package to `headrace`, other
packages to `lacking`, which stands last on the path, so that the image's own versions win.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from headrace.errors import UsageError
from headrace.launch.own_code.source import Source

__all__ = ["ARCHIVE", "needed_glibc", "write_archive"]

ARCHIVE = "source.tar.gz"
"""File of the code channel: the script's folder, the entry file, and headrace."""

LACKING = ("rich", "markdown-it-py", "mdurl", "pygments", "safetensors")
"""The packages of headrace that AWS's PyTorch images may lack. They have NumPy, Pillow, torch and torchvision."""

_SKIPPED = ("__pycache__", "bin")
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


def write_archive(source: Source, path: Path) -> int:
    """Write what a job needs to run `source` to a tar.gz file, and return its bytes. Raises `OSError`, `UsageError`."""
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        for file in source.files():
            archive.add(source.folder / file, arcname=file.as_posix(), recursive=False, filter=_clean)
        if (entry := source.entry_file(travels=True)) is not None:
            information = tarfile.TarInfo(source.program)
            information.size = len(entry)
            archive.addfile(information, io.BytesIO(entry))
        for name, file in travelling_files():
            archive.add(file, arcname=f".headrace/{name}", recursive=False, filter=_clean)
    return path.stat().st_size


def travelling_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of headrace and of `LACKING`, each with its name below `.headrace`.

    Raises `UsageError` for a package that is not installed here.
    """
    package = Path(__file__).parents[2]
    for file in sorted(package.rglob("*")):
        if file.is_file() and not _is_skipped(file.relative_to(package)):
            yield f"headrace/{file.relative_to(package).as_posix()}", file
    for name in LACKING:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise UsageError(f"{name} is not installed here, so it cannot travel", hint=f"pip install {name}") from None
        if not found.files:
            raise UsageError(f"the files of {name} are not known here, so it cannot travel", hint=f"pip install {name}")
        for listed in found.files:
            file = Path(str(listed.locate()))
            if ".." not in listed.parts and not _is_skipped(Path(*listed.parts)) and file.is_file():
                yield f"lacking/{listed.as_posix()}", file


@cache
def needed_glibc() -> tuple[int, int]:
    """Return the version of glibc that the travelling libraries need: the newest that their symbols name."""
    versions = {(0, 0)}
    for name, file in travelling_files():
        if name.endswith(".so"):
            versions |= {(int(major), int(minor)) for major, minor in _GLIBC.findall(file.read_bytes())}
    return max(versions)


def _is_skipped(path: Path) -> bool:
    return not set(_SKIPPED).isdisjoint(path.parts) or path.suffix == ".pyc"


def _clean(information: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file and when: the same files give the same archive."""
    information.uid = information.gid = 0
    information.uname = information.gname = ""
    information.mtime = 0
    return information
