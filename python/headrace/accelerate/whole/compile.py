"""Compile a recognised loader for the native engine: table of files, pipeline, value table."""

from __future__ import annotations

import atexit
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace._native import DrawPlan, Store, Table
from headrace.accelerate.runtime.data_map import mapped
from headrace.accelerate.runtime.engine import index_limit_bytes
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script_code.deep_copies import are_unchangeable
from headrace.accelerate.transforms.draws import FIXED, Draw, Erasing
from headrace.accelerate.transforms.pointwise import ValueTable
from headrace.accelerate.transforms.translate import NativeTransform, TransformParts
from headrace.accelerate.whole.folders import FolderDataset, RecognisedLoader
from headrace.accelerate.workers.settings import current_folder
from headrace.errors import UsageError
from headrace.loading.feeding.jpeg_index_cache import index_file
from headrace.transforms.base import Transform
from headrace.transforms.compile import Pipeline, compile_pipeline
from headrace.transforms.composition import Compose, RandomApply
from headrace.transforms.native_operations import NATIVE_TRANSFORMS

__all__ = [
    "CompiledLoader",
    "CompiledView",
    "compile_loader",
    "compile_view",
    "transform_of",
]

#: Most tables of files to keep for the next epoch. More take more memory.
MOST_TABLES = 8


@dataclass(frozen=True, slots=True)
class CompiledLoader:
    """Everything from which the native engine makes the batches of a loader over folders of images.

    `samples`: for each folder dataset, a copy of its samples: the paths of the table, and their targets.
    """

    recognition: RecognisedLoader
    view: CompiledView
    table: Table
    threads: int
    samples: tuple[list[Any], ...]

    @property
    def views(self) -> tuple[CompiledView, ...]:
        """How each image tensor of an item is made: a tuple of one, as an item of a folder has one image."""
        return (self.view,)


def compile_loader(recognition: RecognisedLoader, threads: int) -> CompiledLoader:
    """Compile a recognised loader. Raise `Unsupported` if the native engine cannot apply its transforms."""
    view = compile_view(recognition.transform, recognition.value_table)
    copies, table = _table(recognition.folders)
    return CompiledLoader(recognition, view, table, threads, tuple(copies))


@dataclass(frozen=True, slots=True)
class CompiledView:
    """Everything from which the native engine makes one image tensor of an item.

    `draws`: how the random numbers of each operation are drawn. `erasings`: what erases parts of the finished tensors.
    """

    pipeline: Pipeline
    store: Store
    dtype: torch.dtype
    draws: tuple[Draw, ...]
    erasings: tuple[Erasing, ...]

    @property
    def is_random(self) -> bool:
        """Whether making the tensor draws random numbers."""
        return bool(self.erasings) or any(draw != FIXED for draw in self.draws)

    def draw_plan(self, ranges: list[tuple[float, float]]) -> DrawPlan:
        """Return the order of random draws for the native engine.

        `ranges`: bounds of the logarithms (of aspect ratios) that are drawn so far; those of this view are appended.
        """

        def number_of(logarithms: tuple[float, float]) -> int:
            if logarithms not in ranges:
                ranges.append(logarithms)
            return ranges.index(logarithms)

        draws = [
            (name, (float(number_of((numbers[0], numbers[1]))),) if name == "torch_crop" else numbers)
            for name, numbers in self.draws
        ]
        erasings = [
            (one.decision, one.scale, number_of(one.logarithms), _value_bytes(one.value, self.dtype)) for one in self.erasings
        ]
        return DrawPlan(draws, erasings)


def _value_bytes(value: tuple[float, ...], dtype: torch.dtype) -> list[bytes]:
    """Return the bytes of the value of each channel, after torch's own conversion."""
    stored = torch.empty((3, 1), dtype=dtype)
    stored[...] = torch.tensor(value)[:, None]
    return [bytes(row.tolist()) for row in stored.view(torch.uint8)]


def compile_view(parts: TransformParts, values: ValueTable) -> CompiledView:
    """Compile a translated transform and its value table. Raise `Unsupported` if the native engine cannot apply them."""
    table = None if values.identity else values.values.to(torch.float32).numpy()
    try:
        steps = [transform_of(step) for step in parts.geometry]
        dtype: Any = str(values.dtype).removeprefix("torch.")
        # Without fusing, so that each pixel is that of one operation after the other. Pillow clips gray of 16 bits.
        pipeline = compile_pipeline(Compose(steps), dtype=dtype, layout="chw", table=table, fuse="off", depth="clip")
    except UsageError as error:
        raise Unsupported(str(error)) from error
    view = CompiledView(pipeline, pipeline.store(), values.dtype, tuple(_draws(parts.geometry)), parts.erasings)
    if view.is_random and torch.get_default_dtype() != torch.float32:
        raise Unsupported("torch's default dtype is not float32", "the default dtype")
    return view


def _draws(steps: Sequence[NativeTransform]) -> Iterator[Draw]:
    """Yield the draw of each operation, in the order of `native_operations`."""
    for step in steps:
        yield step.draw
        yield from _draws(step.arguments.get("transforms", ()))


def transform_of(step: NativeTransform) -> Transform:
    """Build the transform of `headrace.transforms` from a translated step. Raise `UsageError` if it rejects an argument."""
    if step.name == "RandomApply":
        return RandomApply([transform_of(inner) for inner in step.arguments["transforms"]], step.arguments["p"])
    return NATIVE_TRANSFORMS[step.name](**step.arguments)


_tables: dict[tuple[Any, ...], tuple[list[list[Any]], Table]] = {}


def _table(folders: Sequence[FolderDataset]) -> tuple[list[list[Any]], Table]:
    """Return copies of the lists of samples, and the table of all their files.

    Both are kept for the next epoch, unless the script has changed a list of samples. The lists are compared with the copies,
    pair by pair by identity: about 20 ns a sample. Raise `Unsupported` for samples that can be changed in place.
    """
    current = current_folder() or ""  # a relative path is another file in another folder
    key: tuple[Any, ...] = (current, *(id(folder.samples) for folder in folders))
    cached = _tables.get(key)
    if cached is not None and all(_are_same(copy, folder.samples) for copy, folder in zip(cached[0], folders, strict=True)):
        return cached
    copies = [list(folder.samples) for folder in folders]
    if not all(type(folder.samples) is list and are_unchangeable(copy) for copy, folder in zip(copies, folders, strict=True)):
        raise Unsupported("its samples are objects that can be changed", "a list of tuples of a path and a number", kind="code")
    files = [os.path.join(current, mapped(os.fspath(sample[0]))) for copy in copies for sample in copy]  # noqa: PTH118 -- fast
    count = len(files)
    offsets, sizes = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    numbers = np.arange(count, dtype=np.int32)
    table = Table(files, numbers, offsets, sizes, index_limit_bytes(), index_file(files, numbers, offsets, sizes))
    while len(_tables) >= MOST_TABLES:
        _tables.pop(next(iter(_tables)))
    _tables[key] = (copies, table)
    return copies, table


def _are_same(copy: list[Any], samples: Sequence[Any]) -> bool:
    return len(copy) == len(samples) and all(map(operator.is_, copy, samples))


def _forget_tables() -> None:
    """Abandon the tables in a forked child: threads that do not exist there may have held their locks."""
    for _, table in _tables.values():
        table.abandon()
    _tables.clear()


def _flush_indexes() -> None:
    """Write the JPEG indexes that were built, for later runs."""
    for _, table in _tables.values():
        table.flush_indexes()


os.register_at_fork(after_in_child=_forget_tables)
atexit.register(_flush_indexes)
