"""Pass batches from a worker to the training process with their images undecoded.

Deferred tensor: a tensor of images that are not decoded yet (`deferred.tensor`). A worker puts a `HandedOver` into torch's
queue in place of its batch. The queue pickles it in its own thread, by the reducers of the script and of torch, with a number
in place of each deferred tensor. The training process gets a `DescribedBatch`: that pickle, and a description of each deferred
tensor; the encoded images are in shared memory (`shared_bytes`). It is opened as soon as it arrives (`DescribedBatch.open`):
native threads decode the images. It is unpickled in the thread in which torch would unpickle it (`PendingBatch.unpickled`).
"""

from __future__ import annotations

import gc
import io
import math
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from headrace._native import IndexStore, Job
from headrace.accelerate.deferred import values as deferred_values
from headrace.accelerate.deferred.filling import Filling, compute, layout_of, threads_for
from headrace.accelerate.deferred.shared_bytes import Place, SharedBytes, received
from headrace.accelerate.deferred.tensor import DeferredTensor, DescribedImage, Part, State, real
from headrace.accelerate.lazy.image_description import Encoded, ImageDescription
from headrace.accelerate.runtime.batch_memory import as_made_now
from headrace.accelerate.runtime.shared_indexes import process_indexes
from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = [
    "DescribedBatch",
    "HandedOver",
    "PendingBatch",
    "Target",
    "computed",
    "cost_s",
    "new_memory",
    "packed",
    "reduced_by_torch",
]

MOST_TENSORS = 0.5
"""The worker decodes a whole tensor if more than this share of its images is decoded already."""

HEAD_BYTES = 32
"""Send an image encoded if it is at most this many bytes larger than its tensor: the header of a PPM file."""

SAMPLED_IMAGES = 16
"""Decode this many images of a batch to estimate the CPU time that decoding all of them takes in the training process."""

MOST_OBJECTS = 100_000
"""Search at most this many objects of a batch for deferred tensors, to estimate the CPU time of decoding them (`cost_s`)."""

Memory = Callable[[list[tuple[tuple[int, ...], torch.dtype]]], list[torch.Tensor]]
"""Function that allocates contiguous tensors for a batch, given the shape and dtype of each."""

Target = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, list[Any], torch.Tensor | None]
"""One tensor that native threads fill: shape, strides and dtype; its images, each (number of the encoded bytes, geometry,
number of the value table), or the number of an image that is decoded already; and the decoded images.
"""


class HandedOver:
    """A worker's batch in torch's queue; it pickles as a `DescribedBatch`. `shared`: memory for encoded images."""

    def __init__(self, batch: Any, shared: SharedBytes, worker: int) -> None:
        self.batch = batch
        self.shared = shared
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return packed(self.batch, self.shared, self.worker).__reduce__()
        except BaseException as error:  # the script's own, which torch's queue prints
            drop_own_frames(error)
            raise


class _SetAside:
    """Pickler hook that replaces the deferred tensors of a batch by numbers, and keeps them in order.

    It does not know the pickler: that holds the whole batch, which must be gone as soon as it is pickled.
    """

    def __init__(self) -> None:
        self.states: list[State] = []
        self._numbers: dict[int, int] = {}

    def pickled(self, batch: Any) -> bytes:
        """Return the pickle of a batch as torch's queue would make it, with a number in place of each deferred tensor."""
        file = io.BytesIO()
        pickler = ForkingPickler(file)
        kinds = (DeferredTensor, *DeferredTensor.__subclasses__())
        pickler.dispatch_table.update(dict.fromkeys(kinds, self._reduced))
        pickler.dump(batch)
        return file.getvalue()

    def _reduced(self, tensor: DeferredTensor) -> tuple[Any, ...]:
        is_torchs_own = ForkingPickler._extra_reducers.get(torch.Tensor) is reduce_tensor  # type: ignore[attr-defined]
        state: State = tensor.__dict__["_state"]
        if state.tensor is not None or len(tensor.__dict__) > 1 or not is_torchs_own:  # more: attributes of the script
            return reduced_by_torch(tensor)
        number = self._numbers.setdefault(id(state), len(self.states))
        if number == len(self.states):
            self.states.append(state)
        kind = type(tensor)._plain
        return _filled, (number,) if kind is torch.Tensor else (number, kind)


def reduced_by_torch(tensor: DeferredTensor) -> tuple[Any, ...]:
    """Return the reduced form (`__reduce__`) in which torch's queue pickles the plain tensor with the same values."""
    plain = real(tensor)
    reducer = ForkingPickler._extra_reducers.get(type(plain))  # type: ignore[attr-defined]
    return reducer(plain) if reducer is not None else plain.__reduce_ex__(2)  # type: ignore[no-any-return]


_opened = threading.local()


def _filled(number: int, kind: type = torch.Tensor) -> torch.Tensor:
    """Return tensor `number` of the batch that is being unpickled; from the second call on, a new tensor over its memory.

    It is an inference tensor where the loop is in inference mode. The thread that allocated its memory never is.
    """
    tensor = as_made_now(_opened.tensors[number])
    if number in _opened.seen:
        tensor = torch.empty(0, dtype=tensor.dtype).set_(tensor)
    _opened.seen.add(number)
    return tensor if kind is torch.Tensor else tensor.as_subclass(kind)


class DescribedBatch:
    """A batch as it crosses the process boundary: pickled, with encoded images in shared memory in place of decoded tensors.

    `data`: the pickled batch without its deferred tensors. `tensors`: these, each as a `Target` or decoded. `sources`: begin
    and end of each encoded image at `place` (None: all tensors are decoded). `values`: the value tables.
    """

    __slots__ = ("data", "place", "sources", "tensors", "values")

    def __init__(
        self, data: bytes, tensors: list[Any], sources: list[tuple[int, int]], values: list[Any], place: Place | None
    ) -> None:
        self.data = data
        self.tensors = tensors
        self.sources = sources
        self.values = values
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return DescribedBatch, (self.data, self.tensors, self.sources, self.values, self.place)

    def open(self, engine: Any | None, memory: Memory, indexes: IndexStore | None = None) -> PendingBatch:
        """Start native threads that decode the images into new tensors. Without an `engine` they are decoded in this call."""
        blocks_of = self._parts()
        filling = Filling()
        tensors = []
        own = iter(memory([(one[0], one[2]) for one in self.tensors if not isinstance(one, torch.Tensor)]))
        for one in self.tensors:
            if isinstance(one, torch.Tensor):
                tensors.append(one)
                continue
            shape, strides, dtype, blocks, computed = one
            tensor = next(own)
            if tensor.stride() != strides:
                tensor = tensor.as_strided(shape, strides)
            if not filling.add(blocks_of(blocks, computed), tensor):
                raise RuntimeError(f"a deferred tensor {shape} of strides {strides} and type {dtype} has no native form")
            tensors.append(tensor)
        if engine is None:
            filling.run(threads_for(len(self.sources)), indexes)
            return PendingBatch(self.data, tensors, filling, None)
        return PendingBatch(self.data, tensors, filling, filling.start(engine, indexes))

    def _parts(self) -> Callable[[list[Any], torch.Tensor | None], tuple[Part, ...]]:
        """Return the function that lists the images of a target, decoded or not."""
        encoded = received(self.place) if self.place is not None else memoryview(b"")
        sources = [encoded[start:end] for start, end in self.sources]
        values = [deferred_values.from_bytes(*one) for one in self.values]

        def parts(blocks: list[Any], computed: torch.Tensor | None) -> tuple[Part, ...]:
            return tuple(
                computed[block]  # type: ignore[index]
                if isinstance(block, int)
                else DescribedImage(ImageDescription(sources[block[0]], *block[1]), values[block[2]])
                for block in blocks
            )

        return parts

    def pin_memory(self) -> Any:
        """Return the complete batch in pinned memory. Called by torch's pinning thread if it reads the queue itself."""
        batch = self.open(None, new_memory, process_indexes()).unpickled()
        return torch.utils.data._utils.pin_memory.pin_memory(batch)


def new_memory(wanted: list[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
    """Allocate contiguous tensors of these shapes and dtypes, each by itself."""
    return [torch.empty(shape, dtype=dtype) for shape, dtype in wanted]


class PendingBatch:
    """A batch that native threads are decoding. `filled_bytes`: size of its tensors."""

    def __init__(self, data: bytes, tensors: list[Any], filling: Filling, job: Job | None) -> None:
        self.filled_bytes = sum(tensor.nbytes for tensor in tensors)
        self._data = data
        self._tensors = tensors
        self._filling = filling
        self._job = job
        _pending.add(self)

    def wait(self) -> None:
        """Wait for the native threads. If a worker has died, torch's signal handler raises its error here."""
        while self._job is not None and not self._job.wait(None):
            pass

    def fill(self) -> None:
        """Decode by Pillow what native threads could not. Call after `wait`. Raises what Pillow raises for an image."""
        if self._job is not None:
            self._filling.finish(self._job.statuses())

    def unpickled(self) -> Any:
        """Return the batch as the script gets it. Call after `fill`. Unpickling may run code of the script's classes."""
        before = dict(vars(_opened))
        _opened.tensors, _opened.seen = self._tensors, set()
        try:
            return ForkingPickler.loads(self._data)
        finally:
            vars(_opened).clear()
            vars(_opened).update(before)

    def is_filled(self) -> bool:
        """Return whether all images are decoded, so that `wait` returns at once."""
        return self._job is None or self._job.wait(0)


_pending: weakref.WeakSet[PendingBatch] = weakref.WeakSet()
_left_to_the_parent: list[Any] = []


def _leave_batches_to_the_parent() -> None:
    """Keep unfinished jobs alive in a forked child: ending one would wait for threads that only the parent has."""
    _left_to_the_parent.extend(batch._job for batch in _pending)


os.register_at_fork(after_in_child=_leave_batches_to_the_parent)


def packed(batch: Any, shared: SharedBytes, worker: int) -> DescribedBatch:
    """Return a worker's batch as a `DescribedBatch`. Raises what pickling the batch raises."""
    aside, packing = _SetAside(), _Packing()
    data = aside.pickled(batch)
    tensors = [packing.target(state) for state in aside.states]
    place = shared.put(worker, packing.sources) if packing.sources else None
    if packing.sources and place is None:
        packing, tensors = _Packing(), [state.computed() for state in aside.states]
    return DescribedBatch(data, tensors, packing.extents, packing.values, place)


def cost_s(batch: Any) -> float:
    """Estimate the CPU time in seconds to decode the deferred tensors of a batch, from a sample of its images."""
    images = [part for state in _states_in(batch) for part in state.parts if not isinstance(part, torch.Tensor)]
    sample = images[:: -(-len(images) // SAMPLED_IMAGES)] if images else []
    began_s = time.process_time()
    for image in sample:
        height, width = image.description.height, image.description.width
        compute((image,), torch.empty((1, 3, height, width), dtype=image.values.dtype), comparing=False)
    return (time.process_time() - began_s) * len(images) / max(1, len(sample))


def _states_in(batch: Any) -> Iterator[State]:
    """Find the deferred tensors of a batch without calling code of the script."""
    left: list[Any] = [batch]
    seen: set[int] = set()
    while left and len(seen) < MOST_OBJECTS:
        one = left.pop()
        kind = type(one)
        if id(one) in seen or issubclass(kind, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(one))
        if issubclass(kind, DeferredTensor):
            if (state := one.__dict__["_state"]).tensor is None:
                yield state
        elif not issubclass(kind, torch.Tensor):
            left += gc.get_referents(one)


def computed(value: Any, depth: int = 4) -> Any:
    """Return a batch with deferred tensors and lazy images replaced by ordinary ones, in containers and attributes.

    Containers that can be changed are changed in place. Tensors nested deeper than `depth` levels are computed when they are
    used.
    """
    kind = type(value)
    if issubclass(kind, DeferredTensor):
        return real(value)
    if depth == 0 or isinstance(value, torch.Tensor | str | bytes):
        return value
    lazy_pillow = sys.modules.get("headrace.accelerate.lazy.pillow")
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
    """Collects the encoded images and value tables of one batch. `extents`: begin and end of each image among all bytes."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._length = 0
        self.sources: list[Encoded] = []
        self.extents: list[tuple[int, int]] = []
        self._values: list[deferred_values.Values] = []

    @property
    def values(self) -> list[Any]:
        """The value tables of the batch, each as (dtype, bytes): what `deferred.values.from_bytes` takes."""
        return [values.to_bytes() for values in self._values]

    def target(self, state: State) -> Target | torch.Tensor:
        """Return a deferred tensor as a `Target`, for native threads of the training process.

        Return the computed tensor instead if native code cannot write it, or if its encoded images are larger than the tensor.
        """
        parts, shape, strides = state.parts, state.shape, state.strides
        if state.tensor is not None:  # the script has looked at it meanwhile
            return state.tensor
        computed = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(computed) > MOST_TENSORS * len(parts) or not _is_native(parts, shape, strides):
            return state.computed()
        new = {id(source): len(source) for source in _sources(parts) if id(source) not in self._numbers}
        if sum(new.values()) > math.prod(shape) * state.dtype.itemsize + HEAD_BYTES * len(parts):
            return state.computed()
        blocks: list[Any] = []
        number = 0
        for part in parts:
            if isinstance(part, torch.Tensor):
                blocks.append(number)
                number += 1
            else:
                source, *place = part.description
                blocks.append((self._source(source), tuple(place), self._number(part.values)))
        return shape, strides, state.dtype, blocks, torch.stack(computed) if computed else None

    def _source(self, source: Encoded) -> int:
        number = self._numbers.setdefault(id(source), len(self.sources))
        if number == len(self.sources):
            self.sources.append(source)
            self.extents.append((self._length, self._length + len(source)))
            self._length += len(source)
        return number

    def _number(self, values: deferred_values.Values) -> int:
        number = self._numbers.setdefault(id(values), len(self._values))
        if number == len(self._values):
            self._values.append(values)
        return number


def _sources(parts: Any) -> Iterator[Encoded]:
    return (part.description.source for part in parts if not isinstance(part, torch.Tensor))


def _is_native(parts: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether native code can write a tensor of these images, shape and strides."""
    layout = layout_of(shape, strides)
    return layout is not None and all(
        part.values.store(layout) is not None for part in parts if not isinstance(part, torch.Tensor)
    )


ForkingPickler.register(DeferredTensor, reduced_by_torch)
