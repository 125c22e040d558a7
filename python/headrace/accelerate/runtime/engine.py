"""The pool of native threads that all loaders of a process share, and its JPEG indexes."""

from __future__ import annotations

import functools
import os

from headrace._native import Engine, IndexStore
from headrace.loading.feeding.feed import INDEX_BYTES
from headrace.loading.feeding.jpeg_index_cache import shared_index_file
from headrace.system.hardware.machine import cores, job_processes, memory

__all__ = ["engine", "index_limit_bytes", "index_store"]


def index_limit_bytes() -> int:
    """Return how many bytes of memory JPEG indexes may take. They make a JPEG decode faster from the second time on.

    The limit is `feed.INDEX_BYTES`, or a sixteenth of the usable memory if that is less, divided by the number of the job's
    processes on this host.
    """
    return min(INDEX_BYTES, memory().usable_bytes // 16) // job_processes()


@functools.cache
def index_store() -> IndexStore:
    """Return the JPEG indexes of this process for images that are not in a loader's table of files."""
    return IndexStore(index_limit_bytes(), shared_index_file())


_engines: dict[int, Engine] = {}


def engine(threads: int) -> Engine:
    """Return this process's pool of `threads` native threads, shared by all loaders. Idle threads cost nothing.

    Files of which Pillow warns are left to the script's own code (`quiet_files`).
    """
    if threads not in _engines:
        _engines[threads] = Engine(threads, cores().parallel, quiet=True)
    return _engines[threads]


def _forget_engines() -> None:
    """Abandon the pools in a forked child, where their threads do not exist."""
    for pool in _engines.values():
        pool.abandon()
    _engines.clear()


os.register_at_fork(after_in_child=_forget_engines)
