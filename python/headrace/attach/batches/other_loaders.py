"""Time loaders other than PyTorch's: headrace's, FFCV's, DALI's iterators. Each is patched when its module is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from headrace.attach.batches.native_batches import NativeBatches
from headrace.attach.batches.steps import StepRecorder, is_native, timed_next
from headrace.attach.record import load_hooks

__all__ = ["install"]

ITERABLES = (("headrace.loading.loader", "Loader"), ("ffcv.loader.loader", "Loader"))
"""Classes, by module and name, whose `__iter__` returns a new iterator for each pass."""

ITERATORS = (("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),)
"""Classes, by module and name, that are iterators themselves."""


def install(step_recorder: StepRecorder) -> None:
    """Patch the loader classes in `ITERABLES` and `ITERATORS` now, or when their module is imported."""
    for module, name in ITERABLES:
        load_hooks.when_imported(module, partial(_patch_class, _patch_iterable, name, step_recorder))
    for module, name in ITERATORS:
        load_hooks.when_imported(module, partial(_patch_class, _patch_iterator, name, step_recorder))


def _patch_class(
    patch: Callable[[Any, StepRecorder], None], name: str, step_recorder: StepRecorder, module: ModuleType
) -> None:
    patch(getattr(module, name), step_recorder)


def _patch_iterable(kind: Any, step_recorder: StepRecorder) -> None:
    original: Callable[[Any], Iterator[Any]] = kind.__iter__
    batches = NativeBatches(step_recorder.recorder)

    def __iter__(self: Any) -> Iterator[Any]:
        inner = original(self)
        if step_recorder.off:
            return inner
        return _TimedPass(inner, self, step_recorder, batches if is_native(self) else None)

    kind.__iter__ = __iter__


def _patch_iterator(kind: Any, step_recorder: StepRecorder) -> None:
    def prepared(self: Any) -> Any:
        return original(self)

    original: Callable[[Any], Any] = kind.__next__
    timed = timed_next(prepared, step_recorder)

    def __next__(self: Any) -> Any:
        if not hasattr(self, "_headrace"):
            step_recorder.guarded(step_recorder.pass_started, self, self)
        return timed(self)

    kind.__next__ = __next__


class _TimedPass:
    """A wrapper of a loader's iterator that times each `next()`. All other attributes are the iterator's own."""

    _num_workers = 0

    def __init__(self, inner: Iterator[Any], loader: Any, step_recorder: StepRecorder, batches: NativeBatches | None) -> None:
        self._inner, self._loader = inner, loader
        self._timed = timed_next(lambda timed: next(inner), step_recorder)
        self._step_recorder = step_recorder
        self._batches = batches
        step_recorder.guarded(step_recorder.pass_started, self, loader)

    def __iter__(self) -> _TimedPass:
        return self

    def __next__(self) -> Any:
        data = self._timed(self)
        if self._batches is not None and not self._step_recorder.off:
            self._step_recorder.guarded(self._note_batch, self._batches)
        return data

    def _note_batch(self, batches: NativeBatches) -> None:
        current = self._headrace  # the step recorder sets it
        batches.after_batch(self._loader, current.loader, current.items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
