"""Cached indexes of containers without an index (tar, RecordIO, TFRecord); the first open builds one.

The cache folder is `$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`. An entry belongs to the
exact files (path, size, times of change, inode); when one changes, the index is built again. The folder may be deleted at any
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.datasets.shards.index import Columns, read_columns, serialized
from headrace.errors import FormatError, SourceError
from headrace.system.files.atomic_write import atomic_write
from headrace.system.files.file_identity import file_identity
from headrace.system.files.private_cache import make_cache_folder, owned_file

__all__ = ["Scan", "cache_folder", "cached_scan"]

_VERSION = 8  # increase it when the scanners find something else than before


@dataclass(frozen=True, slots=True)
class Scan:
    """Where the records of a set of containers lie. `columns.shard` numbers the containers, then `extra` if there is one.

    `extra` holds records that their container stores in several pieces; it becomes a file of the cache.
    """

    columns: Columns
    classes: tuple[str, ...]
    extra: bytes = b""
    strays: tuple[str, ...] = ()  # names of members without an image


def cache_folder() -> Path:
    """Return the folder of cached indexes and downloaded data."""
    own = os.environ.get("HEADRACE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def cached_scan(kind: str, files: Sequence[Path], build: Callable[[], Scan]) -> tuple[Scan, str]:
    """Return the scan of `files`, cached or new, and the path of the cache file with its `Scan.extra` ("" if that is empty).

    Raises what `build` raises, and SourceError if a file cannot be read or `extra` cannot be stored.
    """
    folder = cache_folder() / "index"
    stem = _name(kind, files)
    columns_path, extra_path, facts_path = (folder / f"{stem}.{end}" for end in ("safetensors", "bin", "json"))
    with contextlib.suppress(OSError):  # not writable: read what is there, or go without
        make_cache_folder(folder)
    owned = all(owned_file(path) for path in (columns_path, facts_path))
    with contextlib.suppress(FormatError, OSError, ValueError, KeyError):  # missing or damaged: build it again
        if not owned:
            raise ValueError("not this user's")
        facts = json.loads(facts_path.read_bytes())
        if facts["extra"] == 0 or (owned_file(extra_path) and extra_path.stat().st_size == facts["extra"]):
            scan = Scan(read_columns(columns_path), tuple(facts["classes"]), strays=tuple(facts["strays"]))
            return scan, str(extra_path) if facts["extra"] else ""
    scan = build()
    try:
        if scan.extra:
            atomic_write(extra_path, scan.extra)
        atomic_write(columns_path, serialized(scan.columns))
        facts = {"classes": scan.classes, "extra": len(scan.extra), "strays": scan.strays}
        atomic_write(facts_path, json.dumps(facts).encode())  # last: it marks the entry as complete
    except OSError as error:
        if scan.extra:
            raise SourceError(
                f"cannot write to the cache folder {folder}: {error.strerror}",
                hint="set HEADRACE_CACHE to another folder",
            ) from error
        # Without a cache the next open takes as long as this one.
    return scan, str(extra_path) if scan.extra else ""


def _name(kind: str, files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{kind} {_VERSION}".encode())
    for path in files:
        try:
            facts = path.stat()
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror}") from error
        digest.update(os.fsencode(path) + f"\0{file_identity(facts)}\0".encode())
    return digest.hexdigest()[:32]
