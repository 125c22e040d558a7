"""Folders that hold several datasets under their usual names: `train` beside `val`, or `test`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

__all__ = ["holds_splits", "train_and_validation"]

_TRAIN = "train"
_HELD_OUT = ("val", "valid", "validation", "test")  # the first that is there is what training is judged by


def train_and_validation(folder: Path) -> tuple[Path, Path] | None:
    """The two datasets inside `folder`; None when it holds no `train` beside another part."""
    held_out = next((folder / name for name in _HELD_OUT if (folder / name).is_dir()), None)
    return (folder / _TRAIN, held_out) if held_out is not None and (folder / _TRAIN).is_dir() else None


def holds_splits(folder: Path, names: Collection[str]) -> bool:
    """Whether the folders `names` inside `folder` are parts of a dataset, with class folders of their own, not classes."""
    return (
        len(names) > 1
        and _TRAIN in names
        and set(names) <= {_TRAIN, *_HELD_OUT}
        and any(entry.is_dir() for entry in (folder / _TRAIN).iterdir())
    )
