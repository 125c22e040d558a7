"""The hook module for TensorFlow: time the batches of tf.data iterators in custom loops and in Keras's `fit`.

A custom loop calls the iterator's `__next__` in Python, and the hook times that call as it times a DataLoader's. Keras reads
batches of a tf.data dataset inside its compiled function, where no hook can time them. Keras reads a plain Python iterator in
Python. The hook therefore gives Keras a plain iterator over the same batches in the same order. Loops inside a `tf.function`
are not timed.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from headrace.attach.batches.steps import DEVICE_COLUMNS, STEP_RECORDERS, StepRecorder, timed_next
from headrace.attach.record import load_hooks
from headrace.attach.record.device_clock import StepClock
from headrace.attach.record.processes import keep_open_step
from headrace.attach.record.recorder import Recorder, recorder
from headrace.attach.training import first_step

__all__ = ["install", "pipeline_of"]

KERAS_TRAINER = "keras.src.backend.tensorflow.trainer"
MOST_STAGES = 40
FIRST_NUMBER = 1000
"""Number tf.data's loaders from here, above the numbers of PyTorch's loaders in the same process."""
OVERLAPPING = ("Parallel", "Prefetch", "MapAndBatch")
"""A pipeline with a stage whose class name contains one of these makes batches in the background: `next()` then waits only."""


class _NoClock:
    """A clock that is never usable: events on TensorFlow's streams cannot be recorded from Python."""

    def usable(self) -> bool:
        return False

    def record(self) -> Any:
        return None

    def passed(self, event: Any) -> bool:
        return True

    def elapsed_s(self, first: Any, second: Any) -> float:
        return 0.0

    def release(self, events: list[Any]) -> None:
        return None


def install() -> None:
    """Patch tf.data's eager iterator now, and Keras when it is imported, to record their batches as steps."""
    from tensorflow.python.data.ops import dataset_ops, iterator_ops

    target = recorder()
    keep_open_step(target)
    step_clock = StepClock(_NoClock(), DEVICE_COLUMNS, lambda loader, row: target.row("steps", loader, row))
    atexit.register(step_clock.drain)
    step_recorder = StepRecorder(target, step_clock, first_number=FIRST_NUMBER)
    STEP_RECORDERS.append(step_recorder)
    first_step.install()
    kind = iterator_ops.OwnedIterator
    kind.__next__ = _timed(kind.__next__, step_recorder)
    dataset_ops.DatasetV2.__iter__ = _numbered(dataset_ops.DatasetV2.__iter__, step_recorder)
    load_hooks.when_imported(KERAS_TRAINER, partial(_patch_keras, kind))


def _numbered(original: Callable[[Any], Any], step_recorder: StepRecorder) -> Callable[[Any], Any]:
    """Wrap `__iter__` of a dataset so that its iterator is recorded as a pass over it."""

    def __iter__(self: Any) -> Any:
        iterator = original(self)
        step_recorder.guarded(_start, step_recorder, iterator, self)
        return iterator

    return __iter__


def _start(step_recorder: StepRecorder, iterator: Any, dataset: Any) -> None:
    stages = pipeline_of(dataset)
    overlapped = any(word in stage for stage in stages for word in OVERLAPPING)
    iterator._headrace_overlapped = overlapped
    description = {
        "num_workers": 0,
        "batch_size": _batch_size(dataset),
        "dataset": f"tf.data {stages[0]}",
        "dataset_length": None,
        "pipeline": list(stages),
    }
    step_recorder.number(iterator, dataset, lambda _: description, family="tensorflow")


def pipeline_of(dataset: Any) -> tuple[str, ...]:
    """Return the stages of a tf.data pipeline from source to end, without suffixes: ("TFRecord", "ParallelMap", "Batch").

    A stage whose function runs in Python is marked: "Map (python)", "FlatMap (generator)". Of several inputs (zip, concatenate)
    only the first is named.
    """
    names: list[str] = []
    while dataset is not None and len(names) < MOST_STAGES:
        name = type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("V1").removesuffix("Dataset")
        if name not in ("Options", "Model", ""):
            names.append(name + _python_in(dataset))
        inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
        dataset = inputs[0] if inputs else None
    return tuple(reversed(names))


def _python_in(dataset: Any) -> str:
    """Return " (generator)" or " (python)" if the stage's function calls Python, by the operations in its graph, else ""."""
    function = getattr(getattr(dataset, "_map_func", None), "function", None)
    graph = getattr(function, "graph", None)
    if graph is None:
        return ""
    operations = {operation.type for operation in graph.get_operations()}
    if "GeneratorDataset" in operations:
        return " (generator)"
    return " (python)" if operations & {"PyFunc", "EagerPyFunc", "PyFuncStateless"} else ""


def _batch_size(dataset: Any) -> int | None:
    """Return the static first dimension of the first component, or None."""
    spec = getattr(dataset, "element_spec", None)
    while isinstance(spec, tuple | list | dict) and spec:
        spec = next(iter(spec.values())) if isinstance(spec, dict) else spec[0]
    shape = getattr(spec, "shape", None)
    try:
        return int(shape[0]) if shape is not None and len(shape) and shape[0] is not None else None
    except (TypeError, ValueError):  # unknown rank
        return None


def _timed(original: Callable[[Any], Any], step_recorder: StepRecorder) -> Callable[[Any], Any]:
    """Wrap `__next__` as a step. If no stage runs in the background, its time is also that of making the batch."""

    def make_batch(self: Any) -> Any:
        if step_recorder.off or getattr(self, "_headrace_overlapped", True):
            return original(self)
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        data = original(self)
        step_recorder.guarded(_record_batch, step_recorder.recorder, self, begin_s, time.process_time() - begin_cpu_s)
        return data

    return timed_next(make_batch, step_recorder)


def _record_batch(target: Recorder, iterator: Any, begin_s: float, cpu_s: float) -> None:
    wall_s = time.monotonic() - begin_s
    target.row("batches", iterator._headrace.loader, [begin_s, wall_s, None, min(cpu_s, wall_s)])


def _patch_keras(kind: type, module: ModuleType) -> None:
    epochs = module.TFEpochIterator
    epochs.__next__ = _with_python_iterator(epochs.__next__, kind)


def _with_python_iterator(original: Callable[[Any], Any], kind: type) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:
        begin, end, iterator = original(self)
        # A distributed iterator, or an iterator of the script, stays.
        return begin, end, _PythonIterator(iterator) if type(iterator) is kind else iterator

    return __next__


class _PythonIterator:
    """A plain Python iterator over the same batches. It ends with TensorFlow's own error, which Keras expects."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> _PythonIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._inner)
        except StopIteration:
            from tensorflow.errors import OutOfRangeError

            raise OutOfRangeError(None, None, f"end of data (seen by headrace in process {os.getpid()})") from None
