"""Checkpoints: tensors in safetensors, everything else in JSON, both with SHA-256.

A checkpoint is a folder `step-NNNNNNNNN` with `tensors.safetensors` and `state.json`. It is written under another name,
flushed to the disk, and renamed. A crash or a full disk therefore leaves earlier checkpoints untouched, and a checkpoint is
either whole or absent. Nothing is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, StateError
from headrace.system.files.atomic_write import TEMPORARY_PREFIX, atomic_write, sync_folder
from headrace.system.files.regular_file import read_regular, regular_opener
from headrace.system.hardware import machine
from headrace.system.text.json import parse_json
from headrace.system.text.size_limits import DOCUMENT_BYTES

if TYPE_CHECKING:
    import torch

__all__ = [
    "PREFIX",
    "STATE",
    "TENSORS",
    "Checkpoint",
    "Writer",
    "candidates",
    "first_whole",
    "largest",
    "load",
    "newest",
    "parse",
    "remove_partial",
    "save",
    "save_weights",
]

VERSION = 1
PREFIX = "step-"
TENSORS = "tensors.safetensors"
STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory: CPU tensors by name, a state of JSON values, and the path or URL it was read from."""

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    path: Path | str

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder: `step-NNNNNNNNN`."""
        return str(self.path).rpartition("/")[2]


def largest(name: str) -> int:
    """Return the most bytes of a checkpoint's file that are read: tensors as many as fit into the memory now.

    A sparse file of a terabyte takes no disk, and a server may announce any size.
    """
    return DOCUMENT_BYTES if name == STATE else machine.memory().free_bytes


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    spare: Collection[Path] = (),
) -> Path:
    """Write a checkpoint under `folder`, remove older ones, and return its path.

    The newest `keep` and those in `spare` stay. Checkpoints of later steps, left by a run that resumed from an earlier one, are
    neither counted nor removed. Raises HeadraceError if it cannot be written, naming the newest that exists.
    """
    target = folder / f"{PREFIX}{step:09d}"
    partial = folder / f"{TEMPORARY_PREFIX}{target.name}-{os.getpid()}"  # a folder; `replacing` is for files
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_tensors(partial / TENSORS, tensors)
        document = {"version": VERSION, "step": step, "sha256": _sha256(partial / TENSORS), "state": dict(state)}
        text = json.dumps(document, indent=1, allow_nan=False)
        atomic_write(
            partial / STATE, json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()}) + "\n" + text, sync=True
        )
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        before = next(iter(candidates(folder)), None)
        kept = f"the newest one kept is {before.name}" if before else "there is none yet"
        raise HeadraceError(
            f"cannot write checkpoint {target}: {error.strerror or error}; {kept}", hint="free some space, or change --out"
        ) from error
    for old in [path for path in candidates(folder) if path.name <= target.name][keep:]:
        if old not in spare:
            shutil.rmtree(old, ignore_errors=True)
    return target


def save_weights(path: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Write weights as one safetensors file, atomically. `facts` go into its header as JSON under "headrace"."""
    try:
        # One entry: safetensors writes several in a random order, and the bytes of the file would differ from run to run.
        _write_tensors(path, tensors, {"headrace": json.dumps(facts, sort_keys=True)})
        sync_folder(path.parent)
    except OSError as error:
        raise HeadraceError(
            f"cannot write {path}: {error.strerror or error}", hint="free some space, or change --out"
        ) from error


def remove_partial(folder: Path) -> None:
    """Remove the unfinished checkpoints of a killed process."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def candidates(folder: Path) -> Iterator[Path]:
    """List the checkpoint folders below `folder`, newest first."""
    return iter(sorted(folder.glob(f"{PREFIX}[0-9]*"), reverse=True))


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest checkpoint that is whole (None without one); also return a line about each newer, damaged one."""
    return first_whole(functools.partial(load, path) for path in candidates(folder))


def first_whole(attempts: Iterable[Callable[[], Checkpoint]]) -> tuple[Checkpoint | None, list[str]]:
    """Return the first checkpoint that loads without StateError, or None, and the messages of the attempts that failed."""
    damaged: list[str] = []
    for attempt in attempts:
        try:
            return attempt(), damaged
        except StateError as error:
            damaged.append(str(error))
    return None, damaged


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and check every byte. Raise StateError naming the file that is missing, damaged or too new."""
    try:
        return parse(path, lambda name: read_regular(path / name, limit=largest(name)))
    except OSError as error:
        raise StateError(f"cannot read checkpoint {error.filename or path}: {error.strerror}") from error


def parse(path: Path | str, read: Callable[[str], bytes]) -> Checkpoint:
    """Build a checkpoint from the files that `read` returns by name, and check every byte. Errors call it `path`."""
    from safetensors import SafetensorError
    from safetensors.torch import load as parse_tensors

    try:
        head, _, text = read(STATE).decode().partition("\n")
        if json.loads(head)["sha256"] != hashlib.sha256(text.encode()).hexdigest():
            raise StateError(f"{path}/{STATE} is damaged: its checksum does not match")
        document = parse_json(text.encode())
        if document["version"] != VERSION:
            raise StateError(f"{path}: format version {document['version']}, this headrace reads {VERSION}")
        data = read(TENSORS)
        if hashlib.sha256(data).hexdigest() != document["sha256"]:
            raise StateError(f"{path}/{TENSORS} is damaged: its checksum does not match")
        if not isinstance(document["state"], dict):
            raise StateError(f"{path}/{STATE}: the state must be a JSON object, not a {type(document['state']).__name__}")
        return Checkpoint(parse_tensors(data), document["state"], path)
    except MemoryError as error:
        raise StateError(f"{path} does not fit into memory", hint="choose another checkpoint:  --resume PATH") from error
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise StateError(f"{path} is not a checkpoint, or a damaged one: {error}") from error


class Writer:
    """Writes checkpoints in a background thread, one at a time, while training continues.

    The caller must not change the tensors it submits. A failed write is stored in `problem` and raised by `close`; training
    may continue with the earlier checkpoints. `done` is called with the path of each checkpoint that is whole. The paths
    returned by `held` are not removed yet. `last` is the newest whole checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        done: Callable[[Path], None] = lambda path: None,
        held: Callable[[], Collection[Path]] = tuple,
    ) -> None:
        self.folder, self.keep, self._done, self._held = folder, keep, done, held
        self.problem: HeadraceError | None = None
        self.last: Path | str | None = None
        self._thread: threading.Thread | None = None

    def submit(self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Start writing a checkpoint in the background. Waits only if the previous one is still being written."""
        self.wait()
        self._thread = threading.Thread(target=self._save, args=(step, tensors, state), name="headrace-checkpoint")
        self._thread.start()

    def _save(self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        try:
            self.last = path = save(self.folder, step, tensors, state, keep=self.keep, spare=self._held())
            self.problem = None
            self._done(path)
        except HeadraceError as error:
            self.problem = error

    def settled(self) -> Path | str | None:
        """Wait for the checkpoint being written, and return the newest one that was written (`last`)."""
        self.wait()
        return self.last

    def wait(self) -> None:
        """Wait for the checkpoint being written, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the checkpoint being written, and raise its error if writing failed."""
        self.wait()
        if self.problem is not None:
            raise self.problem


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    from safetensors.torch import save as serialise

    data = serialise({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(metadata or {}))
    atomic_write(path, data, sync=True)


def _sha256(path: Path) -> str:
    with open(path, "rb", opener=regular_opener) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
