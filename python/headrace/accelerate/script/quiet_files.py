"""Quiet files: image files that Pillow reads without a warning or a metadata error. Others are left to the script's own code.

The native threads find out about each file ("unsupported"), and the script's own code makes its item: Pillow warns, or raises,
as ever. A dataset with many such files is not taken over as a whole, because the main process would make their items.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from headrace._native import quiet_orientation
from headrace.accelerate.runtime.data_map import mapped
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.system.files.regular_file import read_regular

__all__ = ["is_quiet", "require_quiet_files"]

READ_FILES = 32
"""Examine this many files of a dataset, spread over it, before it is taken over."""

MOST_OTHERS = 1
"""Take the dataset over if at most this many of the examined files make Pillow warn or raise."""


def is_quiet(data: bytes) -> bool:
    """Return whether Pillow reads these bytes as RGB without a warning. False for formats without a native decoder."""
    return quiet_orientation(data, upright=False) is not None


def require_quiet_files(paths: Sequence[str]) -> None:
    """Raise `Unsupported` if more than `MOST_OTHERS` of up to `READ_FILES` examined files are not quiet (`is_quiet`).

    Files that cannot be opened do not count.
    """
    step = max(1, len(paths) // READ_FILES)
    found = [_is_quiet_file(path) for path in paths[::step][:READ_FILES]]
    others = found.count(False)
    if others > MOST_OTHERS:
        reason = f"Pillow warns of {others} of {len(found)} files that were looked at, or reads them otherwise than headrace"
        raise Unsupported(reason, "files without damaged or unusual metadata")


@functools.lru_cache(maxsize=64 * READ_FILES)  # the next epoch need not read them again
def _is_quiet_file(path: str) -> bool | None:
    """Return whether Pillow reads a file as RGB without a warning; None if it cannot be opened, or is no file of an image."""
    try:
        return is_quiet(read_regular(Path(mapped(path))))
    except (OSError, ValueError):
        return None
