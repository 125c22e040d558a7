"""`DST/.packing`: the state of a pack on disk, from which it continues after an interruption.

docs/reference/format.md defines it; `resume` continues it. What lies there becomes the dataset, so it is this user's own: a
folder of another user, a link, or one that others may write is refused.

A unit is done if its `unit-N.json` exists and its shard has the size stated there. That file is written after the shard and
the unit's part of the index; each is written to a temporary name and renamed. The dataset is complete if `headrace.json`,
which is written last, exists. With `sync`, each file is on the disk before it is renamed, so this survives a power failure.
Without `sync` it survives killed processes; a power failure may damage shards, which `verify` finds and packing repeats.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np

from headrace.datasets.records.keys import Keys
from headrace.datasets.shards.index import Columns, joined_pieces, read_columns, serialized
from headrace.datasets.shards.manifest import ERRORS, INDEX, MANIFEST, FileFacts, Manifest, ShardFacts
from headrace.errors import FormatError, SourceError, UsageError
from headrace.packing.planning.listing import Listing, Rejection
from headrace.packing.planning.pack_plan import PackPlan
from headrace.system.files.atomic_write import atomic_write, replacing, sync_folder
from headrace.system.files.private_files import check_own_state, make_output_folder, make_private_folder, output_opener
from headrace.system.files.regular_file import check_regular, read_regular, regular_opener
from headrace.system.text.utf8 import utf8_text

__all__ = ["WORK", "WorkFolder", "check_empty", "require_own_state", "shard_name"]

WORK = ".packing"
_PLAN = "plan.json"
_LOCK = "lock"  # locked while a plan is made


def shard_name(unit: int) -> str:
    """Return the file name of a unit's shard."""
    return f"shard-{unit:06d}.tar"


def check_empty(destination: Path, own: Iterable[str]) -> None:
    """Raise UsageError if `destination` is a file, or a folder with other content than the names in `own`."""
    if not destination.exists():
        return
    if not destination.is_dir():
        raise UsageError(f"{destination} is a file; the destination is a folder")
    others = sorted({path.name for path in destination.iterdir()} - set(own))
    if others:
        raise UsageError(
            f"{destination} is not empty: {', '.join(others[:3])}{' …' if len(others) > 3 else ''}",
            hint="give a new folder, or empty this one",
        )


class WorkFolder:
    """The state of one pack on disk. Several processes may use it, each for its own units."""

    def __init__(self, destination: Path, *, sync: bool) -> None:
        self.destination = destination
        self.sync = sync
        self.folder = destination / WORK

    def plan(self) -> PackPlan | None:
        """Return the plan of the pack that was begun here, or None.

        Raise FormatError if it is damaged.
        """
        path = self.folder / _PLAN
        try:
            return PackPlan.parsed(read_regular(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path} is damaged: {error}", hint=f"start again:  rm -r {self.folder}") from error

    def begin(self, plan: PackPlan) -> PackPlan:
        """Begin a pack and return its plan, which is another process's plan if that process has begun in the meantime.

        Raises UsageError if the destination has other content.
        """
        try:
            check_empty(self.destination, [WORK])
        except UsageError:  # unless the content is from another process that began in the meantime
            if self.plan() is None:
                raise
        make_output_folder(self.destination)
        make_private_folder(self.folder)
        self.check_owner()
        with open(self.folder / _LOCK, "ab", opener=output_opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # only one of two plans is written, even if their options differ
            if (begun := self.plan()) is not None:
                return begun
            self._write(self.folder / _PLAN, plan.serialized())
            return plan

    def check_owner(self) -> None:
        """Raise UsageError for a state, or a finished dataset, that another user may have put here."""
        for path in (self.folder, self.destination / MANIFEST):
            require_own_state(path)

    def is_done(self, unit: int, change_digest: str | None = None) -> bool:
        """Return whether the unit's shard is complete and in place; optionally, whether its change digest is this one."""
        try:
            facts = json.loads(read_regular(self._facts_path(unit)))
            if change_digest not in (None, facts["mark"]):
                return False
            shard = facts["shard"]
            if shard is None:
                return True
            size = check_regular(self.destination / shard_name(unit)).st_size
            return bool(shard["file"] == shard_name(unit) and size == shard["size"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def is_intact(self, unit: int, listing: Listing, plan: PackPlan) -> bool:
        """Return whether a done unit holds the records that the plan gives it, and the bytes that were written then.

        Reads the whole shard.
        """
        begin, end = plan.rows(unit)
        try:
            facts = json.loads(read_regular(self._facts_path(unit)))
            rejected = {one["file"] for one in facts["rejected"]}
            packed = [at for at in range(begin, end) if listing.name(at) not in rejected]
            if facts["shard"] is None:
                return not packed
            with open(self.destination / shard_name(unit), "rb", opener=regular_opener) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != facts["shard"]["sha256"]:
                    return False
            if hashlib.sha256(read_regular(self._columns_path(unit))).hexdigest() != facts["index"]:
                return False
            columns = read_columns(self._columns_path(unit))
            keys = Keys(columns.keys, columns.key_start)
            same_keys = keys == listing.keys.selected(np.array(packed, dtype=np.int64))
            return same_keys and columns.label.tolist() == listing.labels[packed].tolist()
        except (OSError, FormatError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def open_part(self, unit: int) -> BinaryIO:
        """Open the temporary file of a unit's shard. Raise UsageError if another process is writing it."""
        path = self.folder / f"{shard_name(unit)}.part"
        file = open(path, "ab", opener=output_opener)  # noqa: SIM115 (the caller closes it)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise UsageError(
                f"another process is packing {shard_name(unit)} in {self.destination}",
                hint="wait for it, or give each process its own share:  --unit 0/2, --unit 1/2",
            ) from error
        if os.fstat(file.fileno()).st_size:  # only if needed: ext4 writes a truncated file to the disk when it is closed
            file.truncate(0)
        return file

    def forget(self, unit: int) -> None:
        """Mark a done unit as missing, so that no process commits it."""
        self._facts_path(unit).unlink(missing_ok=True)

    def finish(
        self,
        unit: int,
        change_digest: str,
        file: BinaryIO,
        columns: Columns | None,
        digest: str,
        rejected: Sequence[Rejection],
        unmarked: int,
    ) -> None:
        """Put a unit's shard in place and mark the unit done.

        change_digest: that of the unit's source files when they were listed (`Listing.change_digest`).
        columns: the unit's part of the index; None: all of its records were rejected.
        unmarked: its JPEGs that keep their bytes because restart markers cannot be written.
        """
        file.flush()
        part = self.folder / f"{shard_name(unit)}.part"
        facts: dict[str, object] = {"shard": None, "mark": change_digest, "rejected": [asdict(one) for one in rejected]}
        facts["unmarked"] = unmarked
        if columns is None:
            part.unlink()
        else:
            if self.sync:
                os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            facts["shard"] = {"file": shard_name(unit), "size": size, "sha256": digest, "records": len(columns)}
            index = serialized(columns)
            facts["index"] = hashlib.sha256(index).hexdigest()
            self._write(self._columns_path(unit), index)
            # Not by `replacing`: the file is locked under this name while it grows, against a second process.
            part.replace(self.destination / shard_name(unit))
        self._write(self._facts_path(unit), json.dumps(facts).encode())

    def commit(self, plan: PackPlan, listing: Listing) -> Manifest:
        """Write errors, index and manifest, and delete this folder. All units must be done.

        Several processes may commit at the same time: they write equal bytes. Raises SourceError if every record was rejected.
        """
        units = [json.loads(read_regular(self._facts_path(unit))) for unit in range(plan.units)]
        shards = [ShardFacts(**unit["shard"]) for unit in units if unit["shard"]]
        rejected = [*listing.rejected, *(Rejection(**one) for unit in units for one in unit["rejected"])]
        if not shards:
            raise SourceError(
                f"none of {len(listing)} images could be packed; the first: {rejected[0].file}: {rejected[0].detail}",
                hint=f"check the source; to start again:  rm -r {self.folder}",
            )
        paths = [self._columns_path(unit) for unit, facts in enumerate(units) if facts["shard"]]
        image_bytes, per_class = _sums(paths, len(listing.classes))
        if rejected:
            lines = (utf8_text(json.dumps(asdict(one), ensure_ascii=False)) + "\n" for one in rejected)
            self._write(self.destination / ERRORS, "".join(lines).encode())
        index = self._write_index(paths)
        manifest = Manifest(
            records=sum(per_class),
            image_bytes=image_bytes,
            rejected=len(rejected),
            unmarked=sum(unit.get("unmarked", 0) for unit in units),
            classes=listing.classes,
            per_class=per_class,
            shards=tuple(shards),
            index=index,
            options=plan.options,
            source_kind=plan.source_kind,
            source_fingerprint=plan.source_fingerprint,
        )
        self._synchronise()  # shards and index must be on the disk before the manifest
        self._write(self.destination / MANIFEST, manifest.serialized())
        self._synchronise()
        self.remove()
        return manifest

    def remove(self) -> None:
        """Delete this folder if it exists."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _facts_path(self, unit: int) -> Path:
        return self.folder / f"unit-{unit:06d}.json"

    def _columns_path(self, unit: int) -> Path:
        return self.folder / f"unit-{unit:06d}.safetensors"

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file so that it exists either completely or not at all."""
        # A killed pack leaves the temporary file where `remove` finds it, not in the destination.
        atomic_write(path, data, sync=self.sync, temporary_folder=self.folder)

    def _write_index(self, parts: Sequence[Path]) -> FileFacts:
        """Write the index that joins the units' parts of it."""
        path, digest = self.destination / INDEX, hashlib.sha256()
        with replacing(path, sync=self.sync, temporary_folder=self.folder) as temporary:
            with open(temporary, "wb") as file:
                for piece in joined_pieces(parts):
                    file.write(piece)
                    digest.update(piece)
            size = temporary.stat().st_size
        return FileFacts(INDEX, size, digest.hexdigest())

    def _synchronise(self) -> None:
        """Write the renames in the destination to the disk."""
        if self.sync:
            sync_folder(self.destination)


def _sums(parts: Iterable[Path], classes: int) -> tuple[int, tuple[int, ...]]:
    """Return the bytes of all images, and the number of records of each class."""
    image_bytes, counts = 0, np.zeros(classes, dtype=np.int64)
    for path in parts:
        columns = read_columns(path)
        image_bytes += int(columns.size.sum())
        counts += np.bincount(columns.label, minlength=classes)
    return image_bytes, tuple(counts.tolist())


def require_own_state(path: Path) -> None:
    """Raise UsageError for the state of a pack that another user may have put there. A missing one is nobody's."""
    try:
        check_own_state(path)
    except OSError as error:
        raise UsageError(
            f"{path} {error.strerror}: what it says cannot be trusted", hint="give a new folder, or remove this one"
        ) from error
