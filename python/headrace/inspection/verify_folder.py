"""The check of a folder copy (`pack --layout folder`): size and CRC-32C of each listed file, decoding of changed JPEGs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from headrace._native import crc32c
from headrace.datasets.sources.folders.folder import OnListed, counted
from headrace.errors import DecodeError, SourceError
from headrace.images.header import read_header
from headrace.inspection.problems import Problem, VerifyResult
from headrace.packing.copied_files import RECORD, CopiedFile, CopiedFiles, opened_record
from headrace.packing.encoding.lossless import check_pixels
from headrace.packing.folder_copy import tree_files
from headrace.packing.planning.source_tree import SourceTree
from headrace.system.files.regular_file import read_regular
from headrace.system.text.utf8 import utf8_name

__all__ = ["is_folder_copy", "verify_folder"]

_CHUNK = 1 << 12  # files that are looked at together


def is_folder_copy(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a folder that `headrace pack --layout folder` wrote."""
    return (Path(path) / RECORD).is_file()


def verify_folder(
    path: Path,
    workers: int,
    *,
    decode: bool,
    on_listed: OnListed | None,
    on_start: Callable[[int], None] | None,
    on_progress: Callable[[int], None] | None,
) -> VerifyResult:
    """Check every file of the copy and return the problems found; with `decode`, also decode every JPEG that `pack` changed.

    Raises SourceError for an unfinished copy.
    """
    with opened_record(path) as (header, entries):
        if not header["complete"]:
            raise SourceError(
                f"{path} is an unfinished copy, made by `headrace pack`",
                hint="give the same `headrace pack` command again: it continues",
            )
        files = CopiedFiles.of(counted(entries, on_listed))
    tree = SourceTree(path)
    unknown = list(_unknown(tree, files, on_listed))
    stored = files.rows("marked", "reduced", "copied")
    total = int(files.size[stored].sum())
    if on_start is not None:
        on_start(total)
    problems: list[Problem] = []
    root = path.resolve()
    is_inside = functools.lru_cache(lambda folder: folder.resolve().is_relative_to(root))  # of the folders just looked at
    with ThreadPoolExecutor(workers) as pool:
        for begin in range(0, len(stored), _CHUNK):  # each file that waits takes a kilobyte
            some = stored[begin : begin + _CHUNK].tolist()
            found = pool.map(lambda row: _problem(files.paths[row], files[row], path, is_inside, decode=decode), some)
            for row, problem in zip(some, found, strict=True):
                if problem is not None:
                    problems.append(problem)
                if on_progress is not None:
                    on_progress(int(files.size[row]))
    problems += unknown
    return VerifyResult(str(path), not problems, len(stored), 0, total, decode, tuple(problems))


def _unknown(tree: SourceTree, files: CopiedFiles, on_listed: OnListed | None) -> Iterator[Problem]:
    """Yield a problem for each file of the tree that is not in the copy's list of files (`RECORD`)."""
    why = {True: "is a link that leads out of the copy", False: "is not in the record"}
    found = tree_files(tree, on_listed)
    while some := list(islice(found, _CHUNK)):
        rows = files.rows_of([file.path for file in some])
        for file, row in zip(some, rows, strict=True):
            if row is None:
                yield Problem(utf8_name(file.path), "", why[file.leads_out])


def _problem(below: str, entry: CopiedFile, root: Path, is_inside: Callable[[Path], bool], *, decode: bool) -> Problem | None:
    path = root / below
    if path.is_symlink() or not is_inside(path.parent):
        return Problem(entry.path, "", "is a link, not a file of the copy")
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return Problem(entry.path, "", "is missing")
    except OSError as error:
        return Problem(entry.path, "", f"cannot be read: {error.strerror or error}")
    if len(data) != entry.size:
        return Problem(entry.path, "", f"has {len(data):,} bytes, not {entry.size:,}")
    if crc32c(data) != entry.crc32c:
        return Problem(entry.path, "", "has another CRC-32C")
    if decode and entry.kind != "copied":
        try:
            check_pixels(data, read_header(data))
        except DecodeError as error:
            return Problem(entry.path, "", f"cannot be decoded: {error}")
    return None
