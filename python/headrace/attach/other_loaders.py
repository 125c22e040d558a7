"""Time loaders that are not PyTorch's: headrace's own, FFCV's, DALI's iterators. By name, when their module is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from headrace.attach import load_hooks as startup
from headrace.attach.steps import Watch, timed_next

__all__ = ["install"]

ITERABLES = (("headrace.loading.loader", "Loader"), ("ffcv.loader.loader", "Loader"))
"""Classes whose `__iter__` gives a new iterator for each pass."""

ITERATORS = (("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),)
"""Classes that are iterators themselves."""


def install(watch: Watch) -> None:
    """Patch each class now, or when its module has been imported."""
    for module, name in ITERABLES:
        startup.when_imported(module, partial(_patch_class, _patch_iterable, name, watch))
    for module, name in ITERATORS:
        startup.when_imported(module, partial(_patch_class, _patch_iterator, name, watch))


def _patch_class(patch: Callable[[Any, Watch], None], name: str, watch: Watch, module: ModuleType) -> None:
    patch(getattr(module, name), watch)


def _patch_iterable(kind: Any, watch: Watch) -> None:
    original: Callable[[Any], Iterator[Any]] = kind.__iter__

    def __iter__(self: Any) -> Iterator[Any]:
        inner = original(self)
        if watch.off:
            return inner
        return _TimedPass(inner, self, watch)

    kind.__iter__ = __iter__


def _patch_iterator(kind: Any, watch: Watch) -> None:
    def prepared(self: Any) -> Any:
        return original(self)

    original: Callable[[Any], Any] = kind.__next__
    timed = timed_next(prepared, watch)

    def __next__(self: Any) -> Any:
        if not hasattr(self, "_headrace"):
            watch.guarded(watch.starting_other, self, self)
        return timed(self)

    kind.__next__ = __next__


class _TimedPass:
    """One pass over a loader: its own iterator, each `next()` timed. Everything else is the inner iterator's."""

    _num_workers = 0

    def __init__(self, inner: Iterator[Any], loader: Any, watch: Watch) -> None:
        self._inner = inner
        self._timed = timed_next(lambda timed: next(inner), watch)
        watch.guarded(watch.starting_other, self, loader)

    def __iter__(self) -> _TimedPass:
        return self

    def __next__(self) -> Any:
        return self._timed(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
