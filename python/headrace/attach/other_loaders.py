"""Time loaders that are not PyTorch's: headrace's own, FFCV's, DALI's iterators. By name, when their module is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from headrace.attach import load_hooks
from headrace.attach.steps import StepRecorder, timed_next

__all__ = ["install"]

ITERABLES = (("headrace.loading.loader", "Loader"), ("ffcv.loader.loader", "Loader"))
"""Classes whose `__iter__` gives a new iterator for each pass."""

ITERATORS = (("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),)
"""Classes that are iterators themselves."""


def install(step_recorder: StepRecorder) -> None:
    """Patch each class now, or when its module has been imported."""
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

    def __iter__(self: Any) -> Iterator[Any]:
        inner = original(self)
        if step_recorder.off:
            return inner
        return _TimedPass(inner, self, step_recorder)

    kind.__iter__ = __iter__


def _patch_iterator(kind: Any, step_recorder: StepRecorder) -> None:
    def prepared(self: Any) -> Any:
        return original(self)

    original: Callable[[Any], Any] = kind.__next__
    timed = timed_next(prepared, step_recorder)

    def __next__(self: Any) -> Any:
        if not hasattr(self, "_headrace"):
            step_recorder.guarded(step_recorder.starting_other, self, self)
        return timed(self)

    kind.__next__ = __next__


class _TimedPass:
    """One pass over a loader: its own iterator, each `next()` timed. Everything else is the inner iterator's."""

    _num_workers = 0

    def __init__(self, inner: Iterator[Any], loader: Any, step_recorder: StepRecorder) -> None:
        self._inner = inner
        self._timed = timed_next(lambda timed: next(inner), step_recorder)
        step_recorder.guarded(step_recorder.starting_other, self, loader)

    def __iter__(self) -> _TimedPass:
        return self

    def __next__(self) -> Any:
        return self._timed(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
