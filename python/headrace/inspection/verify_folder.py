"""The check of a folder copy (`pack --layout folder`): every file that its record names, its size, its CRC-32C, its pixels."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace._native import crc32c
from headrace.errors import DecodeError, SourceError
from headrace.images.header import read_header
from headrace.inspection.problems import Problem, VerifyResult
from headrace.packing.copied_files import RECORD, CopiedFile, read_record
from headrace.packing.encoding.lossless import check_pixels
from headrace.packing.folder_copy import tree_files
from headrace.packing.planning.source_tree import SourceTree
from headrace.system.files.regular_file import read_regular
from headrace.system.text.utf8 import name_from_utf8

__all__ = ["is_folder_copy", "verify_folder"]


def is_folder_copy(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a folder that `headrace pack --layout folder` wrote."""
    return (Path(path) / RECORD).is_file()


def verify_folder(
    path: Path, *, decode: bool, workers: int, on_start: Callable[[int], None] | None, on_progress: Callable[[int], None] | None
) -> VerifyResult:
    """Check every file of the copy and return the problems found; with `decode`, also decode every JPEG that `pack` changed.

    Raises SourceError for an unfinished copy.
    """
    header, entries = read_record(path)
    if not header["complete"]:
        raise SourceError(f"{path} holds an unfinished copy", hint="give the same `headrace pack` command again: it continues")
    stored = [entry for entry in entries.values() if entry.kind != "missing"]
    total = sum(entry.size for entry in stored)
    if on_start is not None:
        on_start(total)
    problems: list[Problem] = []
    tree = SourceTree(path)
    with ThreadPoolExecutor(workers) as pool:
        for entry, found in zip(stored, pool.map(lambda entry: _problem(tree, entry, decode=decode), stored), strict=True):
            if found is not None:
                problems.append(found)
            if on_progress is not None:
                on_progress(entry.size)
    known = set(entries)
    unknown = {name: file for name, file in tree_files(tree) if name not in known}
    why = {True: "is a link that leads out of the copy", False: "is not in the record"}
    problems += [Problem(name, "", why[file.leads_out]) for name, file in unknown.items()]
    return VerifyResult(str(path), not problems, len(stored), 0, total, decode, tuple(problems))


def _problem(tree: SourceTree, entry: CopiedFile, *, decode: bool) -> Problem | None:
    path = tree.root / name_from_utf8(entry.path)
    if path.is_symlink() or not path.parent.resolve().is_relative_to(tree.root.resolve()):
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
