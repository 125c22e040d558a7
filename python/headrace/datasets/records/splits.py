"""Folders that hold the splits of a dataset: `train` beside `val`, `valid`, `validation` or `test`."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from headrace.errors import SourceError, UsageError

__all__ = ["TRAIN", "holds_splits", "split_place", "splits_below", "train_and_validation"]

TRAIN = "train"
_VALIDATION = ("val", "valid", "validation")
_HELD_OUT = (*_VALIDATION, "test")  # in order of preference for validation


def train_and_validation(folder: Path) -> tuple[Path, Path] | None:
    """Return the folders of the training and the validation split, or None if `folder` does not hold both."""
    held_out = next((folder / name for name in _HELD_OUT if (folder / name).is_dir()), None)
    return (folder / TRAIN, held_out) if held_out is not None and (folder / TRAIN).is_dir() else None


def holds_splits(folder: Path, names: Collection[str]) -> bool:
    """Return whether the folders `names` in `folder` are splits with class folders inside, and not classes."""
    return (
        len(names) > 1
        and TRAIN in names
        and set(names) <= {TRAIN, *_HELD_OUT}
        and any(entry.is_dir() for entry in (folder / TRAIN).iterdir())
    )


def splits_below(folder: Path) -> tuple[str, ...]:
    """Return the names of the splits in `folder`, `train` first; () if it holds none."""
    try:
        names = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__MACOSX"))}
    except OSError:
        return ()
    return tuple(name for name in (TRAIN, *_HELD_OUT) if name in names) if holds_splits(folder, names) else ()


def split_place(path: str | os.PathLike[str], split: str) -> str:
    """Return the path or URL of a split below `path`; "val" also finds `valid` and `validation`.

    Raises UsageError for a name that is no split, SourceError if a local folder has no such split.
    """
    if split not in (TRAIN, *_HELD_OUT):
        raise UsageError(f"split is {split!r}; possible: {', '.join((TRAIN, *_HELD_OUT))}", hint='for example split="train"')
    root = os.fspath(path).rstrip("/")
    if "://" in root:
        return f"{root}/{split}"
    names = (split, *_VALIDATION) if split in _VALIDATION else (split,)
    found = next((name for name in names if (Path(root).expanduser() / name).is_dir()), None)
    if found is None and split != TRAIN:
        raise SourceError(
            f"{root} holds no folder {' or '.join(dict.fromkeys(names))}", hint="leave out split to open all of it"
        )
    return f"{root}/{found or split}"
