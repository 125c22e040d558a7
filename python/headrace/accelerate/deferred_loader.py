"""Deferred items: lazy images whose tensors are not computed in the worker, but by native threads in the training process.

This goes on from lazy images (`lazy_loader`). A worker makes its items and its batch as the script does. Where nothing has
looked at a tensor of an image, its description crosses the queue. In the training process a thread takes the batches from
torch's queue as they arrive, as torch's own thread for pinned memory does, and gives them to native threads. The script's
iterator waits for the batch that it hands over.

Without workers, the batch is computed by native threads when it is complete.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from time import time_ns
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from headrace._native import IndexStore
from headrace.accelerate.batch_memory import batch_block, offer_free_blocks
from headrace.accelerate.compile import engine
from headrace.accelerate.deferred_batch import DescribedBatch, PendingBatch, computed, packed
from headrace.accelerate.iterator_watchers import looks_at_iterators
from headrace.accelerate.lazy_loader import with_lazy_images
from headrace.accelerate.native_decode import require_equal_lazy_images
from headrace.accelerate.partly_native import PartlyNative
from headrace.accelerate.shared_indexes import index_path, process_indexes, use_index_path
from headrace.accelerate.type_comparisons import compares_tensor_types
from headrace.system.machine import cores

__all__ = ["ComputedItems", "DeferredItems", "with_deferred_items"]

POLL_S = 5.0
"""A thread that waits for batches looks so often whether the loader has ended. A loader that ends wakes it at once."""


class DeferredItems:
    """What a worker does beyond lazy images (`lazy_loader.Extension`).

    `began_ns`: when the loader began, in ns since 1970. `indexes`: the file of JPEG indexes, or None.
    """

    def __init__(self, began_ns: int, indexes: Path | None) -> None:
        self.began_ns = began_ns
        self.indexes = indexes

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return the block in which a batch is made."""
        use_index_path(self.indexes)
        return _deferred_tensors()

    def finish(self, batch: Any) -> Any:
        """Return what the worker hands over."""
        return packed(batch, self.began_ns)

    def cost_s(self, batch: Any) -> float | None:
        """Return the CPU time in seconds that the batch takes in the training process."""
        return batch.cost_s() if isinstance(batch, DescribedBatch) else 0.0


class ComputedItems:
    """What a loader without workers does beyond lazy images (`lazy_loader.Extension`): native threads compute its batches."""

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return the block in which a batch is made."""
        return _deferred_tensors()

    def finish(self, batch: Any) -> Any:
        """Return the batch without deferred tensors."""
        return computed(batch)

    def cost_s(self, batch: Any) -> float | None:
        """Return None: the clock of this thread does not see what native threads do."""
        return None


def _deferred_tensors() -> contextlib.AbstractContextManager[Any]:
    if "PIL.Image" not in sys.modules:
        return contextlib.nullcontext()
    from headrace.accelerate.deferred_functions import deferred_tensors

    return deferred_tensors()


def with_deferred_items(loader: Any, images: int = 0) -> PartlyNative:
    """Return a copy of the DataLoader whose images are lazy, and whose tensors are computed by native threads.

    A script that compares `type(…)` with a class of tensors, or looks inside torch's iterators, gets lazy images only.
    `images`: compare so many images of a folder first; each process compares the first images that it makes. Raise
    `Unsupported` as `with_lazy_images` does.
    """
    if images and (equal := require_equal_lazy_images(loader, images)):
        changed = with_deferred_items(loader)
        return replace(changed, check=f"{equal}; {changed.check}")
    if compares_tensor_types() or looks_at_iterators():
        return with_lazy_images(loader, images)
    if loader.num_workers == 0:
        return with_lazy_images(loader, images, ComputedItems())
    _deferred_tensors()  # what this imports, the workers of each epoch need not
    changed = with_lazy_images(loader, images, DeferredItems(time_ns(), index_path()))
    return replace(changed, prepare=_receive_deferred)


def _receive_deferred(iterator: Any) -> Any:
    """Make the iterator of a loader with workers compute the batches that arrive."""
    threads = min(iterator._num_workers, max(1, int(cores().usable)))
    batches = 2 + iterator._num_workers * iterator._prefetch_factor
    receiver = _Receiver(engine(threads), process_indexes(), batches, pinned=iterator._pin_memory)
    arrived: queue.Queue[Any] = queue.Queue()
    ended = threading.Event()
    source = iterator._data_queue
    thread = _ReceivingThread(source, arrived, ended, receiver)
    iterator._data_queue = _Finishing(arrived, iterator._pin_memory_device if iterator._pin_memory else None)
    if iterator._pin_memory:  # torch's own thread for pinned memory passes descriptions on: this one is behind it
        weakref.finalize(iterator._data_queue, _end, ended, source)
    else:  # torch ends a thread of these names when it ends the workers, before it closes their queue
        iterator._pin_memory_thread, iterator._pin_memory_thread_done_event = thread, ended
    thread.start()
    return iterator


def _end(ended: threading.Event, source: Any) -> None:
    """End a thread, and wake it."""
    ended.set()
    source.put((None, None))


class _ReceivingThread(threading.Thread):
    """The thread that moves batches from torch's queue to another, and has them filled, until the loader ends."""

    def __init__(self, source: Any, target: queue.Queue[Any], ended: threading.Event, receiver: _Receiver) -> None:
        super().__init__(name="headrace-receive", daemon=True)
        self._source, self._target, self._ended, self._receiver = source, target, ended, receiver

    def run(self) -> None:
        """Receive until the loader ends, or until torch's queue raises an error, which is passed on."""
        try:
            self._receive()
        finally:
            offer_free_blocks()

    def _receive(self) -> None:
        while not self._ended.is_set():
            try:
                received = self._source.get(timeout=POLL_S)
            except queue.Empty:
                continue
            except Exception as error:
                self._target.put(error)
                return
            self._target.put(self._opened(*received))
            del received

    def _opened(self, number: Any, data: Any) -> tuple[Any, Any]:
        if isinstance(data, DescribedBatch) and not self._ended.is_set():
            try:
                data = self._receiver.open(data)
            except Exception:
                data = ExceptionWrapper(where="in headrace's thread that receives batches")
        return number, data

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread, unless it runs this itself: it may collect the garbage that holds the iterator."""
        if threading.current_thread() is not self:
            super().join(timeout)


class _Receiver:
    """What fills the batches of one loader: native threads, memory that is used again, JPEG indexes."""

    def __init__(self, pool: Any, indexes: IndexStore | None, batches: int, *, pinned: bool) -> None:
        self._pinned = pinned
        self._engine = pool
        self._indexes = indexes
        self._batches = batches

    def open(self, batch: DescribedBatch) -> PendingBatch:
        """Start to fill a batch."""
        return batch.open(self._engine, self._memory, self._indexes)

    def _memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor over memory that is used again when nobody refers to it."""
        if self._pinned:
            return _pinned_tensor(shape, dtype)  # torch keeps pinned memory, and waits for unfinished copies
        count = 1
        for side in shape:
            count *= side
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(batch_block(count * dtype.itemsize, self._batches), dtype=dtype, count=count).view(shape)


def _pinned_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class _Finishing:
    """The end of the queue that the script's iterator reads: batches in the order of their arrival, complete.

    It has the methods of `queue.Queue` that torch, and whoever watches the loader, call.
    """

    def __init__(self, arrived: queue.Queue[Any], pin_device: str | None) -> None:
        self._arrived = arrived
        self._pin_device = pin_device
        self._error: Exception | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the number and data of a batch, as torch's queue does, and raise its errors."""
        if self._error is not None:
            raise self._error
        found = self._arrived.get(block, timeout)
        if isinstance(found, Exception):
            self._error = found
            raise found
        number, data = found
        if isinstance(data, PendingBatch):
            try:
                data = data.finish()
                if self._pin_device is not None:
                    data = torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_device)
            except Exception:
                data = ExceptionWrapper(where="while headrace computed a batch")
        return number, data

    def empty(self) -> bool:
        """Return whether `get` would wait: no batch has arrived, or the next one is still being filled."""
        with self._arrived.mutex:
            first = self._arrived.queue[0] if self._arrived.queue else None
        if isinstance(first, tuple) and isinstance(first[1], PendingBatch):
            return not first[1].is_filled()
        return first is None

    def qsize(self) -> int:
        """Return the number of batches that arrived."""
        return self._arrived.qsize()
