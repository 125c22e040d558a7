"""The read sweep: the rate at which storage delivers a job's own files to 1, 2, 4, 8 and 16 readers, B(c) of the step model.

The pages of each file are dropped from the page cache before it is read (`posix_fadvise`, which needs no privilege), because
cached reads tell nothing about the disk. The sweep takes a few seconds and runs only for a job that read from a disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from headrace.profiling.command import add_fact
from headrace.session.model import Session
from headrace.system.files.regular_file import open_regular

__all__ = ["sweep", "with_read_sweep"]

READERS = (1, 2, 4, 8, 16)
SECONDS = 0.5
MIN_FILES = 16
MIN_BYTES = 10_000_000  # sweep only if the job read at least this much

DISK_SHARE = 0.5
"""Sweep only if at least this share of the bytes that the job read came from a disk, not from the page cache."""


def sweep(paths: Sequence[str]) -> dict[str, float]:
    """Return the read rate in bytes/s by number of readers ("1" to "16", as JSON keys); empty if a file cannot be read."""
    rates: dict[str, float] = {}
    for readers in READERS:
        rate = _rate(paths, readers)
        if rate is None:
            return {}
        rates[str(readers)] = round(rate)
    return rates


def with_read_sweep(session: Session, folder: Path) -> Session:
    """Return the session with the read sweep, also written to `folder`; unchanged where the job did not read from a disk."""
    paths = next((loader.sample_paths for loader in session.loaders if loader.sample_paths), ())
    read = sum(batch.read_bytes or 0 for batch in session.batches)
    from_disk = sum(batch.disk_bytes or 0 for batch in session.batches)
    if len(paths) < MIN_FILES or read < MIN_BYTES or from_disk < DISK_SHARE * read:
        return session
    rates = sweep(paths)
    if not rates:
        return session
    add_fact(folder, "read_sweep", rates)
    return replace(session, facts={**session.facts, "read_sweep": rates})


def _rate(paths: Sequence[str], readers: int) -> float | None:
    """Bytes per second of `readers` threads over `SECONDS`, each with its own share of the files."""
    end_s = time.monotonic() + SECONDS
    begin_s = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        shares = list(pool.map(lambda first: _read_until(paths[first::readers], end_s), range(readers)))
    total = sum(shares)
    return total / (time.monotonic() - begin_s) if total else None


def _read_until(paths: Sequence[str], end_s: float) -> int:
    """Bytes read until `end_s` on the monotonic clock, starting again after the last file."""
    total = 0
    while paths and time.monotonic() < end_s:
        for path in paths:
            total += _read_cold(path)
            if time.monotonic() >= end_s:
                break
        if not total:
            break  # none can be read
    return total


def _read_cold(path: str) -> int:
    try:
        descriptor = open_regular(path)
    except OSError:
        return 0
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        total = 0
        while piece := os.read(descriptor, 1 << 20):
            total += len(piece)
        return total
    except OSError:
        return 0
    finally:
        os.close(descriptor)
