"""Folders that hold the splits of a dataset: `train` beside `val`, `valid`, `validation` or `test`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

__all__ = ["holds_splits", "train_and_validation"]

_TRAIN = "train"
_HELD_OUT = ("val", "valid", "validation", "test")  # in order of preference for validation


def train_and_validation(folder: Path) -> tuple[Path, Path] | None:
    """Return the folders of the training and the validation split, or None if `folder` does not hold both."""
    held_out = next((folder / name for name in _HELD_OUT if (folder / name).is_dir()), None)
    return (folder / _TRAIN, held_out) if held_out is not None and (folder / _TRAIN).is_dir() else None


def holds_splits(folder: Path, names: Collection[str]) -> bool:
    """Return whether the folders `names` in `folder` are splits with class folders inside, and not classes."""
    return (
        len(names) > 1
        and _TRAIN in names
        and set(names) <= {_TRAIN, *_HELD_OUT}
        and any(entry.is_dir() for entry in (folder / _TRAIN).iterdir())
    )
