"""A batch of a worker with deferred tensors, on its way to the training process.

The worker packs the batch (`packed`): descriptions in place of values, and all else pickled as ever. The training process
opens it (`DescribedBatch.open`), lets native threads fill the tensors, and then makes the batch (`PendingBatch.finish`).

A file is named by its path where it is an ordinary file of a local disk that has not changed since the loader began. Otherwise
its bytes go along in shared memory: a file may be gone, or slow to read, a second time.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
import weakref
from collections.abc import Callable, MutableMapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from headrace._native import IndexStore, Job
from headrace.accelerate import deferred_values
from headrace.accelerate.deferred_filling import Filling, compute, layout_of
from headrace.accelerate.deferred_tensor import DeferredTensor, DescribedImage, Part, is_deferred, real
from headrace.accelerate.image_description import ImageDescription, JpegSource, file_identity
from headrace.system.disk import file_system

__all__ = ["DescribedBatch", "PendingBatch", "Target", "computed", "packed"]

LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
"""On these, reading a file a second time costs little: its pages are in memory."""

MOST_TENSORS = 0.5
"""Compute a tensor in the worker if more than this share of its blocks is computed already."""

SAMPLED_IMAGES = 4
"""Measure what a batch costs the training process by so many of its images."""

Memory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes a contiguous tensor of a shape and type for a batch."""

Target = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, list[Any], torch.Tensor | None, type]
"""Shape, strides and type of a deferred tensor; its blocks, each (number of the source, geometry, number of the values) or the
number of a computed block; the computed blocks; and its class."""


class _Pickler(ForkingPickler):
    """A pickler that sets tensors aside, in the order in which it meets them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a tensor. None: the object is pickled."""
        if not isinstance(obj, torch.Tensor):
            return None
        number, _ = self.tensors.setdefault(id(obj), (len(self.tensors), obj))
        return int(number)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, pid: int) -> Any:
        """Return the tensor of a number."""
        return self._tensors[pid]


class DescribedBatch:
    """A packed batch. It can be pickled.

    `data`: the pickled batch without its tensors. `tensors`: these, each a tensor or a `Target`. `sources`: path and identity
    of a file, or start and end in `encoded`, each. `values`: the tables of the targets.
    """

    __slots__ = ("data", "encoded", "sources", "tensors", "values")

    def __init__(
        self, data: bytes, tensors: list[Any], sources: list[Any], values: list[Any], encoded: torch.Tensor | None
    ) -> None:
        self.data = data
        self.tensors = tensors
        self.sources = sources
        self.values = values
        self.encoded = encoded

    def __reduce__(self) -> tuple[Any, ...]:
        return DescribedBatch, (self.data, self.tensors, self.sources, self.values, self.encoded)

    def open(self, engine: Any, memory: Memory, indexes: IndexStore | None = None) -> PendingBatch:
        """Let native threads fill the tensors of the batch."""
        blocks_of = self._parts()
        filling = Filling()
        tensors = []
        for one in self.tensors:
            if isinstance(one, torch.Tensor):
                tensors.append(one)
                continue
            shape, strides, dtype, blocks, computed, kind = one
            tensor = memory(shape, dtype)
            if tensor.stride() != strides:
                tensor = tensor.as_strided(shape, strides)
            if not filling.add(blocks_of(blocks, computed), tensor):
                raise RuntimeError(f"a deferred tensor {shape} of strides {strides} and type {dtype} has no native form")
            tensors.append(tensor if kind is torch.Tensor else tensor.as_subclass(kind))
        return PendingBatch(self.data, tensors, filling, filling.start(engine, indexes))

    def _parts(self) -> Callable[[list[Any], torch.Tensor | None], tuple[Part, ...]]:
        """Return what makes the parts of a target from its blocks and its computed blocks."""
        encoded = memoryview(self.encoded.numpy()) if self.encoded is not None else memoryview(b"")
        sources = [
            JpegSource(None, *source) if isinstance(source[0], str) else JpegSource(encoded[source[0] : source[1]])  # type: ignore[arg-type]
            for source in self.sources
        ]
        values = [deferred_values.from_bytes(*one) for one in self.values]

        def parts(blocks: list[Any], computed: torch.Tensor | None) -> tuple[Part, ...]:
            return tuple(
                computed[block]  # type: ignore[index]
                if isinstance(block, int)
                else DescribedImage(ImageDescription(sources[block[0]], *block[1]), values[block[2]])
                for block in blocks
            )

        return parts

    def cost_s(self) -> float:
        """Return the CPU time in seconds that computing the batch takes, from that of its first images."""
        blocks_of, spent_s = self._parts(), 0.0
        for shape, _, dtype, blocks, *_ in (one for one in self.tensors if not isinstance(one, torch.Tensor)):
            described = [block for block in blocks if not isinstance(block, int)]
            sample = described[:SAMPLED_IMAGES]
            began_s = time.process_time()
            compute(blocks_of(sample, None), torch.empty((len(sample), *shape[-3:]), dtype=dtype), comparing=False)
            spent_s += (time.process_time() - began_s) * len(described) / max(1, len(sample))
        return spent_s


class PendingBatch:
    """A batch whose tensors are being filled."""

    def __init__(self, data: bytes, tensors: list[Any], filling: Filling, job: Job | None) -> None:
        self._data = data
        self._tensors = tensors
        self._filling = filling
        self._job = job
        _pending.add(self)

    def finish(self) -> Any:
        """Wait for the native threads and return the batch. Raises what Pillow raises for an image."""
        if self._job is not None:
            while not self._job.wait(None):
                pass
            self._filling.finish(self._job.statuses())
        return _Unpickler(self._data, self._tensors).load()

    def is_filled(self) -> bool:
        """Return whether `finish` need not wait."""
        return self._job is None or self._job.wait(0)


_pending: weakref.WeakSet[PendingBatch] = weakref.WeakSet()
_left_to_the_parent: list[Any] = []


def _leave_batches_to_the_parent() -> None:
    """Keep unfinished jobs for ever in a forked child: ending one would wait for threads that only the parent has."""
    _left_to_the_parent.extend(batch._job for batch in _pending)


os.register_at_fork(after_in_child=_leave_batches_to_the_parent)


def packed(batch: Any, began_ns: int) -> Any:
    """Return what a worker hands over for a batch: a `DescribedBatch`, or the batch itself if nothing is deferred.

    `began_ns`: the time at which the loader began, in ns since 1970. Files that are not older go along as bytes.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(batch)
    except Exception:
        return batch  # torch reports it when it pickles the batch
    found = [tensor for _, tensor in pickler.tensors.values()]
    if not any(issubclass(type(tensor), DeferredTensor) for tensor in found):
        return batch
    packing = _Packing(began_ns)
    tensors = [packing.target(tensor) if is_deferred(tensor) else real(tensor) for tensor in found]
    return DescribedBatch(file.getvalue(), tensors, packing.sources, packing.values, packing.encoded())


def computed(value: Any, depth: int = 4) -> Any:
    """Return a batch with the computed tensor in place of each deferred one, in containers and in attributes of objects.

    Lazy images in it become ordinary ones.

    A container that can be changed is changed. What lies deeper than `depth` stays deferred until it is used.
    """
    kind = type(value)
    if issubclass(kind, DeferredTensor):
        return real(value)
    if depth == 0 or isinstance(value, torch.Tensor | str | bytes):
        return value
    lazy_pillow = sys.modules.get("headrace.accelerate.lazy_pillow")
    if lazy_pillow is not None and isinstance(value, lazy_pillow.Image.Image):
        return lazy_pillow.ordinary(value)
    if isinstance(value, tuple):
        found = [computed(one, depth - 1) for one in value]
        if all(one is other for one, other in zip(found, value, strict=True)):
            return value
        return kind(*found) if hasattr(value, "_fields") else kind(found)
    if kind is list or isinstance(value, MutableMapping):
        _compute_entries(value, list(enumerate(value) if kind is list else value.items()), depth)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        _compute_entries(value.__dict__, list(value.__dict__.items()), depth)
    return value


def _compute_entries(container: Any, entries: list[tuple[Any, Any]], depth: int) -> None:
    for key, one in entries:
        found = computed(one, depth - 1)
        if found is not one:
            container[key] = found


class _Packing:
    """The sources and values of the targets of one batch."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._bytes: list[Any] = []
        self._length = 0
        self.sources: list[Any] = []
        self.values: list[Any] = []

    def target(self, tensor: DeferredTensor) -> Any:
        """Return the target of a deferred tensor. The computed tensor, if native code would not write it."""
        state = tensor.__dict__["_state"]
        parts, shape, strides = state.parts, state.shape, state.strides
        computed = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(computed) > MOST_TENSORS * len(parts) or not _is_native(parts, shape, strides):
            return real(tensor)
        blocks: list[Any] = []
        number = 0
        for part in parts:
            if isinstance(part, torch.Tensor):
                blocks.append(number)
                number += 1
            else:
                source, *place = part.description
                blocks.append((self._source(source), tuple(place), self._values(part.values)))
        together = torch.stack(computed) if computed else None
        return shape, strides, state.dtype, blocks, together, type(tensor)._plain

    def _source(self, source: JpegSource) -> int:
        number = self._numbers.get(id(source))
        if number is None:
            number = self._numbers[id(source)] = len(self.sources)
            self._kept.append(source)
            if _is_old_local_file(source, self._began_ns):
                self.sources.append((source.path, source.identity))
            else:
                data = source.data
                self.sources.append((self._length, self._length + len(data)))
                self._bytes.append(data)
                self._length += len(data)
        return number

    def _values(self, values: deferred_values.Values) -> int:
        number = self._numbers.get(id(values))
        if number is None:
            number = self._numbers[id(values)] = len(self.values)
            self._kept.append(values)
            self.values.append(values.to_bytes())
        return number

    def encoded(self) -> torch.Tensor | None:
        """Return the bytes of all sources that are not named by a path, in shared memory."""
        if not self._length:
            return None
        shared = torch.empty(self._length, dtype=torch.uint8).share_memory_()
        memory = memoryview(shared.numpy())
        at = 0
        for data in self._bytes:
            memory[at : at + len(data)] = data
            at += len(data)
        return shared


def _is_native(parts: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether native code writes a tensor with these blocks and strides."""
    layout = layout_of(shape, strides)
    return layout is not None and all(
        part.values.store(layout) is not None for part in parts if not isinstance(part, torch.Tensor)
    )


def _is_old_local_file(source: JpegSource, began_ns: int) -> bool:
    if source.path is None:
        return False
    try:
        found = os.stat(source.path)  # noqa: PTH116 (runs for every image)
    except OSError:
        return False
    if file_identity(found) != source.identity or found.st_ctime_ns >= began_ns:
        return False
    return _is_local(found.st_dev, source.path)


_local: dict[int, bool] = {}


def _is_local(device: int, path: str) -> bool:
    if device not in _local:
        try:
            _local[device] = file_system(Path(path)) in LOCAL_FILE_SYSTEMS
        except (OSError, ValueError):
            _local[device] = False
    return _local[device]


ForkingPickler.register(DeferredTensor, lambda tensor: reduce_tensor(real(tensor)))
