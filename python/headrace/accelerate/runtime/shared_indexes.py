"""JPEG indexes that a training process shares with its workers: a JPEG decodes faster from the second time on."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
from pathlib import Path

from headrace._native import IndexStore
from headrace.accelerate.runtime.engine import index_limit_bytes
from headrace.loading.feeding.jpeg_index_cache import shared_index_file

__all__ = ["index_path", "process_indexes", "use_index_path"]

_given: list[Path | None] = []


@functools.cache
def index_path() -> Path | None:
    """Return the path of this run's file of JPEG indexes, or None if they are off. Called in the training process."""
    return _given[0] if _given else shared_index_file()


def use_index_path(path: Path | None) -> None:
    """Use the training process's file of JPEG indexes in this worker."""
    if not _given:
        _given.append(path)
        index_path.cache_clear()
        process_indexes.cache_clear()


@functools.cache
def process_indexes() -> IndexStore:
    """Return the JPEG indexes of this process. The training process has them in memory, a worker only in the file."""
    in_worker = multiprocessing.parent_process() is not None
    store = IndexStore(0 if in_worker else index_limit_bytes(), index_path())
    if not in_worker:
        atexit.register(store.close)
    return store


os.register_at_fork(after_in_child=process_indexes.cache_clear)
