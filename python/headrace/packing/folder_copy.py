"""`pack --layout folder`: a copy of an image tree in which JPEGs are smaller or faster to decode, and all else is unchanged.

Any script reads the copy: each file has its name and its place in the tree. JPEGs get restart markers, or are reduced and
re-encoded, as the options say. Every other file is copied byte for byte, masks and labels included; so is a JPEG that cannot be
decoded, which is listed. `headrace-folder.jsonl` in the copy records each file with its CRC-32C: a stopped copy continues, and
`headrace verify` checks it.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from headrace._native import crc32c
from headrace.datasets.shards.manifest import ERRORS
from headrace.datasets.sources.remote.store import is_url
from headrace.errors import DecodeError, FormatError, HeadraceError, SourceError, UsageError
from headrace.packing.encoding.image_encoder import image_encoder
from headrace.packing.encoding.lossless import Encode
from headrace.packing.engines.work import require_own_state
from headrace.packing.planning.options import PackOptions
from headrace.packing.planning.result import PackResult
from headrace.packing.planning.source_tree import SourceTree, TreeFile
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.private_files import make_output_folder, new_file, output_opener
from headrace.system.files.regular_file import read_regular, regular_opener
from headrace.system.hardware import machine
from headrace.system.text.size_limits import lines_of
from headrace.system.text.utf8 import utf8_name

__all__ = ["RECORD", "CopiedFile", "copy_folder", "read_record", "tree_files"]

RECORD = "headrace-folder.jsonl"
"""The record of a copy: a header line, then a line for each file. It is a file at the root, which ImageFolder ignores."""

FORMAT = "headrace-folder"
VERSION = 1

TEMPORARY = ".headrace-tmp"
"""Ending of a file that is being written."""

JPEG_START = b"\xff\xd8\xff"

ONLY_SHARDS = (
    "shard_size",
    "shuffle",
    "train_ratio",
    "test_ratio",
    "classes",
    "unlabeled",
    "duplicates",
    "extras",
    "transform",
)
"""Options that a copy of a tree does not have."""

FOLLOW_HINT = "to copy what lies in a folder outside:  --follow-links FOLDER"

WAITING = 4
"""Files of each worker that are read ahead of the record."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the copy.

    `source_size`, `source_changed_ns`: of the original, to find changed ones. `error`: why it is unchanged.
    """

    path: str  # below the root, UTF-8 (bytes that are none as %XX)
    kind: str  # "marked", "reduced", "copied", or "missing" if the original could not be read
    source_size: int
    source_changed_ns: int
    size: int
    crc32c: int
    error: str | None = None


def copy_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: PackOptions,
    *,
    workers: int | None = None,
    follow_links: Sequence[str | os.PathLike[str]] = (),
    on_start: Callable[[int], None] = lambda files: None,
    on_progress: Callable[[int, int], None] = lambda files, size: None,
) -> PackResult:
    """Copy the tree `src` to `dst`; continue a copy that was interrupted. `workers`: threads (default: one for each core).

    follow_links: folders outside `src` into which its links are followed; links to anywhere else are listed, not copied.
    on_start: called with the number of files. on_progress: called with (files, bytes) just finished.
    Raises UsageError for options that a copy does not have, or a `dst` with other content; SourceError if `src` is no folder;
    DecodeError if undecodable="stop"; HeadraceError if `dst` cannot be written.
    """
    source, target = _places(src, dst)
    _refuse_options(options)
    began_s = time.perf_counter()
    threads = workers or max(1, round(machine.cores().usable))
    tree = SourceTree(source, [Path(folder) for folder in follow_links])
    found = dict(tree_files(tree))
    files = {name: file.path for name, file in found.items() if not file.leads_out}
    outside = [name for name, file in found.items() if file.leads_out]
    if not files:
        what = f"{source} holds no files but {len(outside)} links out of it" if outside else f"{source} holds no files"
        raise SourceError(what, hint=FOLLOW_HINT if outside else "check the path")
    on_start(len(files))
    try:
        make_output_folder(target)
        done = _continued(source, target, options, files, threads)
        on_progress(len(done), 0)
        made = _copy(source, target, files, done, options, threads, on_progress)
        _copy_links(tree, target)
        _commit(target, options, made, outside)
    except OSError as error:
        raise _cannot_write(error, target) from error
    return _result(target, made, len(made) - len(done), time.perf_counter() - began_s, len(outside))


def tree_files(tree: SourceTree) -> Iterator[tuple[str, TreeFile]]:
    """Yield (name as in the record, file) of each file and each link out of the tree, without those of headrace itself."""
    for file in tree.files():
        if file.path not in (RECORD, ERRORS) and not file.path.endswith(TEMPORARY):
            yield utf8_name(file.path), file


def _copy_links(tree: SourceTree, target: Path) -> None:
    """Make the tree's links to its own folders in the copy."""
    for link in tree.folder_links():
        place = target / link.relative_to(tree.root)
        if not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(os.path.relpath(link.resolve(), link.parent.resolve()), target_is_directory=True)


def read_record(target: Path) -> tuple[dict[str, Any], dict[str, CopiedFile]]:
    """Return header and files of a copy's record. Raises FormatError if it is damaged, FileNotFoundError without one.

    A last line that a killed copy left unfinished is ignored.
    """
    opened = functools.partial(open, target / RECORD, encoding="utf-8", errors="replace", newline="\n", opener=regular_opener)
    try:
        with opened() as file:
            lines = lines_of(file)
            header = json.loads(next(lines, ""))
            if header["format"] != FORMAT or header["version"] != VERSION:
                raise ValueError(f"format {header['format']} {header['version']}")
            entries = [_checked_entry(CopiedFile(**json.loads(line))) for line in lines if line.endswith("\n")]
    except (ValueError, KeyError, TypeError, RecursionError) as reason:
        raise FormatError(
            f"{target / RECORD} is damaged: {reason}", hint="remove it, and give the same command again"
        ) from None
    return header, {entry.path: entry for entry in entries}


def _checked_entry(entry: CopiedFile) -> CopiedFile:
    """Return an entry whose values have their types and whose path stays in the copy. Raises ValueError."""
    for field in fields(CopiedFile):
        value = getattr(entry, field.name)
        if type(value).__name__.removesuffix("Type") not in str(field.type):  # "str", or "str | None"
            raise ValueError(f"{field.name} is {value!r:.80}")
    if entry.path.startswith("/") or ".." in entry.path.split("/") or "\0" in entry.path:
        raise ValueError(f"the name {entry.path!r:.80} leads out of the copy")
    return entry


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
    return {"format": FORMAT, "version": VERSION, "complete": complete, "options": kept}


def _continued(source: Path, target: Path, options: PackOptions, files: dict[str, str], threads: int) -> dict[str, CopiedFile]:
    """Return the files of an earlier copy that are still right. Raises UsageError for a folder with other content.

    The bytes of an unfinished copy are compared with its record.
    """
    require_own_state(target / RECORD)
    try:
        header, entries = read_record(target)
    except FileNotFoundError:
        if any(target.iterdir()):
            raise UsageError(f"{target} holds other files", hint="give a new folder") from None
        return {}
    if header["options"] != _header(options, complete=False)["options"]:
        raise UsageError(
            f"{target} holds a copy that was made with other options", hint="give a new folder, or the same options"
        )
    known = {name: entry for name, entry in entries.items() if name in files}
    with ThreadPoolExecutor(threads) as pool:
        right = pool.map(lambda one: _is_right(source, target, files[one.path], one, header["complete"]), known.values())
        return {name: entry for (name, entry), is_right in zip(known.items(), right, strict=True) if is_right}


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
    files: dict[str, str],
    done: dict[str, CopiedFile],
    options: PackOptions,
    workers: int,
    on_progress: Callable[[int, int], None],
) -> dict[str, CopiedFile]:
    """Copy what is missing, in order, and record each file; return all files of the copy."""
    encode = image_encoder(options).encode
    made = dict(done)
    waiting: list[Future[CopiedFile]] = []
    _write_record(target, options, done.values(), complete=False)
    add = functools.partial(open, target / RECORD, "a", encoding="utf-8", opener=output_opener)
    with add() as record, ThreadPoolExecutor(workers) as pool:

        def take() -> None:
            entry = waiting.pop(0).result()
            made[entry.path] = entry
            record.write(_line(asdict(entry)))
            record.flush()
            on_progress(1, entry.size)

        try:
            for name, below in files.items():
                if name not in done:
                    waiting.append(pool.submit(_copy_file, source, target, name, below, encode, options))
                if len(waiting) > WAITING * workers:
                    take()
            while waiting:
                take()
        finally:
            pool.shutdown(cancel_futures=True)
    return {name: made[name] for name in files}


def _copy_file(source: Path, target: Path, name: str, below: str, encode: Encode, options: PackOptions) -> CopiedFile:
    place = target / below
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
    temporary = place.with_name(place.name + TEMPORARY)
    new_file(temporary)
    with open(temporary, "wb", opener=output_opener) as file:
        file.write(stored)
    os.utime(temporary, ns=(original.st_atime_ns, original.st_mtime_ns))
    temporary.replace(place)
    return CopiedFile(name, kind, original.st_size, original.st_mtime_ns, len(stored), crc32c(stored), error)


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _write_record(target: Path, options: PackOptions, entries: Iterable[CopiedFile], *, complete: bool) -> None:
    lines = [_header(options, complete=complete), *map(asdict, entries)]
    atomic_write(target / RECORD, "".join(map(_line, lines)))


def _commit(target: Path, options: PackOptions, made: dict[str, CopiedFile], outside: Sequence[str]) -> None:
    """Write the final record, and the list of JPEGs that could not be decoded and of links that were not followed."""
    rejected = [
        {"file": entry.path, "reason": "unreadable" if entry.kind == "missing" else "undecodable", "detail": entry.error}
        for entry in made.values()
        if entry.error
    ]
    rejected += [{"file": name, "reason": "link", "detail": f"leads out of the source; {FOLLOW_HINT}"} for name in outside]
    if rejected:
        atomic_write(target / ERRORS, "".join(map(_line, rejected)))
    else:
        (target / ERRORS).unlink(missing_ok=True)
    _write_record(target, options, made.values(), complete=True)


def _cannot_write(error: OSError, target: Path) -> HeadraceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, hint = f"no space left for {target}", "free some space"
    else:
        what, hint = (
            f"cannot copy to {target}: {error.filename or ''}: {error.strerror or error}",
            "check the folder and its permissions",
        )
    return HeadraceError(what, hint=f"{hint} and give the same command again: it continues")


def _result(target: Path, made: dict[str, CopiedFile], new: int, seconds: float, outside: int) -> PackResult:
    entries = list(made.values())
    images = [entry for entry in entries if entry.kind in ("marked", "reduced")]
    unchanged = Counter(Path(entry.path).suffix.lower() or "no extension" for entry in entries if entry.kind == "copied")
    return PackResult(
        path=str(target),
        complete=True,
        records=len(images),
        shards=0,
        bytes=sum(entry.size for entry in entries),
        errors=sum(entry.error is not None for entry in entries) + outside,
        renamed=0,
        img_s=new / seconds if new else None,
        seconds=seconds,
        source_bytes=sum(entry.source_size for entry in entries),
        extras=dict(sorted(unchanged.items())),
    )
