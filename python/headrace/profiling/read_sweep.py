"""How fast storage hands out a job's own files when 1, 2, 4, 8 or 16 readers ask at a time: B(c) of the model.

Read cold: each file's pages are dropped first (`posix_fadvise`, which needs no privilege), since warm ones say nothing of
the disk. A few seconds, and only where the job's own reads came from a disk.
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

__all__ = ["sweep", "with_read_sweep"]

READERS = (1, 2, 4, 8, 16)
SECONDS = 0.5
LEAST_FILES = 16
LEAST_BYTES, COLD_SHARE = 10_000_000, 0.5
"""Bytes that the job read, and the share of them that came from a disk, from which its storage matters."""


def sweep(paths: Sequence[str]) -> dict[str, float]:
    """Bytes per second by the number of readers (as text, as JSON has keys). Empty where files cannot be read."""
    rates: dict[str, float] = {}
    for readers in READERS:
        rate = _rate(paths, readers)
        if rate is None:
            return {}
        rates[str(readers)] = round(rate)
    return rates


def with_read_sweep(session: Session, folder: Path) -> Session:
    """The session with a sweep over the job's own files, where the job read them from a disk; noted in the folder too."""
    paths = next((loader.sample_paths for loader in session.loaders if loader.sample_paths), ())
    read = sum(batch.read_bytes or 0 for batch in session.batches)
    cold = sum(batch.disk_bytes or 0 for batch in session.batches)
    if len(paths) < LEAST_FILES or read < LEAST_BYTES or cold < COLD_SHARE * read:
        return session
    rates = sweep(paths)
    if not rates:
        return session
    add_fact(folder, "read_sweep", rates)
    return replace(session, facts={**session.facts, "read_sweep": rates})


def _rate(paths: Sequence[str], readers: int) -> float | None:
    """Bytes per second of that many threads, each with its own share of the files, for half a second."""
    end_s = time.monotonic() + SECONDS
    begin_s = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        shares = list(pool.map(lambda first: _read_until(paths[first::readers], end_s), range(readers)))
    total = sum(shares)
    return total / (time.monotonic() - begin_s) if total else None


def _read_until(paths: Sequence[str], end_s: float) -> int:
    """Bytes read, file after file and again from the first, until the time is over."""
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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
