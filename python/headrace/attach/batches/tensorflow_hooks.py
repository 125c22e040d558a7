"""The hook module for TensorFlow: time the batches of tf.data iterators in custom loops and in Keras's `fit`.

A custom loop calls the iterator's `__next__` in Python, and the hook times that call as it times a DataLoader's. Keras reads
batches of a tf.data dataset inside its compiled function, where no hook can time them. Keras reads a plain Python iterator in
Python. The hook therefore gives Keras a plain iterator over the same batches in the same order. Datasets that a strategy of
tf.distribute divides among devices are timed in the same ways. Loops inside a `tf.function` are not timed.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.attach.batches import tensorflow_pipeline as pipelines
from headrace.attach.batches.native_batches import NativeBatches
from headrace.attach.batches.steps import DEVICE_COLUMNS, STEP_RECORDERS, StepRecorder, describe_native, timed_next
from headrace.attach.record import load_hooks
from headrace.attach.record.device_clock import StepClock
from headrace.attach.record.processes import keep_open_step
from headrace.attach.record.recorder import Recorder, recorder
from headrace.attach.record.threads import read_io
from headrace.attach.training import first_step

__all__ = ["install"]

KERAS_TRAINER = "keras.src.backend.tensorflow.trainer"
DISTRIBUTE = "tensorflow.python.distribute.input_lib"
TAPE = "tensorflow.python.eager.backprop"
FIRST_NUMBER = 1000
"""Number tf.data's loaders from here, above the numbers of PyTorch's loaders in the same process."""
OPENED_AT_STEP = 8
"""Look which image files a generator has opened after this many batches."""

_making = threading.local()
"""`distributed`: whether this thread makes the iterator of a distributed dataset, and with it those of its parts."""


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
    watched = _Pipelines(step_recorder)
    kind.__next__ = _timed(kind.__next__, watched)
    dataset_ops.DatasetV2.__iter__ = _numbered(dataset_ops.DatasetV2.__iter__, watched)
    kinds = [kind]
    load_hooks.when_imported(DISTRIBUTE, partial(_patch_distributed, watched, kinds))
    load_hooks.when_imported(TAPE, partial(_patch_tape, watched))
    load_hooks.when_imported(KERAS_TRAINER, partial(_patch_keras, watched, kinds))


class _Pipelines:
    """What this process does with tf.data: its loaders, and the settings of its training step."""

    def __init__(self, step_recorder: StepRecorder) -> None:
        self.step_recorder = step_recorder
        self.native = NativeBatches(step_recorder.recorder)
        self.opened: pipelines.OpenedImages | None = None
        self._delivered = 0
        self._settings: dict[str, Any] = {}

    def started(self, iterator: Any, dataset: Any) -> None:
        """Number the loader of a new iterator."""
        stages, loader = pipelines.pipeline_of(dataset), pipelines.bridged_loader(dataset)
        iterator._headrace_overlapped = any(word in stage for stage in stages for word in pipelines.OVERLAPPING)
        iterator._headrace_bridge = loader
        if any("generator" in stage for stage in stages) and self.opened is None:
            self.opened = pipelines.OpenedImages()

        def describe(dataset: Any) -> dict[str, Any]:
            if loader is not None:
                return describe_native(loader) | {"pipeline": list(stages)}
            return {
                "num_workers": 0,
                "batch_size": pipelines.batch_size(dataset),
                "dataset": f"tf.data {stages[0] if stages else ''}".strip(),
                "dataset_length": None,
                "pipeline": list(stages),
                "sample_paths": pipelines.image_paths(dataset),
            }

        self.step_recorder.number(iterator, dataset, describe, family="tensorflow" if loader is None else "headrace")

    def delivered(self, iterator: Any) -> None:
        """Note the cost of a batch of headrace's own loader, and the images that a generator opens, once a batch came."""
        current = iterator._headrace
        loader = getattr(iterator, "_headrace_bridge", None)
        if loader is not None:
            self.native.after_batch(loader, current.loader, current.items)
        if self.opened is None or loader is not None:
            return
        self._delivered += 1
        if self._delivered == OPENED_AT_STEP:
            paths = self.opened.stop()
            if paths:
                self.step_recorder.recorder.line("opened_images", loader=current.loader, sample_paths=paths)

    def note(self, **settings: Any) -> None:
        """Record how the training step is made, where that has changed."""
        if not settings.items() <= self._settings.items():
            self._settings |= settings
            self.step_recorder.recorder.line("fact", name="tensorflow", value=dict(self._settings))


def _numbered(original: Callable[[Any], Any], watched: _Pipelines) -> Callable[[Any], Any]:
    """Wrap `__iter__` of a dataset so that its iterator is recorded as a pass over it."""

    def __iter__(self: Any) -> Any:
        iterator = original(self)
        if not getattr(_making, "distributed", False):
            watched.step_recorder.guarded(watched.started, iterator, self)
        return iterator

    return __iter__


def _patch_distributed(watched: _Pipelines, kinds: list[type], module: Any) -> None:
    for name in ("DistributedDataset", "DistributedDatasetsFromFunction"):
        kind = getattr(module, name)
        kind.__iter__ = _numbered(_alone(kind.__iter__), watched)
    module.DistributedIterator.__next__ = _timed(module.DistributedIterator.__next__, watched)
    kinds.append(module.DistributedIterator)


def _alone(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `__iter__` of a distributed dataset: the iterators of its parts are no passes of their own."""

    def __iter__(self: Any) -> Any:
        _making.distributed = True
        try:
            return original(self)
        finally:
            _making.distributed = False

    return __iter__


def _patch_tape(watched: _Pipelines, module: Any) -> None:
    """Note once whether gradients are computed outside a `tf.function`: each operator is then started from Python."""
    from tensorflow.python.eager import context

    original = module.GradientTape.gradient

    def gradient(self: Any, *args: Any, **options: Any) -> Any:
        if context.executing_eagerly():
            module.GradientTape.gradient = original
            watched.step_recorder.guarded(partial(watched.note, eager=True))
        return original(self, *args, **options)

    module.GradientTape.gradient = gradient


def _timed(original: Callable[[Any], Any], watched: _Pipelines) -> Callable[[Any], Any]:
    """Wrap `__next__` as a step. If no stage runs in the background, its time is also that of making the batch."""
    from tensorflow.python.eager import context

    step_recorder = watched.step_recorder

    def make_batch(self: Any) -> Any:
        if step_recorder.off or getattr(self, "_headrace_overlapped", True) or self._headrace_bridge is not None:
            return original(self)
        begin_s, begin_cpu_s, begin_io = time.monotonic(), time.process_time(), read_io()
        data = original(self)
        cpu_s = time.process_time() - begin_cpu_s
        step_recorder.guarded(_record_batch, step_recorder.recorder, self, begin_s, cpu_s, begin_io)
        return data

    timed = timed_next(make_batch, step_recorder)

    def __next__(self: Any) -> Any:
        if not context.executing_eagerly():  # a tf.function is being traced: this call happens once, not in each step
            return original(self)
        data = timed(self)
        if getattr(self, "_headrace", None) is not None:
            step_recorder.guarded(watched.delivered, self)
        return data

    return __next__


def _record_batch(target: Recorder, iterator: Any, begin_s: float, cpu_s: float, begin_io: tuple[int, int] | None) -> None:
    wall_s, end_io = time.monotonic() - begin_s, read_io()
    row: list[Any] = [begin_s, wall_s, None, min(cpu_s, wall_s)]
    if begin_io is not None and end_io is not None:
        row += [*[None] * 5, end_io[0] - begin_io[0], end_io[1] - begin_io[1]]
    target.row("batches", iterator._headrace.loader, row)


def _patch_keras(watched: _Pipelines, kinds: list[type], module: Any) -> None:
    epochs = module.TFEpochIterator
    epochs.__next__ = _with_python_iterator(epochs.__next__, kinds)
    epochs._get_iterator = _with_bridge(epochs._get_iterator)
    trainer = module.TensorFlowTrainer
    trainer.make_train_function = _noted(trainer.make_train_function, watched)


def _with_bridge(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the method that gives Keras' dataset of an epoch: one made from `Loader.to_keras_dataset` keeps its loader."""

    def _get_iterator(self: Any) -> Any:
        dataset = original(self)
        loader = getattr(getattr(self.data_adapter, "py_dataset", None), pipelines.LOADER_ATTRIBUTE, None)
        if loader is not None:
            setattr(dataset, pipelines.LOADER_ATTRIBUTE, loader)
        return dataset

    return _get_iterator


def _noted(original: Callable[..., Any], watched: _Pipelines) -> Callable[..., Any]:
    """Wrap the method in which a Keras model makes its training step, to record its settings."""

    def make_train_function(self: Any, *args: Any, **options: Any) -> Any:
        made = original(self, *args, **options)
        watched.step_recorder.guarded(_note_keras, watched, self)
        return made

    return make_train_function


def _note_keras(watched: _Pipelines, model: Any) -> None:
    policy = getattr(getattr(model, "dtype_policy", None), "name", None)
    watched.note(
        keras=True,
        steps_per_execution=int(model.steps_per_execution or 1),
        run_eagerly=bool(model.run_eagerly),
        jit_compile=bool(model.jit_compile),
        policy=str(policy) if policy is not None else None,
        layers=sorted({str(layer.dtype_policy.name) for layer in model.layers if hasattr(layer, "dtype_policy")})[:4],
    )


def _with_python_iterator(original: Callable[[Any], Any], kinds: list[type]) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:
        begin, end, iterator = original(self)
        return begin, end, _PythonIterator(iterator) if type(iterator) in kinds else iterator  # one of the script stays

    return __next__


class _PythonIterator:
    """A plain Python iterator over the same batches, for one call of Keras' function.

    Without a batch it ends with TensorFlow's own error, which Keras expects; after some, as an iterator of Python ends.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._is_used = False

    def __iter__(self) -> _PythonIterator:
        return self

    def __next__(self) -> Any:
        try:
            data = next(self._inner)
        except StopIteration:
            if self._is_used:  # `steps_per_execution` does not divide the number of batches
                raise
            from tensorflow.errors import OutOfRangeError

            raise OutOfRangeError(None, None, f"end of data (seen by headrace in process {os.getpid()})") from None
        self._is_used = True
        return data
