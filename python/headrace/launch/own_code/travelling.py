"""headrace as it travels to a job beside a script: the installed package, and the packages that an image may lack.

A container needs no package index then. The files go below `.headrace` in the code folder: the package to `headrace`, other
packages to `lacking`, which stands last on the path, so that the image's own versions win.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from headrace.errors import UsageError
from headrace.launch.own_code.source import PACKAGE, Member, Source, write_members
from headrace.system.files.private_files import check_below
from headrace.system.files.scratch_folder import scratch_folder

__all__ = ["ARCHIVE", "members", "needed_glibc", "stage", "temporary_folder", "write_archive", "write_copy"]

TRAVELLED = ".headrace"
"""Folder of headrace beside the script."""

ARCHIVE = "source.tar.gz"
"""File of the code channel: the script's folder, the entry file, and headrace."""

LACKING = ("rich", "markdown-it-py", "mdurl", "pygments", "safetensors")
"""The packages of headrace that AWS's PyTorch images may lack. They have NumPy, Pillow, torch and torchvision."""

_SKIPPED = ("__pycache__", "bin", "direct_url.json", "RECORD")
"""Files that do not travel. The last two say what was installed here, and from where."""

_OWN = ("__pycache__", TRAVELLED)
"""Folders in a copy that are made anew."""

_MODULES = tuple(all_suffixes())
"""Endings of the files that Python imports."""

_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


def members(source: Source) -> Iterator[Member]:
    """Yield what a job needs to run `source`: its files, the entry file, and headrace. Raises as `contents` and below."""
    yield from source.members(travels=True)
    for name, content in travelling_files():
        yield f"{TRAVELLED}/{name}", content


def write_archive(source: Source, path: Path) -> int:
    """Write what a job needs to run `source` to a tar.gz file, and return its bytes. Raises `OSError`, `UsageError`."""
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        for name, content in members(source):
            if isinstance(content, Path):
                archive.add(content, arcname=name, recursive=False, filter=_clean)
                continue
            information = tarfile.TarInfo(name)
            information.size = len(content)
            archive.addfile(information, io.BytesIO(content))
    return path.stat().st_size


def stage(source: Source, folder: Path) -> None:
    """Write what a job needs to run `source` into a folder. Raises `OSError`, `UsageError`.

    headrace itself is copied once in a process, and linked from there: this is its largest part.
    """
    write_members(source.members(travels=True), folder)
    shutil.copytree(_staged_headrace(), folder / TRAVELLED, copy_function=_link)


def write_copy(source: Source, folder: Path) -> None:
    """Write what a job needs to run `source` into a folder that may hold an earlier copy.

    Raises `OSError`, also for a link in the folder, `UsageError` for a module there that is not of the source: Python would
    import `json.py` beside the script, which an earlier copy has left behind, or which came with somebody else's files.
    """
    here = folder.absolute()  # it may lie in the source
    written = [one for one in members(source) if isinstance(one[1], bytes) or here not in one[1].absolute().parents]
    folders = {folder / parent for name, _ in written for parent in PurePosixPath(name).parents}
    known = {folder / name for name, _ in written} | folders
    strays: list[Path] = []
    for place in sorted(folders):
        check_below(folder, place)
        for entry in sorted(place.iterdir()) if place.is_dir() else ():
            if entry.name in _OWN:
                shutil.rmtree(entry)
            elif entry not in known and (entry.name.endswith(_MODULES) or any(entry.glob("__init__.*"))):
                strays.append(entry)
    if strays:
        more = f" and {len(strays) - 3} more" if strays[3:] else ""
        words = f"Python would import {', '.join(map(str, strays[:3]))}{more}, which the source does not have"
        raise UsageError(words, hint="remove what an earlier copy has left, and run this command again")
    write_members(written, folder)


def temporary_folder() -> Path:
    """Return a new folder that lasts as long as this process."""
    return Path(tempfile.mkdtemp(dir=_process_folder()))


@cache
def _process_folder() -> Path:
    """Return the folder of this process for copies of sources."""
    stack = ExitStack()
    folder = stack.enter_context(scratch_folder("source"))
    owner = os.getpid()
    atexit.register(lambda: stack.close() if os.getpid() == owner else None)  # a fork leaves it to its parent
    return folder


@cache
def _staged_headrace() -> Path:
    """Return a folder with the files of headrace that travel."""
    folder = temporary_folder()
    write_members(travelling_files(), folder)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def travelling_files() -> Iterator[Member]:
    """Yield the files of headrace and of `LACKING`, each with its name below `.headrace`.

    Compiled libraries travel without the paths of this machine. Raises `UsageError` for a package that is not installed here.
    """
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and not _is_skipped(file.relative_to(PACKAGE)):
            yield f"headrace/{file.relative_to(PACKAGE).as_posix()}", file if file.suffix != ".so" else without_paths(file)
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
    for name, content in travelling_files():
        if name.endswith(".so"):
            data = content if isinstance(content, bytes) else content.read_bytes()
            versions |= {(int(major), int(minor)) for major, minor in _GLIBC.findall(data)}
    return max(versions)


def without_paths(library: Path) -> bytes:
    """Return the bytes of a compiled library without the home of this user and the checkout, which a build here writes into it.

    They stand in messages of errors only. Each is replaced by as many other bytes: nothing moves.
    """
    data, checkout = library.read_bytes(), PACKAGE.parents[1]
    for place in (Path.home(), checkout if (checkout / "Cargo.toml").is_file() else Path("/")):
        found = os.fsencode(place) + (b"/" if len(place.parts) == 2 else b"")  # /root, but not in /rooted
        if found != b"/":
            data = data.replace(found, b"/" + b"-" * (len(found) - 2) + b"/")
    return data


def _is_skipped(path: Path) -> bool:
    return not {*_SKIPPED}.isdisjoint(path.parts) or path.suffix == ".pyc"


def _clean(information: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file and when: the same files give the same archive."""
    information.uid = information.gid = 0
    information.uname = information.gname = ""
    information.mtime = 0
    return information
