"""Take over a loader in part: its workers read the image files, and native threads of the training process decode them.

This extends lazy images (`lazy.loader`). A worker makes its items and its batch as the script does. Tensors of images whose
values nothing has read are sent undecoded, with their encoded bytes in shared memory. In the training process a thread takes
the batches from torch's queue as they arrive, and gives them to native threads. The script's iterator, or torch's thread for
pinned memory, then gets the batches from that thread: it waits until one is decoded, and unpickles it.

Without workers, native threads decode a batch when all of its items are made.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from headrace._native import IndexStore
from headrace.accelerate.deferred.batch import DescribedBatch, HandedOver, PendingBatch, computed, cost_s, new_memory
from headrace.accelerate.deferred.shared_bytes import SharedBytes
from headrace.accelerate.lazy.loader import trial_of, with_lazy_images
from headrace.accelerate.lazy.native_decode import require_equal_lazy_images
from headrace.accelerate.lazy.partly_native import PartlyNative
from headrace.accelerate.lazy.trial import Trial
from headrace.accelerate.runtime.batch_memory import batch_block, not_a_view, offer_free_blocks, similar_size
from headrace.accelerate.runtime.engine import engine
from headrace.accelerate.runtime.shared_indexes import index_path, process_indexes, use_index_path
from headrace.accelerate.script.replaced_functions import replaced_tool
from headrace.accelerate.script.tensor_bypasses import bypasses_subclasses
from headrace.accelerate.script.type_comparisons import compares_tensor_types, types_looked_at
from headrace.accelerate.whole.recognition import Recognition
from headrace.attach.record.unseen_frames import drop_own_frames
from headrace.system.hardware.machine import cores

__all__ = ["ComputedItems", "DeferredItems", "with_deferred_items"]

POLL_S = 5.0
"""Seconds after which a waiting thread checks again whether the loader has ended. The end of a loader also wakes it at once."""

ALIGNMENT = 64
"""Tensors that share a block of memory begin at multiples of this many bytes."""

BATCHES_AHEAD = 3
"""Decode at least this many batches ahead, and more while these take fewer than `BYTES_AHEAD` bytes. The rest stay encoded."""

BYTES_AHEAD = 128 << 20
"""Decode more than `BATCHES_AHEAD` batches ahead while the decoded ones take fewer bytes than this. More takes more memory."""


class DeferredItems:
    """What each worker adds to lazy images (`lazy.loader.Extension`): deferred tensors, and batches sent undecoded.

    `shared`: the memory for the encoded bytes of images. `indexes`: the file of JPEG indexes, or None.
    """

    def __init__(self, shared: SharedBytes, indexes: Path | None) -> None:
        self.shared = shared
        self.indexes = indexes

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager: while it is entered, tensors made from images stay undecoded."""
        use_index_path(self.indexes)
        return _deferred_tensors()

    def finish(self, batch: Any) -> Any:
        """Return the batch unchanged: its images are packed when torch's queue pickles it."""
        return batch

    def cost_s(self, batch: Any) -> float | None:
        """Return the CPU time in seconds that decoding the batch will take in the training process."""
        return cost_s(batch)

    def handed_over(self, batch: Any) -> Any:
        """Return what the worker puts in torch's queue for a batch: a `HandedOver`."""
        return HandedOver(batch, self.shared, torch.utils.data.get_worker_info().id)


class ComputedItems:
    """What a loader without workers adds to lazy images (`lazy.loader.Extension`): native threads decode complete batches."""

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager: while it is entered, tensors made from images stay undecoded."""
        return _deferred_tensors()

    def finish(self, batch: Any) -> Any:
        """Return the batch with its deferred tensors computed."""
        return computed(batch)

    def cost_s(self, batch: Any) -> float | None:
        """Return None: the CPU clock of this thread does not count the native threads."""
        return None

    def handed_over(self, batch: Any) -> Any:
        """Return the batch unchanged: without workers, it goes to no other process."""
        return batch


def _deferred_tensors() -> contextlib.AbstractContextManager[Any]:
    if "PIL.Image" not in sys.modules:
        return contextlib.nullcontext()
    from headrace.accelerate.deferred.functions import deferred_tensors

    return deferred_tensors()


def with_deferred_items(recognition: Recognition, images: int = 0) -> PartlyNative:
    """Return a copy of the DataLoader whose images are lazy, and whose tensors native threads compute in the training process.

    A script that compares `type(…)` with a tensor class, looks inside torch's iterators, replaces functions of torch, or uses
    tensors in calls that bypass tensor subclasses, gets lazy images only. `images`: compare so many images of a folder first;
    each process compares the first images that it makes. Raise `Unsupported` as `with_lazy_images` does.
    """
    loader = recognition.loader
    if images and (equal := require_equal_lazy_images(recognition, images)):
        changed = with_deferred_items(recognition)
        return replace(changed, check=f"{equal}; {changed.check}")
    compares_types = "tensor" in types_looked_at(loader) or compares_tensor_types()
    if compares_types or recognition.watchers or bypasses_subclasses(loader) or replaced_tool("torch"):
        return with_lazy_images(loader)
    if loader.num_workers == 0:
        return with_lazy_images(loader, ComputedItems())
    _deferred_tensors()  # what this imports, the workers of each epoch need not
    shared = SharedBytes(loader.num_workers, loader.prefetch_factor + 1)
    changed = with_lazy_images(loader, DeferredItems(shared, index_path()))
    return replace(changed, prepare=functools.partial(_receive_deferred, trial=trial_of(loader)))


def _receive_deferred(iterator: Any, trial: Trial) -> Any:
    """Make a loader's iterator decode the batches that arrive from workers. `trial`: records their cost in this process."""
    threads = min(iterator._num_workers, max(1, int(cores().usable)))
    batches = 2 + iterator._num_workers * iterator._prefetch_factor
    receiver = _Receiver(engine(threads), process_indexes(), batches, pinned=iterator._pin_memory)
    arrived: queue.Queue[Any] = queue.Queue()
    ahead = _Ahead()
    source = iterator._worker_result_queue
    finishing = _Finishing(arrived, ahead, trial)
    if iterator._pin_memory:  # torch's own thread for pinned memory reads from here, until this event
        ended = iterator._pin_memory_thread_done_event
        thread = _ReceivingThread(source.get, arrived, ended, receiver, ahead, trial)
        source.get = finishing.get
    else:  # torch ends a thread of these names when it ends the workers, before it closes their queue
        ended = _Ended(ahead)
        thread = _ReceivingThread(source.get, arrived, ended, receiver, ahead, trial)
        iterator._data_queue = finishing
        iterator._pin_memory_thread, iterator._pin_memory_thread_done_event = thread, ended
    thread.start()
    return iterator


class _ReceivingThread(threading.Thread):
    """The thread that takes batches from torch's queue and starts decoding them, until the loader ends."""

    def __init__(
        self,
        take: Callable[..., Any],
        target: queue.Queue[Any],
        ended: threading.Event,
        receiver: _Receiver,
        ahead: _Ahead,
        trial: Trial,
    ) -> None:
        super().__init__(name="headrace-receive", daemon=True)
        self._take, self._target, self._ended, self._receiver, self._ahead = take, target, ended, receiver, ahead
        self._trial = trial

    def run(self) -> None:
        """Take batches until the loader ends, or until torch's queue raises an error, which is passed on."""
        try:
            self._receive()
        finally:
            self._target.put((None, None))  # wakes torch's thread for pinned memory
            offer_free_blocks()

    def _receive(self) -> None:
        while not self._ended.is_set():
            begun_s = time.thread_time()
            try:
                number, data = self._take(timeout=POLL_S)
            except queue.Empty:
                continue
            except Exception as error:
                self._target.put(error)
                return
            lazy = isinstance(data, DescribedBatch)
            data = self._opened(data)
            self._trial.add_received(lazy=lazy, cpu_s=time.thread_time() - begun_s)
            self._target.put((number, data))
            del data

    def _opened(self, data: Any) -> Any:
        if not isinstance(data, DescribedBatch):
            return data
        self._ahead.wait_for_room(self._ended)
        if not self._ended.is_set():
            try:
                data = self._receiver.open(data)
                self._ahead.add(data, 1)
            except Exception:
                data = ExceptionWrapper(where="in headrace's thread that receives batches")
        return data

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread, unless this thread calls it: it may collect the garbage that holds the iterator."""
        if threading.current_thread() is not self:
            super().join(timeout)


class _Receiver:
    """Decodes the batches of one loader: native threads, reused memory, JPEG indexes."""

    def __init__(self, pool: Any, indexes: IndexStore | None, batches: int, *, pinned: bool) -> None:
        self._pinned = pinned
        self._engine = pool
        self._indexes = indexes
        self._batches = batches

    def open(self, batch: DescribedBatch) -> PendingBatch:
        """Start to decode a batch that arrived from a worker."""
        return batch.open(self._engine, self._memory, self._indexes)

    def _memory(self, wanted: list[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
        """Return tensors in one block of memory, which is reused when nothing refers to any of them."""
        if self._pinned:  # torch keeps pinned memory, and waits for unfinished copies
            return [_pinned_tensor(shape, dtype) for shape, dtype in wanted]
        starts = [0]
        for shape, dtype in wanted:
            starts.append(starts[-1] + -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT)
        if not starts[-1]:
            return new_memory(wanted)
        size = starts[-1] if len(wanted) == 1 else similar_size(starts[-1])
        block = batch_block(size, self._batches)
        return [
            not_a_view(torch.frombuffer(block, dtype=dtype, count=math.prod(shape), offset=start), shape)
            if math.prod(shape)
            else torch.empty(shape, dtype=dtype)
            for start, (shape, dtype) in zip(starts, wanted, strict=False)
        ]


def _pinned_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class _Ahead:
    """Number and bytes of the batches that are decoded, or being decoded, and that torch's iterator has not taken yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches = 0
        self._bytes = 0

    def add(self, batch: PendingBatch, sign: int) -> None:
        """Count a batch (`sign` 1), or stop counting it (-1)."""
        with self._changed:
            self._batches += sign
            self._bytes += sign * batch.filled_bytes
            self._changed.notify_all()

    def wait_for_room(self, ended: threading.Event) -> None:
        """Wait until another batch may be decoded ahead, or until the loader has ended."""
        with self._changed:
            while self._batches >= BATCHES_AHEAD and self._bytes >= BYTES_AHEAD and not ended.is_set():
                self._changed.wait(POLL_S)

    def wake(self) -> None:
        """Wake a waiting thread, so that it checks whether the loader has ended."""
        with self._changed:
            self._changed.notify_all()


class _Ended(threading.Event):
    """Event that marks the end of a loader, and wakes the thread that waits for room."""

    def __init__(self, ahead: _Ahead) -> None:
        super().__init__()
        self._ahead = ahead

    def set(self) -> None:
        """Set the event: the loader has ended. Wake the thread that waits for room, so that it ends too."""
        super().set()
        self._ahead.wake()


class _Finishing:
    """Queue from which torch takes complete batches, in the order of their arrival.

    It has the methods of `queue.Queue` that torch, and whoever watches the loader, call.
    """

    def __init__(self, arrived: queue.Queue[Any], ahead: _Ahead, trial: Trial) -> None:
        self._arrived = arrived
        self._ahead = ahead
        self._trial = trial
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
            data.wait()
            self._ahead.add(data, -1)
            begun_s = time.thread_time()
            try:
                data.fill()
            except Exception:
                return number, ExceptionWrapper(where="while headrace computed a batch")
            try:
                data = data.unpickled()
            except BaseException as error:  # the script's own
                drop_own_frames(error)
                raise
            self._trial.add_received(lazy=True, cpu_s=time.thread_time() - begun_s, batches=0)
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
