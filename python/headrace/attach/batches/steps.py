"""Time the training steps: each `next()` of a DataLoader, and the time until the following `next()`.

The patch is on `_BaseDataLoaderIter.__next__`, which all iterators of PyTorch's DataLoader use (torchdata's StatefulDataLoader
too). It is not on `DataLoader.__iter__`, because a wrapper would change when that runs.
"""

from __future__ import annotations

import atexit
import functools
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.attach.batches import fetch
from headrace.attach.batches.iteration import Iteration
from headrace.attach.record import ending, load_hooks, open_step, stacks
from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.device_clock import DeviceClock, StepClock
from headrace.attach.record.processes import write_process
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.threads import run_queue_delay_s
from headrace.attach.record.unseen_frames import drop_own_frames, is_unannounced, left_out_of_warnings, when_made
from headrace.attach.training import first_step
from headrace.attach.training.operators import OperatorProfile
from headrace.session.model import STEP_FIELDS

__all__ = ["STEP_RECORDERS", "StepRecorder", "describe_native", "install", "is_native", "timed_next"]

SAMPLE_PATHS = 64
FEW_BATCHES = 4
"""Time the last step of an iterator that is gone where it gave at most this many batches: the script makes many of them."""

NESTED = (list, tuple, dict)
"""Containers that a batch may consist of. A tuple, since `list | tuple | dict` is built anew at each use."""

LEAST_STOP_S = 0.001
"""Record the end of workers when it takes at least this long: ending them again, when they have ended, takes no time."""

DEVICE_COLUMNS = (STEP_FIELDS.index("gpu_wait_s"), STEP_FIELDS.index("gpu_step_s"), STEP_FIELDS.index("h2d_s"))


STEP_RECORDERS: list[StepRecorder] = []
"""The step recorders of this process: one for PyTorch's and similar loaders, one for TensorFlow's."""


def install(recorder: Recorder, clock: DeviceClock) -> StepRecorder:
    """Patch PyTorch's DataLoader iterators to record steps. Return the step recorder, which hooks of other loaders use too."""
    from torch.utils.data import dataloader

    base = dataloader._BaseDataLoaderIter
    step_clock = StepClock(clock, DEVICE_COLUMNS, lambda loader, row: recorder.row("steps", loader, row))
    atexit.register(step_clock.drain)
    step_recorder = StepRecorder(recorder, step_clock)
    STEP_RECORDERS.append(step_recorder)
    base.__next__ = timed_next(base.__next__, step_recorder)
    base._reset = _recorded_reset(base._reset, step_recorder)
    when_made(base, lambda iterator, loader: step_recorder.guarded(step_recorder.iterator_created, iterator, loader))
    workers = dataloader._MultiProcessingDataLoaderIter
    workers.__init__ = _timed_start(workers.__init__, step_recorder)
    workers._shutdown_workers = _timed_stop(workers._shutdown_workers, step_recorder)
    return step_recorder


def timed_next(original: Callable[[Any], Any], step_recorder: StepRecorder) -> Callable[[Any], Any]:
    """Wrap a `__next__` so that each call is recorded as a step of the iterator's loader."""

    @left_out_of_warnings
    def __next__(self: Any) -> Any:
        current = None
        if not step_recorder.off and not is_unannounced():
            try:
                current = step_recorder.before_next(self)
            except Exception:
                step_recorder.fail()
        try:
            data = original(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                if current is not None:
                    step_recorder.guarded(step_recorder.epoch_finished, current)
            else:
                step_recorder.guarded(ending.note_children)
            stacks.unmark()
            drop_own_frames(error)
            raise
        if current is None:
            return data
        step_recorder.guarded(step_recorder.after_next, current, data)
        return data

    return __next__


def _recorded_reset(original: Callable[..., None], step_recorder: StepRecorder) -> Callable[..., None]:
    def _reset(self: Any, *args: Any, **options: Any) -> None:
        step_recorder.guarded(step_recorder.epoch_started, self)
        try:
            original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise

    return _reset


def _timed_start(original: Callable[..., None], step_recorder: StepRecorder) -> Callable[..., None]:
    @left_out_of_warnings
    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **options: Any) -> None:
        begin_s = time.monotonic()
        try:
            original(self, loader, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise
        step_recorder.guarded(step_recorder.workers_started, self, begin_s)

    return __init__


def _timed_stop(original: Callable[..., None], step_recorder: StepRecorder) -> Callable[..., None]:
    clock, is_exiting = time.monotonic, sys.is_finalizing  # at the exit of Python, modules may be gone

    @functools.wraps(original)
    def _shutdown_workers(self: Any) -> None:
        begin_s = clock()
        try:
            original(self)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not is_exiting():
            step_recorder.guarded(step_recorder.workers_stopped, self, begin_s)

    return _shutdown_workers


class StepRecorder:
    """Records the steps of the loaders of this process.

    `first_number`: the number of its first loader. A hook calls its methods when an iterator is made, before and after each
    `next()`, and at the end of an epoch.
    """

    def __init__(self, recorder: Recorder, step_clock: StepClock, *, first_number: int = 0) -> None:
        self.first_number = first_number
        self.off = self.failed = False
        self.session = 0
        self.recorder = recorder
        self.step_clock = step_clock
        self.contents: Any = None
        self.begin_session()

    def begin_session(self) -> None:
        """Begin a session with no loaders and zero counters: those of an earlier session of this process are dropped."""
        self.off = self.failed
        self.session += 1
        self.has_batch = False
        self.compilation = first_step.CompileTimer(self.recorder)
        self.operators = OperatorProfile(self.recorder)
        self.loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.open: dict[int, Iteration] = {}
        self.epochs: dict[int, int] = {}
        self.formats: set[int] = set()
        self.elsewhere: set[int] = set()
        if self.contents is not None:
            self.contents.begin_session()

    def guarded(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function` unless the hook is turned off. An exception turns the hook off and never reaches the script."""
        if not self.off:
            try:
                function(*args)
            except Exception:
                self.fail()

    def fail(self) -> None:
        """Turn the hook off after an error, and record that steps are not timed: the job would seem to have no loader."""
        self.off = self.failed = True
        error = sys.exc_info()[1]
        with suppress(Exception):
            write_process(self.recorder, role="main")
        open_step.stop()
        self.recorder.line("not_measured", what=load_hooks.HOOK_FAILED, why=f"{type(error).__name__}: {error}")
        load_hooks.disable("timing of steps")

    # The life of an iterator.

    def iterator_created(self, iterator: Any, loader: Any) -> None:
        """Number the loader of a new iterator. Its workers, which start next, read the number from the environment."""
        described, describe = loader, _describe
        if is_stand_in(loader):
            described, describe = loader.d, _describe_fastai
        number = self.number(iterator, loader, lambda _: describe(described), family=_family(described))
        os.environ[fetch.LOADER_VARIABLE] = f"{number}:{loader.num_workers}"

    def pass_started(self, iterator: Any, loader: Any) -> None:
        """Begin a pass over a loader that is not PyTorch's."""
        self.number(iterator, loader, _describe_other, family=_family(loader))

    def number(self, iterator: Any, loader: Any, describe: Callable[[Any], dict[str, Any]], *, family: str) -> int:
        """Begin a pass over `loader` by `iterator`. Return the loader's number; record its settings the first time."""
        if loader not in self.loaders:
            number = self.loaders[loader] = self.first_number + len(self.epochs)
            self.epochs[number] = 0
            write_process(self.recorder, role="main")
            self.recorder.line("loader", loader=number, family=family, **describe(loader))
            self.recorder.flush(last=False)  # of a first batch that never comes, this is all there is
        number = self.loaders[loader]
        self._end_left_steps(time.monotonic(), of=number)
        iterator._headrace = Iteration(iterator, number, self.epochs[number], self.session)
        self.epochs[number] += 1
        fetch.passes[number] = self.epochs[number]
        self._look("pass_begun", iterator._headrace, loader)
        return number

    def _adopt(self, iterator: Any) -> Iteration:
        """Number an iterator that was made before this session began."""
        describe = _describe_iterator if hasattr(iterator, "_index_sampler") else _describe_other
        self.number(iterator, iterator, describe, family=_family(iterator))
        adopted: Iteration = iterator._headrace
        return adopted

    def workers_started(self, iterator: Any, begin_s: float) -> None:
        """Record the start of an iterator's workers."""
        duration_s = time.monotonic() - begin_s
        self.recorder.event("workers_start", begin_s, duration_s, f"loader {iterator._headrace.loader}")

    def workers_stopped(self, iterator: Any, begin_s: float) -> None:
        """Record the end of an iterator's workers, for which the thread that dropped the iterator waits."""
        iteration, duration_s = getattr(iterator, "_headrace", None), time.monotonic() - begin_s
        if iteration is not None and duration_s >= LEAST_STOP_S:
            self.recorder.event("workers_stop", begin_s, duration_s, f"loader {iteration.loader}")

    def epoch_started(self, iterator: Any) -> None:
        """Begin the next epoch of an iterator with persistent workers."""
        iteration = getattr(iterator, "_headrace", None)
        if iteration is not None and iteration.session == self.session and iteration.count:
            if iteration.end_s is not None:  # the loop left the epoch early; at the end of an epoch the last step is closed
                self._close(iteration, time.monotonic())
            iterator._headrace = Iteration(iterator, iteration.loader, self.epochs[iteration.loader], self.session)
            self.epochs[iteration.loader] += 1
            self._look("pass_begun", iterator._headrace, None)

    def _look(self, moment: str, *args: Any) -> None:
        """Call a method of `contents`, if batches are looked into. It has a guard of its own."""
        if self.contents is not None:
            self.contents.guarded(getattr(self.contents, moment), *args)

    # One step.

    def before_next(self, iterator: Any) -> Iteration:
        """End the previous step, and start the clocks of this call of `next()`."""
        stacks.unmark()
        current: Iteration | None = getattr(iterator, "_headrace", None)
        if current is None or current.session != self.session:
            current = self._adopt(iterator)
        now_s = time.monotonic()
        if len(self.open) > (current.end_s is not None):  # beside its own step
            self._end_left_steps(now_s)
        queue_s = self._close(current, now_s) if current.end_s is not None else None
        current.ready = _is_ready(iterator)
        if not getattr(iterator, "_num_workers", 0):
            fetch.note_loader(current.loader)
        self.step_clock.before_next()
        stacks.mark(stacks.NEXT, current.loader, behind=getattr(getattr(iterator, "_pin_memory_thread", None), "ident", None))
        current.process_cpu_s = time.process_time()
        current.start_queue_s = run_queue_delay_s() if queue_s is None else queue_s  # reading takes the hook's longest time
        current.start_cpu_s = time.thread_time()
        current.start_s = time.monotonic()
        open_step.wait_begun(current.loader, current.epoch, current.count, current.start_s)
        return current

    def after_next(self, current: Iteration, data: Any) -> None:
        """Record that `next()` has returned the batch `data`: the wait for input ends."""
        current.end_s = end_s = time.monotonic()
        current.wait_s = end_s - current.start_s
        current.drained = self.step_clock.after_next()
        if not self.operators.done and current.optimizing:
            self.operators.batch_handed_out()
        if current.count % 64 == 0:
            current.batch_bytes = _size_bytes(data)
            self._note_format(current.loader, data)
        current.items = _batch_size(data)
        current.count += 1
        current.thread = threading.get_ident()
        self.open[current.loader] = current
        open_step.step_begun(current.count, end_s)
        if not self.has_batch:
            self.has_batch = True
            first_step.record_startup(self.recorder)
        self._look("delivered", current, data)
        COUNTERS.reset(end_s)
        current.queue_s = run_queue_delay_s()
        # The step on the only batch of an iterator goes on without the iterator; other steps end with it.
        stacks.mark("step", current.loader, current if current.count == 1 else current.iterator())
        current.cpu_s = time.thread_time()

    def _note_format(self, loader: int, data: Any) -> None:
        """Record the number format of a loader's batches, once."""
        largest = max(_tensors(data), key=lambda tensor: tensor.numel() * tensor.element_size(), default=None)
        if loader not in self.formats and largest is not None:
            self.formats.add(loader)
            self.recorder.line("batch_format", loader=loader, format=str(largest.dtype).removeprefix("torch."))

    def epoch_finished(self, current: Iteration) -> None:
        """Record the end of an epoch (StopIteration)."""
        now_s = time.monotonic()
        open_step.epoch_ended(now_s)
        self._look("pass_ended", current)
        self.recorder.event("epoch_end", current.start_s, now_s - current.start_s, f"loader {current.loader}")
        self.recorder.flush_when_due(now_s)

    def _end_left_steps(self, now_s: float, *, of: int | None = None) -> None:
        """End the steps of this thread whose iterators are gone: nothing will call their `next()` again.

        of: the loader that makes a new iterator. The step on the first batch of the iterator before ends as well. The last step
        of a longer loop, which was left by `break`, is not recorded: what follows the loop is no part of it.
        """
        for left in list(self.open.values()):
            is_left = left.iterator() is None or (left.loader == of and left.count == 1)
            if is_left and left.count > FEW_BATCHES:
                del self.open[left.loader]
            elif is_left and left.thread == threading.get_ident():
                self._close(left, now_s)

    def _close(self, current: Iteration, now_s: float) -> float | None:
        """Record the step of an iteration, which ends now. Return the thread's waits for a core so far."""
        if self.open.get(current.loader) is current:
            del self.open[current.loader]
        cpu_s = time.thread_time()
        queue_s = run_queue_delay_s()
        assert current.end_s is not None
        counted = COUNTERS
        me = threading.get_ident()
        is_here = counted.optimizer_steps > 0 and counted.optimizer_thread == me
        row: list[Any] = [
            current.epoch,
            round(current.start_s * 1e6) / 1e6,
            _rounded(current.wait_s),
            _rounded(now_s - current.end_s),
            current.ready,
            current.items,
            _rounded(cpu_s - current.cpu_s),
            _difference(current.queue_s, queue_s),
            _rounded(time.process_time() - current.process_cpu_s),
            _rounded(counted.sync_s),
            counted.sync_count,
            None,
            counted.optimizer_steps,
            None,
            None,
            counted.forward_s,
            counted.backward_s,
            counted.collective_s,
            current.batch_bytes,
            _difference(current.start_queue_s, current.queue_s),
            _rounded(current.cpu_s - current.start_cpu_s),
            current.drained,
            _rounded(now_s - counted.stepped_s) if is_here else None,
            _rounded(cpu_s - counted.stepped_cpu_s) if is_here else None,
            _difference(counted.stepped_queue_s, queue_s) if is_here else None,
        ]
        current.optimizing = current.optimizing or counted.optimizer_steps > 0
        if counted.optimizer_thread not in (0, me) and current.loader not in self.elsewhere:
            self.elsewhere.add(current.loader)
            self.recorder.event("iterated_elsewhere", now_s, 0.0, f"loader {current.loader}")
        if not self.operators.done and current.optimizing:
            self.operators.step_finished(now_s - current.end_s, cpu_s - current.cpu_s)
        self.compilation.after_step(current.end_s)
        current.end_s = None
        self.step_clock.close_step(current.loader, row)
        self.recorder.flush_when_due(now_s)
        return queue_s


def _family(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else _rounded(after - before)


def _rounded(seconds: float) -> float:
    """Round to 100 ns. `round(seconds, 7)` gives the same in ten times the time, because it goes through decimal text."""
    return round(seconds * 1e7) / 1e7


def _is_ready(iterator: Any) -> int | None:
    """Return 1 if the batch that `next()` will return is ready, 0 if not, None if unknown.

    Out-of-order batches wait in `_task_info`. A batch in the queue is certainly the next one only if there is one worker.
    """
    if not getattr(iterator, "_num_workers", 0) or not hasattr(iterator, "_task_info"):
        return None
    if len(iterator._task_info.get(iterator._rcvd_idx, ())) == 2:
        return 1
    queue = iterator._data_queue
    reader = getattr(queue, "_reader", None)
    if reader is None:  # a thread pins memory and passes batches on by a queue.Queue
        empty = queue.empty()
    else:
        waiting = select.poll()  # unlike `select`, of any number of descriptors
        waiting.register(reader.fileno(), select.POLLIN)
        empty = not waiting.poll(0)
    if empty:
        return 0
    return 1 if iterator._num_workers == 1 else None


def _tensors(data: Any) -> list[Any]:
    """Return the tensors in a batch of nested lists, tuples and dicts."""
    if hasattr(data, "element_size"):
        return [data]
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    return [tensor for child in children for tensor in (_tensors(child) if not isinstance(child, str) else ())]


def _size_bytes(data: Any) -> int | None:
    tensors = _tensors(data)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) if tensors else None


def _batch_size(data: Any) -> int | None:
    """Return the first dimension of the first tensor in the batch; of a batch divided among devices, that of all parts."""
    while isinstance(data, NESTED) and data:
        data = next(iter(data.values())) if isinstance(data, dict) else data[0]
    if type(data).__name__ == "PerReplica":  # of tf.distribute
        return sum(_batch_size(part) or 0 for part in data.values) or None
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else None


def _describe(loader: Any) -> dict[str, Any]:
    """Return the settings of a DataLoader as plain data."""
    dataset = loader.dataset
    context = loader.multiprocessing_context
    return {
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        "batched_by": "loader" if loader.batch_size else "dataset" if loader.batch_sampler is None else "sampler",
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        **_describe_dataset(dataset),
        "collate": getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__qualname__),
        "start_method": context.get_start_method() if context is not None else None,
        "overridden": sorted(getattr(loader, "_headrace_overridden", ())),
    }  # fmt: skip


def is_stand_in(loader: Any) -> bool:
    """Return whether `loader` is the object that fastai passes to PyTorch's iterators instead of a DataLoader."""
    return type(loader).__name__ == "_FakeLoader" and hasattr(loader, "d")


def _describe_fastai(loader: Any) -> dict[str, Any]:
    """Return the settings of fastai's DataLoader. It makes the batches inside its dataset, also in workers."""
    stand_in = loader.fake_l
    return {
        "num_workers": stand_in.num_workers,
        "batch_size": loader.bs,
        "batched_by": "dataset",
        "prefetch_factor": stand_in.prefetch_factor,
        "pin_memory": bool(stand_in.pin_memory),
        "persistent_workers": bool(getattr(stand_in, "persistent_workers", False)),
        **_describe_dataset(loader.dataset),
    }


def _describe_iterator(iterator: Any) -> dict[str, Any]:
    """Return the loader's settings as far as an iterator has them: it does not hold its loader."""
    dataset = iterator._dataset
    return {
        "num_workers": iterator._num_workers,
        "batch_size": getattr(iterator._index_sampler, "batch_size", None),
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
        "pin_memory": bool(iterator._pin_memory),
        "persistent_workers": bool(getattr(iterator, "_persistent_workers", False)),
        **_describe_dataset(dataset),
    }  # fmt: skip


def _describe_other(loader: Any) -> dict[str, Any]:
    """Return the settings of a loader whose class is not PyTorch's. The threads of headrace's own are its workers."""
    if is_native(loader):
        return describe_native(loader)
    dataset = getattr(loader, "dataset", None)
    size = getattr(loader, "batch_size", None)
    return {
        "num_workers": 0,
        "batch_size": size if isinstance(size, int) else None,
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}" if dataset is not None else "",
        "dataset_length": _length(dataset),
    }


def is_native(loader: Any) -> bool:
    """Return whether `loader` is a `headrace.Loader`."""
    return f"{type(loader).__module__}.{type(loader).__qualname__}" == "headrace.loading.loader.Loader"


def describe_native(loader: Any) -> dict[str, Any]:
    """Return the settings of a `headrace.Loader`. Its threads live from epoch to epoch."""
    dataset = loader.dataset
    return {
        "num_workers": loader.options.threads,
        "batch_size": loader.batch_size,
        "batched_by": "loader",
        "persistent_workers": True,
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "dataset_length": _length(dataset),
        "transform": repr(loader.transform)[:2000],
        "sample_paths": _spread(dataset.table.files) if dataset.kind in ("folder", "lst") else [],  # else files are shards
        "iterable": dataset.stream is not None,
    }


def _describe_dataset(dataset: Any) -> dict[str, Any]:
    """Return facts of the dataset as plain data, without those for which a class of the user raises an error."""
    from torch.utils.data import IterableDataset

    questions: dict[str, Callable[[Any], Any]] = {
        "dataset": lambda asked: f"{type(asked).__module__}.{type(asked).__qualname__}",
        "dataset_length": len,
        "transform": lambda asked: repr(asked.transform)[:2000] if getattr(asked, "transform", None) is not None else None,
        "sample_paths": _sample_paths,
        "iterable": lambda asked: isinstance(asked, IterableDataset),
        "image_folder": _is_image_folder,
    }
    found: dict[str, Any] = {}
    for name, answer in questions.items():
        with suppress(Exception):
            found[name] = answer(dataset)
    return found


def _is_image_folder(dataset: Any) -> bool:
    """Return whether `headrace run` may read the dataset: torchvision's or timm's own folder dataset, or parts of them."""
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if name == "torch.utils.data.dataset.Subset":
        return _is_image_folder(dataset.dataset)
    if name == "torch.utils.data.dataset.ConcatDataset":
        return all(_is_image_folder(part) for part in dataset.datasets)
    if name == "timm.data.dataset.ImageDataset":
        return type(dataset.reader).__name__ == "ReaderImageFolder"
    folder = getattr(sys.modules.get("torchvision.datasets.folder"), "DatasetFolder", None)
    if folder is None or not isinstance(dataset, folder):
        return False
    return type(dataset).__getitem__ is folder.__getitem__ and type(dataset).__len__ is folder.__len__


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # datasets may raise anything when they have no length
        return None


def _sample_paths(dataset: Any) -> list[str]:
    """Return paths of up to 64 images spread over an ImageFolder-like dataset, else an empty list.

    Also of one in a Subset, and of several in a ConcatDataset.
    """
    for _ in range(4):
        dataset = getattr(dataset, "dataset", dataset)
    if f"{type(dataset).__module__}.{type(dataset).__qualname__}" == "torch.utils.data.dataset.ConcatDataset":
        parts = dict.fromkeys(path for part in dataset.datasets[:SAMPLE_PATHS] for path in _sample_paths(part))
        return _spread(list(parts))
    samples = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if not isinstance(samples, list) or not samples:
        return []
    return _spread([sample[0] if isinstance(sample, tuple) else sample for sample in _every_nth(samples)])


def _every_nth(values: Sequence[Any]) -> Sequence[Any]:
    return values[:: max(1, len(values) // SAMPLE_PATHS)][:SAMPLE_PATHS]


def _spread(paths: Sequence[Any]) -> list[str]:
    """Return up to 64 of the paths, spread over all of them."""
    return [os.path.abspath(path) for path in _every_nth(paths) if isinstance(path, str) and "://" not in path]  # noqa: PTH100
