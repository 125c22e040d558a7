"""Shared memory that carries encoded images from the workers of a loader to the training process.

Each loader has one file of memory without a name. A worker has a few slots in it, each for the bytes of one batch. It writes to
a slot that is free, and names it in the message that it sends. When nothing in the training process refers to the bytes any
more, the slot is free again. Nothing waits for a free slot: without one, the worker computes its tensors itself.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np

__all__ = ["Place", "SharedBytes", "received"]

LARGEST_BATCH = 1 << 28
"""Largest size of a slot in bytes: the encoded images of one batch. The worker decodes a batch that does not fit."""

GROWTH = 1 << 18
"""A slot grows in steps of this many bytes, and stays allocated for the next batch."""

Place = tuple[str, int, int]
"""Where the encoded images of a batch lie: name of the loader's shared memory, number of the slot, and number of bytes."""

_numbers = itertools.count()
_loaders: weakref.WeakValueDictionary[str, SharedBytes] = weakref.WeakValueDictionary()


class SharedBytes:
    """The shared memory of one loader, made in the training process. It can be passed to a process that is being started.

    `workers`, `slots`: number of workers, and of slots for each. Where the system refuses the memory, nothing is ever put in.
    """

    def __init__(self, workers: int, slots: int) -> None:
        self.name = f"{os.getpid()}-{next(_numbers)}"
        self._slots = slots
        self._head = -(-workers * slots // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory: mmap.mmap | None = None
        self._file: int | None = None
        with contextlib.suppress(OSError, ValueError):
            self._use(os.memfd_create("headrace", os.MFD_CLOEXEC))
            os.posix_fallocate(self._own_file(), 0, self._head)
            os.truncate(self._own_file(), self._head + workers * slots * LARGEST_BATCH)  # addresses, no memory
            self._map()
        _loaders[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        file = None if self._memory is None else reduction.DupFd(self._own_file())
        return _passed_on, (self.name, self._slots, self._head, file)

    def _own_file(self) -> int:
        assert self._file is not None
        return self._file

    def _use(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def _map(self) -> None:
        """Map the file. The first bytes are flags: a slot is in use while its flag is not zero."""
        self._memory = mmap.mmap(self._own_file(), 0)
        self._in_use = memoryview(self._memory)[: self._head]
        self._reserved: dict[int, int] = {}

    def put(self, worker: int, pieces: Sequence[bytes | memoryview]) -> Place | None:
        """Copy the encoded images of a batch into a free slot of a worker. None: no slot is free, or no memory."""
        if self._memory is None:
            return None
        size = sum(map(len, pieces))
        own = range(worker * self._slots, (worker + 1) * self._slots)
        slot = next((number for number in own if not self._in_use[number]), None)
        if slot is None or not self._reserve(slot, size):
            return None
        at = self._start(slot)
        for piece in pieces:
            self._memory[at : at + len(piece)] = piece
            at += len(piece)
        self._in_use[slot] = 1
        return self.name, slot, size

    def _reserve(self, slot: int, size: int) -> bool:
        """Return whether a slot has `size` bytes of reserved memory. Writing unreserved memory could kill the process."""
        reserved = self._reserved.get(slot, 0)
        wanted = -(-size // GROWTH) * GROWTH
        if wanted > LARGEST_BATCH:
            return False
        if wanted > reserved:
            try:
                os.posix_fallocate(self._own_file(), self._start(slot) + reserved, wanted - reserved)
            except OSError:
                return False
            self._reserved[slot] = wanted
        return True

    def _start(self, slot: int) -> int:
        return self._head + slot * LARGEST_BATCH

    def get(self, slot: int, size: int) -> memoryview:
        """Return the bytes in a slot. The slot is free again when nothing refers to them."""
        assert self._memory is not None
        array = np.frombuffer(self._memory, np.uint8, size, self._start(slot))
        array.flags.writeable = False
        weakref.finalize(array, _free, self._in_use, slot, os.getpid()).atexit = False
        return array.data


def _free(in_use: memoryview, slot: int, process: int) -> None:
    """Free a slot, unless this is a forked child of the training process: the parent still reads."""
    if os.getpid() == process:
        in_use[slot] = 0


def _passed_on(name: str, slots: int, head: int, file: Any) -> SharedBytes:
    """Return the shared memory in a worker process that was started with it."""
    shared = SharedBytes.__new__(SharedBytes)
    shared.name, shared._slots, shared._head, shared._memory = name, slots, head, None
    if file is not None:
        shared._use(file.detach())
        with contextlib.suppress(OSError, ValueError):
            shared._map()
    return shared


def received(place: Place) -> memoryview:
    """Return the encoded images of a batch in the training process."""
    name, slot, size = place
    return _loaders[name].get(slot, size)
