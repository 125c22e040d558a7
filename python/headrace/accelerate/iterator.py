"""The iterator that replaces DataLoader's own: native threads fill the same batches.

These stay the same:

- the calls of the script's sampler and generators: the base seed when the iterator is made, then `prefetch_factor *
  num_workers` index batches ahead, then one for each batch delivered;
- the type of the batch ([images, labels]), its shape, dtype, memory layout and pinning;
- the error for a file that cannot be read: the script's dataset loads each image that is not decoded natively.

The random draws differ. They have the same distributions, and are seeded from the loader's base seed and the position in the
pass.
"""

from __future__ import annotations

import operator
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace._native import Job
from headrace.accelerate.batch_memory import batch_block, offer_free_blocks
from headrace.accelerate.compile import CompiledLoader, engine
from headrace.accelerate.plain_frames import initialise
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.recognise import FolderDataset, locate
from headrace.accelerate.script_state import state_of
from headrace.accelerate.torch_blur import arithmetic, holds_blur, provide_weights
from headrace.accelerate.translate import Unsupported
from headrace.accelerate.worker_copies import WorkerCopies
from headrace.transforms.compile import Pipeline

__all__ = ["NativeFailure", "NativeIterator", "apply_per_image"]

#: Fill at least this many batches at a time, and as many more as hold `IMAGES_IN_WORK` images, so that no thread idles.
BATCHES_IN_WORK = 3
IMAGES_IN_WORK = 512

#: Index batches read ahead for a loader without workers. Only from samplers that draw all indices at once.
AHEAD_WITHOUT_WORKERS = 4

#: The iterators of this process. In a forked child their jobs never end, because the threads exist in the parent only.
_live: weakref.WeakSet[NativeIterator] = weakref.WeakSet()
_left_to_the_parent: list[Any] = []

#: torch's own samplers, whose indices do not depend on the time at which they are read.
EAGER_SAMPLERS = frozenset(
    {"SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "DistributedSampler"}
)


@dataclass(slots=True)
class _Pending:
    """A batch that is being filled. `indices` come from the sampler. `images` and `job` are None if the script must load it."""

    indices: list[Any]
    places: list[tuple[FolderDataset, int]]
    images: torch.Tensor | None
    job: Job | None
    first_draw: int


class NativeIterator(_BaseDataLoaderIter):
    """One pass over a loader that is taken over; with persistent workers all passes, one after the other.

    `original` makes the loader's own iterator, for the case of an error in native loading.
    """

    def __init__(self, loader: Any, compiled: Any, original: Callable[[], Any], log_line: Callable[[str], None]) -> None:
        initialise(self, loader)
        self._original = original
        self._log_line = log_line
        self._engine = engine(compiled.threads)
        self._lookahead = _lookahead(loader)
        self._pulled: deque[list[Any]] = deque()
        self._jobs: deque[Any] = deque()
        self._prepare(compiled)
        # Worker processes keep the settings that they were started with.
        self._arithmetic = arithmetic() if self._num_workers == 0 and holds_blur(self._steps()) else None
        # Without workers the script's next batch follows what its loop changes.
        self._began_as = self._state() if self._num_workers == 0 else None
        self._replacement: Any = None
        self._pass = 0
        self._draws = 0
        _live.add(self)
        if self._num_workers > 0:
            self._pull()
            self._submit()

    def _prepare(self, compiled: Any) -> None:
        """Keep what was compiled, and copies of the script's objects."""
        self._compiled: CompiledLoader = compiled
        folders = compiled.recognition.folders
        self._samples = {id(one.dataset): copied for one, copied in zip(folders, compiled.samples, strict=True)}
        self._copies = WorkerCopies(folders, compiled.samples, has_workers=self._num_workers > 0)

    def _view_count(self) -> int:
        """Return the number of images that an item becomes."""
        return 1

    def _steps(self) -> Sequence[Any]:
        """Return the native steps of an image."""
        return self._compiled.recognition.transform.geometry

    def _blurs_otherwise(self) -> bool:
        """Whether torch blurs in another way by now than when the loader was compared."""
        return self._arithmetic is not None and self._arithmetic != arithmetic()

    def _state(self) -> Any:
        """Return the state of the script's objects that were compiled."""
        folders = self._compiled.recognition.folders
        return state_of(folders[0].dataset.transform)

    def _flush(self) -> None:
        """Write the JPEG indexes at the end of a pass."""
        self._compiled.table.flush_indexes()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start the next pass of a loader with persistent workers."""
        super()._reset(loader, first_iter)
        self._drop_jobs()
        self._pulled.clear()
        if self._replacement is not None:
            self._replacement = self._original()
            return
        self._pass += 1
        self._draws = 0
        if self._num_workers > 0:
            self._pull()
            self._submit()

    def _next_data(self) -> Any:
        if self._replacement is not None:
            return self._replacement._next_data()
        if self._num_workers == 0:
            self._pull()
        self._submit()
        if not self._jobs:
            self._flush()
            offer_free_blocks()
            raise StopIteration
        pending = self._jobs.popleft()
        failure: NativeFailure | None = None
        try:
            if self._began_as is not None:
                if self._state() != self._began_as:
                    raise _TransformChanged("the script has changed its transforms within the pass")
                pending = self._up_to_date(pending)
            batch = self._finish(pending)
        except NativeFailure as error:
            failure = type(error)(*error.args)  # without the frames that its traceback refers to
        finally:
            if self._num_workers > 0 and failure is None:
                self._pull()
                self._submit()
        # The script's own loading starts here and not inside `except`: Python would print our exception before each of its
        # errors.
        return batch if failure is None else self._fall_back(pending, failure)

    def _up_to_date(self, pending: Any) -> Any:
        """Return a batch that was made ahead, or another one if the script's datasets have changed since."""
        known = self._compiled.recognition.folders
        folders: list[FolderDataset] = []
        try:
            find = locate(self._dataset, folders)
            places = [find(operator.index(index)) for index in pending.indices] if pending.places else []
        except (Unsupported, TypeError, ValueError, IndexError):
            folders, places = [], []
        same = len(folders) == len(known) and all(
            one.dataset is other.dataset
            and one.samples is other.samples
            and one.open_image is other.open_image
            and one.target_transform is other.target_transform
            for one, other in zip(folders, known, strict=True)
        )
        if same and all(
            one.first == other.first and at == before and self._is_unchanged(other, at)
            for (one, at), (other, before) in zip(places, pending.places, strict=True)
        ):
            return pending
        if pending.job is not None:
            pending.job.cancel()
        return _Pending(pending.indices, [], None, None, pending.first_draw)

    def _is_unchanged(self, folder: FolderDataset, at: int) -> bool:
        """Whether a sample is the one whose file is in the table. Its target may be another one."""
        before = self._samples[id(folder.dataset)]
        return at < len(folder.samples) and (folder.samples[at] is before[at] or folder.samples[at][0] == before[at][0])

    def _pull(self) -> None:
        """Read index batches from the script's sampler, as far ahead as the original iterator does."""
        while len(self._pulled) + len(self._jobs) < self._lookahead:
            try:
                self._pulled.append(list(self._next_index()))
            except StopIteration:
                return

    def _submit(self) -> None:
        """Give index batches to the native threads, up to the limit of batches filled at a time."""
        while self._pulled:
            if len(self._jobs) >= _batches_in_work(len(self._pulled[0])):
                return
            self._jobs.append(self._start(self._pulled.popleft()))

    def _start(self, indices: list[Any]) -> Any:
        count = len(indices)
        places = [] if self._blurs_otherwise() else self._places(indices)
        if not places:
            return _Pending(indices, [], None, None, self._draws)
        records = np.fromiter((folder.first + at for folder, at in places), dtype=np.int64, count=count)
        draws = np.arange(self._draws, self._draws + count, dtype=np.uint64)
        images, memory = self._memory(count, self._compiled.pipeline, self._compiled.dtype)
        program, seed = self._compiled.pipeline.program, self._base_seed & 0xFFFF_FFFF_FFFF_FFFF
        provide_weights(program, seed, self._pass, draws)
        job = self._engine.submit(
            self._compiled.table,
            program,
            self._compiled.store,
            seed,
            self._pass,
            records,
            draws,
            memory,
        )
        pending = _Pending(indices, places, images, job, self._draws)
        self._draws += count
        return pending

    def _places(self, indices: list[Any]) -> list[tuple[FolderDataset, int]]:
        """Return the folder dataset and position of each index. Empty if one is invalid: the script's dataset then raises."""
        locate = self._compiled.recognition.locate
        try:
            places = [locate(operator.index(index)) for index in indices]
        except (TypeError, ValueError, IndexError):
            return []
        return places if all(0 <= at < len(folder.samples) for folder, at in places) else []

    def _memory(self, count: int, pipeline: Pipeline, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
        """Return a batch tensor [count, 3, H, W] for a view, and its memory as a writable buffer."""
        size = count * pipeline.image_bytes()
        if self._pin_memory:  # torch's cache of pinned memory waits for unfinished copies
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            memory: Any = block.numpy()
            flat = block.view(dtype)
        else:
            memory = batch_block(size, self._view_count() * (_batches_in_work(count) + 2))
            flat = torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize)
        return flat.view(count, 3, pipeline.height, pipeline.width), memory

    def _finish(self, pending: Any) -> Any:
        if pending.job is None or pending.images is None:
            return self._script_batch(pending.indices)
        bad = self._not_filled(pending.job)
        targets = [self._samples_of(folder)[at][1] for folder, at in pending.places]
        images = pending.images
        parts = self._compiled.recognition.transform
        if bad or parts.per_image:
            with separate_randomness(self._seed_of(pending)):
                for slot in sorted(bad):
                    folder, at = pending.places[slot]
                    image, targets[slot] = self._copies.dataset(folder)[at]
                    images[slot] = image
                apply_per_image(parts.per_image, images, bad)
        if self._compiled.recognition.collate == "timm":
            return images, self._pinned(torch.tensor(targets, dtype=torch.int64))
        return [images, self._pinned(default_collate(tuple(targets)))]

    def _samples_of(self, folder: FolderDataset) -> Any:
        """Return the samples as the script's loading would have them: workers have copies."""
        return self._samples[id(folder.dataset)] if self._num_workers > 0 else folder.samples

    def _not_filled(self, job: Any) -> set[int]:
        """Wait for the native threads. Return the slots that they left to the script."""
        try:
            while not job.wait(None):
                pass
            return {slot for slot, status in enumerate(job.statuses()) if status != 0}
        except Exception as error:
            raise NativeFailure(f"{type(error).__name__}: {error}") from error

    def _seed_of(self, pending: Any) -> int:
        """Return the seed of what the script's own code draws for a batch: another one in each pass and batch."""
        return int(self._base_seed + 0x9E37_79B9 * self._pass + pending.first_draw)

    def _script_batch(self, indices: list[Any]) -> Any:
        """Load a batch by the script's own dataset and collate function, in this process."""
        together = getattr(self._dataset, "__getitems__", None)  # as torch's own fetcher asks
        items = together(indices) if together else [self._dataset[index] for index in indices]
        return self._pinned(self._collate_fn(items))

    def _pinned(self, data: Any) -> Any:
        return torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _fall_back(self, pending: Any, failure: NativeFailure) -> Any:
        """Continue after an error of headrace: by the original iterator before the first batch, else in this process."""
        self._log_line(f"headrace run: native loading stopped ({failure}); the script's own loading continues")
        if self._num_yielded == 0 and not isinstance(failure, _TransformChanged):
            self._drop_jobs()
            self._replacement = self._original()
            return self._replacement._next_data()
        waiting = [pending.indices, *(job.indices for job in self._jobs), *self._pulled]
        self._drop_jobs()
        self._replacement = _InProcess(self, waiting)
        return self._replacement._next_data()

    def _drop_jobs(self) -> None:
        for pending in self._jobs:
            if pending.job is not None:
                pending.job.cancel()
        self._jobs.clear()

    def _shutdown_workers(self) -> None:
        """Stop early. Frameworks call this method of the original iterator."""
        self._drop_jobs()
        self._pulled.clear()
        offer_free_blocks()
        if self._replacement is not None and hasattr(self._replacement, "_shutdown_workers"):
            self._replacement._shutdown_workers()

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_jobs"):
            return
        self._drop_jobs()
        offer_free_blocks()


def _leave_jobs_to_the_parent() -> None:
    """Keep unfinished jobs for ever in a forked child: ending one would wait for threads that only the parent has."""
    for iterator in _live:
        _left_to_the_parent.extend(iterator._jobs)
        iterator._jobs = deque()


os.register_at_fork(after_in_child=_leave_jobs_to_the_parent)


class NativeFailure(Exception):
    """Native loading failed for a reason other than the data."""


class _TransformChanged(NativeFailure):
    """What was compiled is no longer what the script has."""


class _InProcess:
    """The rest of a pass, loaded by the script's own dataset and collate function in this process."""

    def __init__(self, iterator: NativeIterator, waiting: list[list[Any]]) -> None:
        self._iterator = iterator
        self._waiting = deque(waiting)

    def _next_data(self) -> Any:
        indices = self._waiting.popleft() if self._waiting else self._iterator._next_index()
        return self._iterator._script_batch(indices)


def apply_per_image(operations: tuple[Callable[[Any], Any], ...], images: torch.Tensor, skip: set[int]) -> None:
    """Apply the script's tensor transforms in place to all images but those in `skip`."""
    for slot in range(len(images)) if operations else ():
        if slot in skip:
            continue
        before = after = images[slot]
        for operation in operations:
            after = operation(after)
        if after is not before:
            before.copy_(after)


def _batches_in_work(images: int) -> int:
    """Return how many batches of so many images are filled at a time."""
    return max(BATCHES_IN_WORK, IMAGES_IN_WORK // max(1, images))


def _lookahead(loader: Any) -> int:
    """Return how many index batches may be read ahead of the batch that is delivered."""
    if loader.num_workers > 0:
        return int(loader.num_workers * loader.prefetch_factor)
    batches = loader.batch_sampler
    torch_own = type(batches).__module__ == "torch.utils.data.sampler" and type(batches).__name__ == "BatchSampler"
    sampler = getattr(batches, "sampler", None)
    eager = type(sampler).__module__.startswith("torch.utils.data.") and type(sampler).__name__ in EAGER_SAMPLERS
    return AHEAD_WITHOUT_WORKERS if torch_own and eager else 1
