"""The iterator that replaces DataLoader's own: native threads make the same batches, bit for bit.

These stay the same:

- the calls of the script's sampler and generators: the base seed when the iterator is made, then `prefetch_factor *
  num_workers` index batches ahead, then one for each batch delivered;
- the random numbers of each image: batch k of a pass draws from the streams of worker k modulo their number
  (`random_streams`), or from the generators of this process if there are no workers;
- the type of the batch ([images, labels]), its shape, dtype, memory layout and pinning;
- the error for a file that cannot be read: the script's dataset loads each image that is not decoded natively.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace.accelerate.runtime.batch_memory import as_made_now, batch_block, not_a_view, offer_free_blocks
from headrace.accelerate.runtime.engine import engine
from headrace.accelerate.runtime.unsupported import Refusal, Unsupported, attempt
from headrace.accelerate.script.replaced_functions import is_own_function
from headrace.accelerate.script.state import state_of
from headrace.accelerate.script.torch_modes import has_watching_mode
from headrace.accelerate.script_code.calls import has_own_default_collate
from headrace.accelerate.transforms.torch_blur import arithmetic, holds_blur, serve_weights
from headrace.accelerate.whole.compile import CompiledLoader, CompiledView
from headrace.accelerate.whole.folders import FolderDataset, locate, start_method
from headrace.accelerate.whole.pending import Pending
from headrace.accelerate.whole.worker_copies import WorkerCopies
from headrace.accelerate.workers.errors import Interrupted, exited, is_of_handler, worker_error
from headrace.accelerate.workers.plain_frames import initialise
from headrace.accelerate.workers.random_streams import (
    GeneratorStates,
    RandomStream,
    next_seed,
    require_replayable,
    worker_states,
)
from headrace.accelerate.workers.settings import WorkerSettings, current_folder
from headrace.accelerate.workers.warnings import WorkerWarnings
from headrace.attach.record.unseen_frames import drop_own_frames
from headrace.errors import HeadraceError

__all__ = ["NativeFailure", "NativeIterator"]

#: Fill at least this many batches at a time, and as many more as hold `IMAGES_IN_WORK` images, so that no thread idles, but not
#: more than `BYTES_IN_WORK` bytes.
BATCHES_IN_WORK = 3
IMAGES_IN_WORK = 512
BYTES_IN_WORK = 128 << 20

#: Index batches to read ahead for a loader without workers, only from samplers that draw all indices at once.
AHEAD_WITHOUT_WORKERS = 4

#: The native iterators of this process. In a forked child their jobs never end: the threads exist only in the parent.
_live: weakref.WeakSet[NativeIterator] = weakref.WeakSet()
_left_to_the_parent: list[Any] = []

#: torch's samplers, which may be read ahead: their indices do not depend on when they are read.
EAGER_SAMPLERS = frozenset({"SequentialSampler", "RandomSampler", "WeightedRandomSampler", "DistributedSampler"})


class NativeIterator(_BaseDataLoaderIter):
    """Iterator of a loader that is taken over as a whole: one pass, or all passes with `persistent_workers`.

    It is made in two steps. The first calls and draws nothing of the script's. It raises `Unsupported` if the random numbers of
    the script's processes cannot be replayed. In the second, `begin`, errors are the script's own.
    """

    def __init__(self, loader: Any, compiled: Any, log_line: Callable[[str], None]) -> None:
        if loader.num_workers > 0 and not getattr(loader, "in_order", True):
            raise Unsupported("it has in_order=False", "in_order=True")
        if loader.num_workers == 0 and loader.timeout:  # torch's own iterator raises its error
            raise Unsupported("it has a timeout and no workers", "no timeout")
        self._num_workers, self._dataset, self._collate_fn = loader.num_workers, loader.dataset, loader.collate_fn
        self._log_line = log_line
        self._worker_settings = WorkerSettings() if self._num_workers > 0 else None
        self._engine = engine(compiled.threads)
        self._lookahead = _lookahead(loader)
        self._pulled: deque[list[Any]] = deque()
        self._jobs: deque[Pending] = deque()
        self._views: tuple[CompiledView, ...] = compiled.views
        self._prepare(compiled)
        self._prepare_draws(loader)
        # Worker processes keep the settings that they were started with.
        self._arithmetic = self._settings() if self._num_workers == 0 else None
        # Without workers the script's next batch follows what its loop changes.
        self._began_as = (current_folder(), self._state()) if self._num_workers == 0 else None
        self._is_native = True
        self.stopped = ""  # why native loading has ended within the pass
        self._worker_warnings = WorkerWarnings(forked=start_method(loader) == "fork") if self._num_workers > 0 else None
        self._started = 0
        _live.add(self)

    def begin(self, loader: Any) -> None:
        """Draw the base seed and read the first index batches, as torch's own iterator does when it is made."""
        seed = getattr(self, "_base_seed", None)
        if self._num_workers > 0:
            loader.check_worker_number_rationality()
        initialise(self, loader)
        if self._streams and self._num_workers > 0 and self._base_seed != seed:  # the sampler has drawn, too
            states = worker_states(self, loader.worker_init_fn)
            for stream, one in zip(self._streams, states, strict=True):
                stream.restart(one)
        if self._num_workers > 0:
            self._reset(loader, first_iter=True)  # asks the sampler for an iterator again, as torch does

    def _prepare(self, compiled: Any) -> None:
        """Store the compiled loader, and copies of the script's objects."""
        self._compiled: CompiledLoader = compiled
        folders = compiled.recognition.folders
        self._samples = {id(one.dataset): copied for one, copied in zip(folders, compiled.samples, strict=True)}
        self._copies = WorkerCopies(self._dataset, folders, compiled.samples, has_workers=self._num_workers > 0)

    def _prepare_draws(self, loader: Any) -> None:
        """Make the random streams of the workers, or of this process, unless no random number is drawn."""
        ranges: list[tuple[float, float]] = []
        self._plans = [view.draw_plan(ranges) for view in self._views]
        self._words = sum(plan.most_words(view.pipeline.program) for plan, view in zip(self._plans, self._views, strict=True))
        self._streams: list[RandomStream] = []
        self._expected: GeneratorStates | None = None
        self._makes_ahead = True
        if all(plan.is_fixed for plan in self._plans):
            return
        require_replayable()
        if holds_blur(self._steps()):
            serve_weights()
        if self._num_workers > 0:
            self._base_seed = next_seed(loader.generator)
            states = worker_states(self, loader.worker_init_fn)
        else:
            states = [GeneratorStates.now()]
        self._streams = [RandomStream(one, ranges) for one in states]

    def _stream(self, pending: Pending) -> RandomStream | None:
        """Return the stream that a batch draws from; None if no random number is drawn."""
        return self._streams[pending.number % len(self._streams)] if self._streams else None

    def _steps(self) -> Sequence[Any]:
        """Return the native steps of an image."""
        return self._compiled.recognition.transform.geometry

    def _settings(self) -> Any:
        """Return the settings of torch and Pillow that batches depend on."""
        blur = arithmetic() if holds_blur(self._steps()) else None
        limit = getattr(sys.modules.get("PIL.Image"), "MAX_IMAGE_PIXELS", None)
        return torch.get_default_dtype(), has_watching_mode(), has_own_default_collate(), blur, limit

    def _is_set_otherwise(self) -> bool:
        """Return whether a setting that changes batches differs from the time when the loader was compared."""
        return self._arithmetic is not None and self._arithmetic != self._settings()

    def _state(self) -> Any:
        """Return a snapshot of the script's objects that were compiled."""
        return state_of([folder.dataset.transform for folder in self._compiled.recognition.folders])

    def _flush(self) -> None:
        """Write the JPEG indexes at the end of a pass."""
        self._compiled.table.flush_indexes()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start the next pass of a loader with persistent workers."""
        self._drain()
        super()._reset(loader, first_iter)
        self._started = 0
        if self._num_workers > 0:
            self._pull(self._lookahead)
            self._submit()

    def _drain(self) -> None:
        """Make the remaining batches although nobody takes them, as persistent workers do, so that random numbers are drawn."""
        while self._streams and (self._jobs or self._pulled):
            self._submit()
            with contextlib.suppress(Exception):
                self._finish(self._jobs.popleft())
        self._drop_jobs()
        self._pulled.clear()

    def _next_data(self) -> Any:
        try:
            return self._next_batch()
        except BaseException as error:
            drop_own_frames(error)
            raise

    def _next_batch(self) -> Any:
        if self._num_workers == 0:
            self._pull()
            self._follow_generators()
        self._submit()
        if not self._jobs:
            self._flush()
            offer_free_blocks()
            raise StopIteration
        pending = self._jobs.popleft()
        worker = pending.number % max(1, self._num_workers)
        failure: NativeFailure | None = None
        raised: ExceptionWrapper | None = None
        try:
            if self._began_as is not None and self._is_native:
                if (current_folder(), self._state()) != self._began_as:
                    raise NativeFailure("the script has changed its transforms, or the current folder, within the pass")
                self._update(pending)
            batch = self._finish(pending)
        except Interrupted as stop:
            if self._num_workers > 0:  # the batch waits in torch's queue
                self._jobs.appendleft(pending)
            raise stop.error from None
        except NativeFailure as error:
            failure = type(error)(*error.args)  # without the frames that its traceback refers to
        except (Exception, SystemExit) as error:
            if self._num_workers == 0 or is_of_handler(error):
                raise
            raised = self._raised(error, worker)
        finally:
            if failure is None and self._num_workers > 0 and (not self._jobs or self._jobs[0] is not pending):
                self._pull()
                self._submit()
        # The script's own loading starts here, and its error is raised here, and not inside `except`: Python would print the
        # exception that is handled there before each of its errors.
        if failure is not None:
            try:
                batch = self._fall_back(pending, failure)
            except (Exception, SystemExit) as error:
                if self._num_workers == 0 or is_of_handler(error):
                    raise
                raised = self._raised(error, worker)
        if raised is not None:
            raised.reraise()
        return batch

    def _raised(self, error: Exception | SystemExit, worker: int) -> ExceptionWrapper:
        """Return the error object that the script gets for an error that its code would have raised in a worker."""
        if not isinstance(error, SystemExit):
            return worker_error(error, worker)
        self._drop_jobs()
        self._pulled.clear()
        return exited()

    def _follow_generators(self) -> None:
        """Without workers: continue from the current generators of this process, and drop batches made from other states."""
        if not (self._streams and self._is_native):
            return
        expected, self._expected = self._expected, None
        now = attempt(GeneratorStates.now)
        if isinstance(now, Refusal):  # the script has given numpy.random another generator
            self._stop(now.text)
        elif self._jobs and expected is not None and now.equals(expected):
            return
        self._pulled.extendleft(pending.indices for pending in reversed(self._jobs))
        self._started -= len(self._jobs)
        self._drop_jobs()
        if not isinstance(now, Refusal):
            # What the script's loop draws between two batches changes the next one, so nothing is made ahead any more.
            self._makes_ahead = self._makes_ahead and (expected is None or now.equals(expected))
            self._streams[0].restart(now)

    def _lead_generators(self, pending: Pending) -> None:
        """Without workers: set this process's generators to their state after a batch is made without headrace."""
        if self._num_workers > 0 or not self._streams:
            return
        state = pending.job.streams_before(len(pending.indices) - pending.start)
        if state is not None:
            self._expected = self._streams[0].lead(state)

    def _update(self, pending: Pending) -> None:
        """Have the script make a batch that was made ahead, if its datasets have changed since."""
        known = self._compiled.recognition.folders
        folders: list[FolderDataset] = []
        if self._is_set_otherwise():
            pending.withdraw()
            pending.places = ()
            return
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
            return
        pending.withdraw()
        pending.places = ()

    def _is_unchanged(self, folder: FolderDataset, at: int) -> bool:
        """Return whether a sample still has the file that is in the table. Its target may have changed."""
        before = self._samples[id(folder.dataset)]
        return at < len(folder.samples) and (folder.samples[at] is before[at] or folder.samples[at][0] == before[at][0])

    def _pull(self, times: int = 1) -> None:
        """Read index batches from the script's sampler, as far ahead as the original iterator does.

        With workers, that asks once for each batch that it delivers, and `times` at the start, whatever the sampler answers.
        """
        if self._num_workers == 0:
            times = self._lookahead - len(self._pulled) - len(self._jobs)
        for _ in range(times):
            try:
                self._pulled.append(list(self._next_index()))
            except StopIteration:
                if self._num_workers == 0:
                    return

    def _submit(self) -> None:
        """Give index batches to the native threads, up to the limit of batches in work."""
        while self._pulled and len(self._jobs) < (self._batches_in_work(len(self._pulled[0])) if self._makes_ahead else 1):
            indices = self._pulled.popleft()
            is_native = self._is_native and not self._is_set_otherwise()
            self._jobs.append(Pending(indices, self._started, self._plan(indices) if is_native else ()))
            self._started += 1
        waiting = set()  # streams with a batch that the script must make before later ones draw
        for pending in self._jobs:
            stream = self._stream(pending)
            if pending.job is None and pending.places and (stream is None or stream not in waiting):
                self._fill(pending)
            elif pending.job is None:
                waiting.add(stream)

    def _fill(self, pending: Pending, *, first: bool = False) -> None:
        """Queue the images of a batch from number `start` on. `first`: before the batches that wait."""
        count = len(pending.places)
        if not pending.images:
            for view in self._views:
                tensor, block = self._memory(count, view)
                pending.images.append(tensor)
                pending.memory.append(block)
        places = pending.places[pending.start :]
        rest = [
            memoryview(block)[pending.start * view.pipeline.image_bytes() :]
            for block, view in zip(pending.memory, self._views, strict=True)
        ]
        stream = self._stream(pending)
        if stream is not None:
            stream.prepare(self._words * len(places))
        pending.job = self._submitted(places, rest, stream, first=first)

    def _submitted(self, places: Sequence[Any], memory: list[Any], stream: RandomStream | None, *, first: bool) -> Any:
        """Queue the files or planned items of a batch, and return the job."""
        records = np.fromiter((folder.first + at for folder, at in places), dtype=np.int64, count=len(places))
        view = self._compiled.view
        turn = None if stream is None else (stream.native, self._plans, (0,), self._words)
        return self._engine.submit(
            self._compiled.table,
            view.pipeline.program,
            view.store,
            0,
            0,
            records,
            np.zeros(len(places), dtype=np.uint64),
            memory[0],
            first=first,
            turn=turn,
        )

    def _plan(self, indices: list[Any]) -> Sequence[Any]:
        """Return the file or planned item of each index; nothing if the script must make the batch."""
        return self._places(indices)

    def _places(self, indices: list[Any]) -> list[tuple[FolderDataset, int]]:
        """Return the folder dataset and position of each index. Empty if one is invalid: the script's dataset then raises."""
        locate = self._compiled.recognition.locate
        try:
            places = [locate(operator.index(index)) for index in indices]
        except (TypeError, ValueError, IndexError):
            return []
        return places if all(0 <= at < len(self._samples_of(folder)) for folder, at in places) else []

    def _memory(self, count: int, view: CompiledView) -> tuple[torch.Tensor, Any]:
        """Return a batch tensor [count, 3, H, W] for a view, and its memory as a writable buffer."""
        pipeline, dtype = view.pipeline, view.dtype
        size = count * pipeline.image_bytes()
        if self._pin_memory:  # torch's cache of pinned memory waits for unfinished copies
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            memory: Any = block.numpy()
            flat = block.view(dtype)
        else:
            memory = batch_block(size, len(self._views) * (self._batches_in_work(count) + 2))
            flat = torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize)
        return not_a_view(flat, (count, 3, pipeline.height, pipeline.width)), memory

    def _batches_in_work(self, images: int) -> int:
        """Return how many batches of this many images are decoded at a time."""
        size = images * sum(view.pipeline.image_bytes() for view in self._views)
        return max(BATCHES_IN_WORK, min(IMAGES_IN_WORK // max(1, images), BYTES_IN_WORK // max(1, size)))

    def _finish(self, pending: Pending) -> Any:
        """Return a batch once its images are decoded."""
        if pending.job is None:
            return self._made_by_the_script(pending)
        targets = [self._samples_of(folder)[at][1] for folder, at in pending.places]
        made = self._completed(pending)
        images = pending.images[0]
        for slot, item in made.items():
            images[slot], targets[slot] = item
        with self._set_as_worker():
            if self._compiled.recognition.collate == "timm":
                return images, self._pinned(torch.tensor(targets, dtype=torch.int64))
            return [images, self._pinned(default_collate(tuple(targets)))]

    def _set_as_worker(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager: the process has the settings of the worker that would make the batch."""
        return self._worker_settings.in_place() if self._worker_settings is not None else contextlib.nullcontext()

    def _completed(self, pending: Pending) -> dict[int, Any]:
        """Wait until a batch is decoded. Return the items that the script had to make, by slot.

        The images behind such an item draw what its own draws leave, so they are filled again, as are later batches.
        """
        stream = self._stream(pending)
        made = self._completed_at_once(pending) if stream is None else self._completed_in_turn(pending, stream)
        self._lead_generators(pending)  # after an error they are where the script's code left them
        pending.images = [as_made_now(one) for one in pending.images]
        return made

    def _completed_at_once(self, pending: Pending) -> dict[int, Any]:
        """Complete a batch whose items draw no random numbers."""
        made: dict[int, Any] = {}
        while bad := [slot for slot in self._not_filled(pending.job) if slot not in made]:
            others = [slot for slot in bad if self._plan_otherwise(pending, slot, pending.job.statuses()[slot])]
            with self._in_its_process(pending, None):
                made |= {slot: self._script_item(pending, slot) for slot in bad if slot not in others}
            if not others:
                break
            self._fill(pending, first=True)
        return made

    def _completed_in_turn(self, pending: Pending, stream: RandomStream) -> dict[int, Any]:
        """Complete a batch whose items draw from `stream`, in order."""
        made: dict[int, Any] = {}
        while bad := self._not_filled(pending.job):
            state, status = pending.job.streams_before(bad[0]), pending.job.statuses()[bad[0]]
            if state is None:
                raise NativeFailure("the random numbers of an image are not known")
            for later in self._jobs:
                if self._stream(later) is stream:
                    later.withdraw()
            pending.start += bad[0]
            if self._plan_otherwise(pending, pending.start, status):
                stream.restart(stream.states_at(state))
            else:
                with self._in_its_process(pending, state):
                    made[pending.start] = self._script_item(pending, pending.start)
                pending.start += 1
            self._fill(pending, first=True)
        return made

    def _plan_otherwise(self, pending: Pending, slot: int, status: int) -> bool:
        """Return whether native threads can fill an image in another way than the one that has failed with `status`."""
        return False

    @contextlib.contextmanager
    def _in_its_process(self, pending: Pending, state: bytes | None) -> Iterator[None]:
        """Context manager: the script draws from `state` on, and warns, as the process that would make the batch."""
        stream = self._stream(pending)
        with contextlib.ExitStack() as process:
            if self._worker_settings is not None:
                process.enter_context(self._worker_settings.in_place())
            if self._worker_warnings is not None:
                process.enter_context(self._worker_warnings.of(pending.number % self._num_workers))
            if stream is not None and state is not None:
                process.enter_context(stream.in_this_process(state, stays=self._num_workers == 0))
            yield

    def _script_item(self, pending: Pending, slot: int) -> Any:
        """Return an item made by the script's dataset."""
        folder, at = pending.places[slot]
        return self._copies.dataset(folder)[at]

    def _made_by_the_script(self, pending: Pending) -> Any:
        """Return a batch made by the script's dataset and collate function in place of a worker."""
        stream = self._stream(pending)
        # Without workers this process's own generators are where they belong.
        state = stream.native.state() if stream is not None and self._num_workers > 0 else None
        with self._in_its_process(pending, state):
            return self._script_batch(pending.indices)

    def _samples_of(self, folder: FolderDataset) -> Any:
        """Return the samples as the script's loading would have them: workers have copies."""
        return self._samples[id(folder.dataset)] if self._num_workers > 0 else folder.samples

    def _not_filled(self, job: Any) -> list[int]:
        """Wait for the native threads. Return the slots of the images that they could not decode."""
        try:
            while not job.wait(None):
                pass
            return [slot for slot, status in enumerate(job.statuses()) if status != 0]
        except (HeadraceError, MemoryError) as error:
            raise NativeFailure(f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            raise Interrupted(error) from None

    def _script_batch(self, indices: list[Any]) -> Any:
        """Make a batch by the script's own dataset and collate function, in this process."""
        dataset = self._copies.whole
        together = getattr(dataset, "__getitems__", None)  # as torch's own fetcher asks
        items = together(indices) if together else [dataset[index] for index in indices]
        return self._pinned(self._collate_fn(items))

    def _pinned(self, data: Any) -> Any:
        return torch.utils.data._utils.pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    def _fall_back(self, pending: Pending, failure: NativeFailure) -> Any:
        """Continue without native threads after an error of headrace: the script's code makes the batches in this process."""
        self._stop(str(failure))
        rewound = set()
        for waiting in (pending, *self._jobs):
            stream = self._stream(waiting)
            if stream is not None and stream not in rewound:
                rewound.add(stream)
                state = waiting.job.streams_before(0) if waiting.job is not None else None
                if state is not None:
                    stream.restart(stream.states_at(state))
            waiting.withdraw()
            waiting.places = ()
        try:
            return self._made_by_the_script(pending)
        finally:
            if self._num_workers > 0:
                self._pull()
                self._submit()

    def _stop(self, reason: str) -> None:
        """Make no more batches natively in this pass, and say so."""
        self._log_line(f"headrace run: native loading stopped ({reason}); the script's own loading continues")
        self._is_native = False
        self.stopped = reason

    def _drop_jobs(self) -> None:
        for pending in self._jobs:
            pending.withdraw()
        self._jobs.clear()

    def _shutdown_workers(self) -> None:
        """Stop early. Frameworks call this method of the original iterator."""
        self._drop_jobs()
        self._pulled.clear()
        offer_free_blocks()

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_jobs"):
            return
        self._drop_jobs()
        offer_free_blocks()


def _leave_jobs_to_the_parent() -> None:
    """Keep unfinished jobs alive in a forked child: ending one would wait for threads that only the parent has."""
    for iterator in _live:
        _left_to_the_parent.extend(iterator._jobs)
        iterator._jobs = deque()


os.register_at_fork(after_in_child=_leave_jobs_to_the_parent)


class NativeFailure(Exception):
    """Raised when native loading fails because of an error of headrace, not of the data."""


def _lookahead(loader: Any) -> int:
    """Return how many index batches may be read ahead of the batch that is delivered."""
    if loader.num_workers > 0:
        return int(loader.num_workers * loader.prefetch_factor)
    batches = loader.batch_sampler
    torch_own = type(batches).__module__ == "torch.utils.data.sampler" and type(batches).__name__ == "BatchSampler"
    sampler: Any = getattr(batches, "sampler", None)
    eager = type(sampler).__module__.startswith("torch.utils.data.") and type(sampler).__name__ in EAGER_SAMPLERS
    eager = eager and all(is_own_function(type(one).__iter__) for one in (batches, sampler))  # not replaced by the script
    # A generator that the script gives may be drawn from in its loop, too.
    is_own = getattr(sampler, "generator", None) is None
    return AHEAD_WITHOUT_WORKERS if torch_own and eager and is_own else 1
