"""A recognised loader's work, compiled for the native engine: table of records, program, value table, threads."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace._native import Engine, Store, Table
from headrace.accelerate.recognise import Folder, Recognition
from headrace.accelerate.translate import Refused
from headrace.errors import UsageError
from headrace.loading.feed import INDEX_BYTES
from headrace.loading.jpeg_index_cache import index_file
from headrace.system.machine import memory
from headrace.transforms.compile import Pipeline, compile_pipeline
from headrace.transforms.composition import Compose
from headrace.transforms.native_operations import NATIVE_TRANSFORMS

__all__ = ["Work", "compile_work", "engine"]

#: Output types that the native side writes, and their names in a `Pipeline`.
DTYPES = {
    torch.uint8: "uint8",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}

#: How many folders' tables are kept for the next epoch.
KEPT_TABLES = 8


@dataclass(frozen=True, slots=True)
class Work:
    """What the native engine needs to fill this loader's batches."""

    recognition: Recognition
    pipeline: Pipeline
    store: Store
    table: Table
    threads: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the batch."""
        return self.recognition.table.dtype

    def image_bytes(self) -> int:
        """Bytes of one finished image."""
        return self.pipeline.image_bytes()


def compile_work(recognition: Recognition, threads: int) -> Work:
    """Compiles; raises `Refused` where the native engine cannot do it."""
    values = recognition.table
    if recognition.pack == "timm" and not values.identity:
        raise Refused("timm's fast_collate of values that are not uint8 pixels")
    if values.dtype not in DTYPES or (values.dtype == torch.uint8 and not values.identity):
        raise Refused(f"its transform yields {values.dtype} values that are not stored natively")
    table = None if values.identity else values.values.to(torch.float32).numpy()
    try:
        steps = [NATIVE_TRANSFORMS[step.name](**step.arguments) for step in recognition.expressed.geometry]
        dtype: Any = DTYPES[values.dtype]
        # Op by op, as the script does: nothing but the random draws may change.
        pipeline = compile_pipeline(Compose(steps), dtype=dtype, layout="chw", table=table, fuse="off")
    except UsageError as error:
        raise Refused(str(error)) from error
    return Work(recognition, pipeline, pipeline.store(), _table(recognition.folders), threads)


_tables: dict[tuple[int, ...], tuple[list[list[Any]], Table]] = {}


def _table(folders: Sequence[Folder]) -> Table:
    """The records of all folders. Kept for the next epoch, and made anew if a script changed its list of samples.

    The comparison with the kept copy is by identity of the pairs, about 10 ns each.
    """
    key = tuple(id(folder.samples) for folder in folders)
    kept = _tables.get(key)
    if kept is not None and all(copy == folder.samples for copy, folder in zip(kept[0], folders, strict=True)):
        return kept[1]
    copies = [list(folder.samples) for folder in folders]
    files = [os.fspath(sample[0]) for copy in copies for sample in copy]
    count = len(files)
    offsets, sizes = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    numbers = np.arange(count, dtype=np.int32)
    table = Table(files, numbers, offsets, sizes, index_limit_bytes(), index_file(files, numbers, offsets, sizes))
    while len(_tables) >= KEPT_TABLES:
        _tables.pop(next(iter(_tables)))
    _tables[key] = (copies, table)
    return table


def index_limit_bytes() -> int:
    """Memory for the checkpoint indexes with which a JPEG decodes faster from its second time on: at most `feed.INDEX_BYTES`
    and a sixteenth of what this process may hold, shared by the processes of this job on this host."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    processes = int(local) if local.isdigit() and int(local) > 0 else 1
    return min(INDEX_BYTES, memory().usable_bytes // 16) // processes


_engines: dict[int, Engine] = {}


def engine(threads: int) -> Engine:
    """This process's pool of `threads` native threads, shared by its loaders; idle threads cost nothing."""
    if threads not in _engines:
        _engines[threads] = Engine(threads)
    return _engines[threads]


def _forget_engines() -> None:
    """In a forked child the threads do not exist: let go of the pools without joining anything, and of tables whose locks the
    threads may hold."""
    for pool in _engines.values():
        pool.abandon()
    _engines.clear()
    for _, table in _tables.values():
        table.abandon()
    _tables.clear()


def _flush_indexes() -> None:
    """Writes down what was learned of the files, for later runs."""
    for _, table in _tables.values():
        table.flush_indexes()


os.register_at_fork(after_in_child=_forget_engines)
atexit.register(_flush_indexes)
