"""`pack --layout folder`: a copy of an image tree in which JPEGs are smaller or faster to decode, and all else is unchanged.

Any script reads the copy: each file has its name and its place in the tree. JPEGs get restart markers, or are reduced and
re-encoded, as the options say. Every other file is copied byte for byte, masks and labels included; so is a JPEG that cannot be
decoded, which is listed. `headrace-folder.jsonl` in the copy records each file with its CRC-32C: a stopped copy continues, and
`headrace verify` checks it.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from headrace._native import crc32c
from headrace.datasets.records.keys import Keys
from headrace.datasets.shards.manifest import ERRORS
from headrace.datasets.sources.folders.folder import OnListed, counted
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import DecodeError, HeadraceError, SourceError, UsageError
from headrace.packing.copied_files import RECORD, CopiedFile, CopiedFiles, json_line, opened_record, write_record
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.encoding.lossless import Encode
from headrace.packing.engines.work import require_own_state
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.result import PackResult
from headrace.packing.planning.source_tree import SourceTree, TreeFile
from headrace.system.files.atomic_write import replacing
from headrace.system.files.private_files import make_output_folder, new_file, output_opener
from headrace.system.files.regular_file import read_regular
from headrace.system.hardware import machine
from headrace.system.text.utf8 import name_from_utf8, utf8_name

__all__ = ["copy_folder", "tree_files"]

TEMPORARY = ".headrace-tmp"
"""Extension of a file that is still being written."""

JPEG_START = b"\xff\xd8\xff"

ONLY_SHARDS = (
    "shard_size",
    "shuffle",
    "train_ratio",
    "seed",
    "test_ratio",
    "classes",
    "unlabeled",
    "duplicates",
    "extras",
    "transform",
)
"""Options that `--layout folder` does not accept: they concern shards."""

FOLLOW_HINT = "to copy what lies in a folder outside:  --follow-links FOLDER"

WAITING = 4
"""Files that are read ahead for each worker. More take more memory."""

_CHUNK = 1 << 12  # files of a record that are looked at together


def copy_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: PackOptions,
    *,
    workers: int | None = None,
    follow_links: Sequence[str | os.PathLike[str]] = (),
    on_listed: OnListed | None = None,
    on_start: Callable[[int], None] = lambda files: None,
    on_progress: Callable[[int, int], None] = lambda files, size: None,
) -> PackResult:
    """Copy the tree `src` to `dst`; continue a copy that was interrupted. `workers`: threads (default: one for each core).

    follow_links: folders outside `src` into which its links are followed; links to anywhere else are listed, not copied.
    on_listed, on_start: called with the number of files just listed, and of all. on_progress: called with (files, bytes) just
        finished.
    Raises UsageError for options that a copy does not have, or a `dst` with other content; SourceError if `src` is no folder;
    DecodeError if undecodable="stop"; HeadraceError if `dst` cannot be written.
    """
    source, target = _places(src, dst)
    _refuse_options(options)
    began_s = time.perf_counter()
    threads = workers or max(1, round(machine.cores().usable))
    tree = SourceTree(source, [Path(folder) for folder in follow_links])
    outside: list[str] = []
    files = CopiedFiles(Keys.of(_paths(tree, outside, on_listed)))
    if not len(files):
        what = f"{source} holds no files but {len(outside)} links out of it" if outside else f"{source} holds no files"
        raise SourceError(what, hint=FOLLOW_HINT if outside else "check the path")
    on_start(len(files))
    try:
        make_output_folder(target)
        _continue(source, target, options, files, threads, on_progress)
        done = files.count()
        _copy(source, target, files, options, threads, on_progress)
        _copy_links(tree, target)
        _commit(target, options, files, outside)
    except OSError as error:
        raise _cannot_write(error, target) from error
    return _result(target, files, len(files) - done, time.perf_counter() - began_s, len(outside))


def _paths(tree: SourceTree, outside: list[str], on_listed: OnListed | None) -> Iterator[str]:
    """Yield the path of each file of the tree, and append the names of links that lead out of it to `outside`."""
    for file in tree_files(tree, on_listed):
        if file.leads_out:
            outside.append(utf8_name(file.path))
        else:
            yield file.path


def tree_files(tree: SourceTree, on_listed: OnListed | None) -> Iterator[TreeFile]:
    """Yield each file and each link out of the tree, without those of headrace itself."""
    own = (RECORD, ERRORS)
    found = (file for file in tree.files() if file.path not in own and not file.path.endswith(TEMPORARY))
    return counted(found, on_listed)


def _copy_links(tree: SourceTree, target: Path) -> None:
    """Make the tree's links to its own folders in the copy."""
    for link in tree.folder_links:
        place = target / link.relative_to(tree.root)
        if not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(os.path.relpath(link.resolve(), link.parent.resolve()), target_is_directory=True)


def _places(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> tuple[Path, Path]:
    if is_url(src) or is_url(dst):
        raise UsageError(
            "--layout folder copies a local folder to a local folder", hint="--layout shards reads and writes stores"
        )
    source, target = Path(src).expanduser(), Path(dst).expanduser()
    if not source.is_dir():
        raise SourceError(f"{source} is not a folder", hint="--layout folder needs a tree of files")
    real, real_target = source.resolve(), target.resolve()
    if real == real_target or real_target.is_relative_to(real) or real.is_relative_to(real_target):
        raise UsageError(f"{target} and {source} lie inside each other", hint="give a folder beside the source")
    return source, target


def _refuse_options(options: PackOptions) -> None:
    plain = PackOptions()
    for name in ONLY_SHARDS:
        if getattr(options, name) != getattr(plain, name):
            raise UsageError(f"--layout folder has no --{name.replace('_', '-')}", hint="--layout shards has it")


def _header(options: PackOptions, *, complete: bool) -> dict[str, Any]:
    kept = {name: value for name, value in options.for_manifest().items() if name not in ONLY_SHARDS}
    return {"complete": complete, "options": kept}


def _continue(
    source: Path,
    target: Path,
    options: PackOptions,
    files: CopiedFiles,
    threads: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Add the files of an earlier copy that are still right. Raises UsageError for a folder with other content.

    The bytes of an unfinished copy are compared with its record.
    """
    require_own_state(target / RECORD)
    try:
        with opened_record(target) as (header, entries), ThreadPoolExecutor(threads) as pool:
            if header["options"] != _header(options, complete=False)["options"]:
                raise UsageError(
                    f"{target} holds a copy that was made with other options", hint="give a new folder, or the same options"
                )
            while some := list(islice(entries, _CHUNK)):
                rows = files.rows_of([name_from_utf8(entry.path) for entry in some])
                known = [(row, entry) for row, entry in zip(rows, some, strict=True) if row is not None]
                right = pool.map(lambda one: _is_right(source, target, files.paths[one[0]], one[1], header["complete"]), known)
                kept = [one for one, is_right in zip(known, right, strict=True) if is_right]
                for row, entry in kept:
                    files[row] = entry
                on_progress(len(kept), 0)
    except FileNotFoundError:
        if any(target.iterdir()):
            raise UsageError(f"{target} holds other files", hint="give a new folder") from None


def _is_right(source: Path, target: Path, below: str, entry: CopiedFile, complete: bool) -> bool:
    try:
        original, copy = (source / below).stat(), (target / below).lstat()
        same = (original.st_size, original.st_mtime_ns) == (entry.source_size, entry.source_changed_ns)
        if not same or copy.st_size != entry.size or not stat.S_ISREG(copy.st_mode):
            return False
        return complete or bool(crc32c(read_regular(target / below)) == entry.crc32c)
    except OSError:
        return False


def _copy(
    source: Path,
    target: Path,
    files: CopiedFiles,
    options: PackOptions,
    workers: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Copy what is missing, in order, and record each file."""
    encode = image_encoder(options).encode
    waiting: list[tuple[int, Future[CopiedFile]]] = []
    write_record(target, _header(options, complete=False), files.copied())
    add = functools.partial(open, target / RECORD, "a", encoding="utf-8", opener=output_opener)
    with add() as record, ThreadPoolExecutor(workers) as pool:

        def take() -> None:
            row, copied = waiting.pop(0)
            files[row] = entry = copied.result()
            record.write(json_line(entry.as_fields()))
            record.flush()
            on_progress(1, entry.size)

        try:
            for row, below in enumerate(files.paths):
                if not files.kind(row):
                    waiting.append((row, pool.submit(_copy_file, source, target, below, encode, options)))
                if len(waiting) > WAITING * workers:
                    take()
            while waiting:
                take()
        finally:
            pool.shutdown(cancel_futures=True)


def _copy_file(source: Path, target: Path, below: str, encode: Encode, options: PackOptions) -> CopiedFile:
    place, name = target / below, utf8_name(below)
    original = (source / below).stat()
    try:
        data = read_regular(source / below)
    except OSError as reason:  # the script could not read it either
        return CopiedFile(name, "missing", original.st_size, original.st_mtime_ns, 0, 0, reason.strerror or str(reason))
    stored, kind, error = data, "copied", None
    if data.startswith(JPEG_START) and not options.keep_bytes:
        try:
            image = encode(data)
            stored, kind = image.data, "marked" if not options.reencodes else "reduced"
        except DecodeError as reason:
            if options.undecodable == "stop":
                raise DecodeError(
                    f"{name}: {reason}", key=name, hint="repair or remove it, or:  --undecodable skip"
                ) from reason
            error = str(reason)
        if stored == data:
            kind = "copied"
    place.parent.mkdir(parents=True, exist_ok=True)
    # Not the name and more: a name may be as long as the file system takes.
    temporary = place.with_name(hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32] + TEMPORARY)
    new_file(temporary)
    with open(temporary, "wb", opener=output_opener) as file:
        file.write(stored)
    os.utime(temporary, ns=(original.st_atime_ns, original.st_mtime_ns))
    temporary.replace(place)
    return CopiedFile(name, kind, original.st_size, original.st_mtime_ns, len(stored), crc32c(stored), error)


def _commit(target: Path, options: PackOptions, files: CopiedFiles, outside: Sequence[str]) -> None:
    """Write the final record, and the list of JPEGs that could not be decoded and of links that were not followed."""
    if files.errors or outside:
        with replacing(target / ERRORS) as temporary, open(temporary, "w", encoding="utf-8") as listed:
            for row, error in sorted(files.errors.items()):
                reason = "unreadable" if files.kind(row) == "missing" else "undecodable"
                listed.write(json_line({"file": utf8_name(files.paths[row]), "reason": reason, "detail": error}))
            for name in outside:
                listed.write(json_line({"file": name, "reason": "link", "detail": f"leads out of the source; {FOLLOW_HINT}"}))
    else:
        (target / ERRORS).unlink(missing_ok=True)
    write_record(target, _header(options, complete=True), files.copied())


def _cannot_write(error: OSError, target: Path) -> HeadraceError:
    """Return the error for a copy that cannot be written: no space left, or the reason of the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, hint = f"no space left for {target}", "free some space"
    else:
        what, hint = (
            f"cannot copy to {target}: {error.filename or ''}: {error.strerror or error}",
            "check the folder and its permissions",
        )
    return HeadraceError(what, hint=f"{hint} and give the same command again: it continues")


def _result(target: Path, files: CopiedFiles, new: int, seconds: float, outside: int) -> PackResult:
    unchanged = Counter(
        Path(path).suffix.lower() or "no extension" for row, path in enumerate(files.paths) if files.kind(row) == "copied"
    )
    return PackResult(
        path=str(target),
        complete=True,
        records=files.count("marked", "reduced"),
        shards=0,
        bytes=int(files.size.sum()),
        errors=len(files.errors) + outside,
        renamed=0,
        img_s=new / seconds if new else None,
        seconds=seconds,
        source_bytes=int(files.source_size.sum()),
        extras=dict(sorted(unchanged.items())),
    )
