"""The JPEG indexes that the training process and its workers share: an image decodes faster from the second time on."""

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
    """Return the file of indexes of this run, or None. Called in the training process; workers are given the path."""
    return _given[0] if _given else shared_index_file()


def use_index_path(path: Path | None) -> None:
    """Use the file of the training process in a worker."""
    if not _given:
        _given.append(path)
        index_path.cache_clear()
        process_indexes.cache_clear()


@functools.cache
def process_indexes() -> IndexStore:
    """Return the indexes of this process: in memory in the training process, only in the file in a worker."""
    in_worker = multiprocessing.parent_process() is not None
    store = IndexStore(0 if in_worker else index_limit_bytes(), index_path())
    if not in_worker:
        atexit.register(store.close)
    return store


os.register_at_fork(after_in_child=process_indexes.cache_clear)
