"""The iterator that stands in for DataLoader's own: the same batches, filled by native threads.

What it keeps of the original: the order in which the script's sampler and generators are asked (the base seed when the iterator
is made, then `prefetch_factor * num_workers` index batches ahead, then one for each batch delivered), the batch's type
([images, labels]), shape, dtype and memory layout, pinning, the script's own `target_transform` and collate function, and its
own error for a file that cannot be read: an image that the native side does not decode goes through the script's dataset.

What differs: the random draws (same distributions, seeded from the loader's base seed, one key for each position of the pass).
"""

from __future__ import annotations

import operator
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace._native import Job, Ring
from headrace.accelerate.compile import Work, engine
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.recognise import Folder

__all__ = ["FeedIterator"]

#: Batches in work at a time, at least; small batches get more, so that no thread runs dry.
BATCHES_IN_WORK = 3
IMAGES_IN_WORK = 512

#: Index batches read ahead where the script has no workers; only from samplers that draw everything at once.
AHEAD_WITHOUT_WORKERS = 4

#: Iterators that exist in this process. In a forked child their jobs never end, because the threads are not there.
_live: weakref.WeakSet[FeedIterator] = weakref.WeakSet()
_left_to_the_parent: list[Any] = []

#: torch's own samplers: what they yield does not depend on when they are asked.
EAGER_SAMPLERS = frozenset(
    {"SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "DistributedSampler"}
)


@dataclass(slots=True)
class _Pending:
    """A batch in work. `indices` is what the sampler gave; the rest is None where the script's own path must take it."""

    indices: list[Any]
    places: list[tuple[Folder, int]]
    images: torch.Tensor | None
    job: Job | None
    first_draw: int


class FeedIterator(_BaseDataLoaderIter):
    """One pass (with persistent workers: one after the other) over a DataLoader whose work is understood."""

    def __init__(self, loader: Any, work: Work, original: Callable[[], Any], say: Callable[[str], None]) -> None:
        super().__init__(loader)
        self._work = work
        self._original = original
        self._say = say
        self._engine = engine(work.threads)
        self._lookahead = _lookahead(loader)
        self._pulled: deque[list[Any]] = deque()
        self._jobs: deque[_Pending] = deque()
        self._ring: tuple[int, Ring] | None = None
        self._instead: Any = None
        self._pass = 0
        self._draws = 0
        _live.add(self)
        if self._num_workers > 0:
            self._pull()
            self._submit()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Starts the next pass of a loader with persistent workers."""
        super()._reset(loader, first_iter)
        self._drop_jobs()
        self._pulled.clear()
        if self._instead is not None:
            self._instead = self._original()
            return
        self._pass += 1
        self._draws = 0
        if self._num_workers > 0:
            self._pull()
            self._submit()

    def _next_data(self) -> Any:
        if self._instead is not None:
            return self._instead._next_data()
        if self._num_workers == 0:
            self._pull()
        self._submit()
        if not self._jobs:
            self._work.table.flush_indexes()
            raise StopIteration
        pending = self._jobs.popleft()
        try:
            batch = self._finish(pending)
        except _NativeFailure as failure:
            return self._go_back(pending, failure)
        finally:
            if self._num_workers > 0 and self._instead is None:
                self._pull()
                self._submit()
        return batch

    def _pull(self) -> None:
        """Takes index batches from the script's sampler, as far ahead as the original iterator does."""
        while len(self._pulled) + len(self._jobs) < self._lookahead:
            try:
                self._pulled.append(list(self._next_index()))
            except StopIteration:
                return

    def _submit(self) -> None:
        """Hands pulled index batches to the native threads, not too many at a time."""
        while self._pulled:
            limit = max(BATCHES_IN_WORK, IMAGES_IN_WORK // max(1, len(self._pulled[0])))
            if len(self._jobs) >= limit:
                return
            self._jobs.append(self._start(self._pulled.popleft()))

    def _start(self, indices: list[Any]) -> _Pending:
        count = len(indices)
        places = self._places(indices)
        if not places:
            return _Pending(indices, [], None, None, self._draws)
        records = np.fromiter((folder.first + at for folder, at in places), dtype=np.int64, count=count)
        draws = np.arange(self._draws, self._draws + count, dtype=np.uint64)
        images, memory = self._memory(count)
        job = self._engine.submit(
            self._work.table,
            self._work.pipeline.program,
            self._work.store,
            self._base_seed & 0xFFFF_FFFF_FFFF_FFFF,
            self._pass,
            records,
            draws,
            memory,
        )
        pending = _Pending(indices, places, images, job, self._draws)
        self._draws += count
        return pending

    def _places(self, indices: list[Any]) -> list[tuple[Folder, int]]:
        """Where each index leads; empty if one leads nowhere, which is the script's own dataset's to complain about."""
        locate = self._work.recognition.locate
        try:
            places = [locate(operator.index(index)) for index in indices]
        except (TypeError, ValueError, IndexError):
            return []
        return places if all(0 <= at < len(folder.samples) for folder, at in places) else []

    def _memory(self, count: int) -> tuple[torch.Tensor, Any]:
        """A batch tensor [count, 3, H, W] and its bytes as a writable buffer."""
        pipeline, work = self._work.pipeline, self._work
        size = count * work.image_bytes()
        if self._pin_memory:  # torch's own cache of pinned memory waits for copies that are under way
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            memory: Any = block.numpy()
            flat = block.view(work.dtype)
        else:
            if self._ring is None or self._ring[0] < size:
                self._ring = (size, Ring(size, BATCHES_IN_WORK + 2))
            memory = self._ring[1].take()
            flat = torch.frombuffer(memory, dtype=work.dtype, count=size // work.dtype.itemsize)
        return flat.view(count, 3, pipeline.height, pipeline.width), memory

    def _finish(self, pending: _Pending) -> Any:
        if pending.job is None or pending.images is None:
            return self._own(pending.indices)
        try:
            while not pending.job.wait(None):
                pass
            bad = {slot for slot, status in enumerate(pending.job.statuses()) if status != 0}
        except Exception as error:
            raise _NativeFailure(f"{type(error).__name__}: {error}") from error
        targets = [folder.samples[at][1] for folder, at in pending.places]
        images = pending.images
        expressed = self._work.recognition.expressed
        own = self._work.recognition.pack == "own"
        if own or bad or expressed.per_image or any(folder.target_transform for folder in self._work.recognition.folders):
            with separate_randomness(self._base_seed + 0x9E37_79B9 * self._pass + pending.first_draw):
                self._apply_targets(pending, targets, bad)
                for slot in sorted(bad):
                    folder, at = pending.places[slot]
                    image, targets[slot] = folder.dataset[at]
                    images[slot] = image
                _apply_per_image(expressed.per_image, images, bad)
                if own:
                    return self._pinned(self._collate_fn(list(zip(images, targets, strict=True))))
        if self._work.recognition.pack == "timm":
            return images, self._pinned(torch.tensor(targets, dtype=torch.int64))
        return [images, self._pinned(default_collate(targets))]

    def _own(self, indices: list[Any]) -> Any:
        """A batch by the script's own dataset and collate function, in this process."""
        return self._pinned(self._collate_fn([self._dataset[index] for index in indices]))

    def _pinned(self, data: Any) -> Any:
        return torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _apply_targets(self, pending: _Pending, targets: list[Any], skip: set[int]) -> None:
        for slot, (folder, _) in enumerate(pending.places):
            if folder.target_transform is not None and slot not in skip:
                targets[slot] = folder.target_transform(targets[slot])

    def _go_back(self, pending: _Pending, failure: _NativeFailure) -> Any:
        """After a fault of ours: the original iterator if nothing was delivered yet, else this pass in this process."""
        self._say(f"headrace run: native loading stopped ({failure}); the script's own loading goes on")
        if self._num_yielded == 0:
            self._drop_jobs()
            self._instead = self._original()
            return self._instead._next_data()
        waiting = [pending.indices, *(job.indices for job in self._jobs), *self._pulled]
        self._drop_jobs()
        self._instead = _InProcess(self, waiting)
        return self._instead._next_data()

    def _drop_jobs(self) -> None:
        for pending in self._jobs:
            if pending.job is not None:
                pending.job.cancel()
        self._jobs.clear()

    def _shutdown_workers(self) -> None:
        """What frameworks call to end an original iterator early."""
        self._drop_jobs()
        self._pulled.clear()
        if self._instead is not None and hasattr(self._instead, "_shutdown_workers"):
            self._instead._shutdown_workers()

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_jobs"):
            return
        self._drop_jobs()


def _leave_jobs_to_the_parent() -> None:
    """In a forked child, keeps unfinished jobs for good: ending one would wait for threads that only the parent has."""
    for iterator in _live:
        _left_to_the_parent.extend(iterator._jobs)
        iterator._jobs = deque()


os.register_at_fork(after_in_child=_leave_jobs_to_the_parent)


class _NativeFailure(Exception):
    """Something of ours failed that is no fault of the data."""


class _InProcess:
    """The rest of a pass by the script's own dataset and collate function, in this process."""

    def __init__(self, iterator: FeedIterator, waiting: list[list[Any]]) -> None:
        self._iterator = iterator
        self._waiting = deque(waiting)

    def _next_data(self) -> Any:
        indices = self._waiting.popleft() if self._waiting else self._iterator._next_index()
        return self._iterator._own(indices)


def _apply_per_image(operations: tuple[Callable[[Any], Any], ...], images: torch.Tensor, skip: set[int]) -> None:
    """Runs the script's own tensor operations on every image in its place, but for those in `skip`."""
    for slot in range(len(images)) if operations else ():
        if slot in skip:
            continue
        before = after = images[slot]
        for operation in operations:
            after = operation(after)
        if after is not before:
            before.copy_(after)


def _lookahead(loader: Any) -> int:
    """How many index batches may be read ahead of the batch that the script is given."""
    if loader.num_workers > 0:
        return int(loader.num_workers * loader.prefetch_factor)
    batches = loader.batch_sampler
    torch_own = type(batches).__module__ == "torch.utils.data.sampler" and type(batches).__name__ == "BatchSampler"
    sampler = getattr(batches, "sampler", None)
    eager = type(sampler).__module__.startswith("torch.utils.data.") and type(sampler).__name__ in EAGER_SAMPLERS
    return AHEAD_WITHOUT_WORKERS if torch_own and eager else 1
