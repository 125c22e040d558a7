"""Take over a loader in part: JPEGs that its items open are lazy, and decoded natively. Any dataset class will do.

Item: what `dataset[i]` returns. Lazy image: a Pillow image that is decoded when its pixels are first used (`lazy.pillow`), so
that only the pixels in use are decoded. The script's dataset, transforms and collate function run as before, in its own workers
or in the main process. JPEGs that OpenCV and torchvision.io read are decoded natively (`native_readers`). No code of the script
runs for a comparison: Pillow's operations are compared on a test image, and the first images of each process are decoded both
ways as they are made. Some of the first items are made without lazy images, and CPU times are compared (`lazy.trial`). Where
lazy images do not save CPU time, the loader goes on without them, and its line says so.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _DatasetKind

from headrace.accelerate.lazy.native_readers import compare_first_reads, native_readers, natively_read, readers_imported
from headrace.accelerate.lazy.native_work import WORK, native_work, work_words
from headrace.accelerate.lazy.partly_native import PartlyNative
from headrace.accelerate.lazy.trial import Trial, TrialState
from headrace.accelerate.lazy.used_readers import readers_used
from headrace.accelerate.runtime.pillow_version import follow_installed_pillow
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.loader_copies import loader_copy
from headrace.accelerate.script.replaced_functions import replaced_tool
from headrace.accelerate.script.torch_modes import has_watching_mode
from headrace.accelerate.script.type_comparisons import require_types_of_images_unseen
from headrace.attach.record.log import print_by
from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = [
    "Extension",
    "LazyFetcher",
    "LazyItems",
    "native_steps",
    "require_image_library",
    "trial_of",
    "trial_reason",
    "with_lazy_images",
]

WARM_UP_BATCHES = 1
"""Number of first batches of a process that are not measured: they import modules and compare images."""

BATCHES_WITHOUT_JPEG = 3
"""Stop using lazy images if a process has opened no JPEG in this number of first batches."""

_trials: WeakKeyDictionary[Any, Trial] = WeakKeyDictionary()


class Extension(Protocol):
    """Hooks around the making of each batch with lazy images, used by `deferred.loader`. Must be picklable."""

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager, which is entered while a batch is made with lazy images."""

    def finish(self, batch: Any) -> Any:
        """Return the batch that was made, finished, or an object that goes to the training process in its place."""

    def cost_s(self, batch: Any) -> float | None:
        """Return how many CPU seconds the training process will spend on the batch; None if that cannot be measured."""

    def handed_over(self, batch: Any) -> Any:
        """Return what goes to the training process for a batch, made with lazy images or without: the batch or a stand-in."""


def with_lazy_images(loader: Any, extension: Extension | None = None) -> PartlyNative:
    """Return a copy of the DataLoader in whose items `Image.open` returns lazy JPEGs.

    `extension`: hooks around each batch (default: none). Raise `Unsupported` if Pillow is not imported or not supported, or if
    lazy images were no faster in an earlier epoch.
    """
    require_image_library()
    require_types_of_images_unseen(loader)
    if (replaced := replaced_tool("numpy")) is not None:
        raise Unsupported(f"{replaced} is replaced")
    trial = trial_of(loader)
    if trial.state in (TrialState.NOT_FASTER, TrialState.NO_JPEG):
        raise Unsupported(trial_reason(trial))
    check = "each process compares its first images"
    if "PIL.Image" in sys.modules:
        from headrace.accelerate.lazy.opening import require_equal_operations

        require_equal_operations()
        check = f"Pillow's operations equal on a test image; {check}"
    if loader.num_workers == 0:
        return PartlyNative(loader, "", check, lambda iterator: _fetch_lazily(iterator, trial, extension), trial)
    changed = loader_copy(loader)
    changed.__dict__["worker_init_fn"] = LazyItems(loader.worker_init_fn, trial, extension)
    return PartlyNative(changed, "", check, trial=trial)


def require_image_library() -> None:
    """Raise `Unsupported` if the script's loaders certainly open no JPEG. No code of the script runs."""
    if "PIL.Image" not in sys.modules and not readers_imported():
        raise Unsupported("the script imports neither Pillow nor OpenCV")


def native_steps(loader: Any) -> str:
    """Return in words which reads can become native, from the image libraries that the code of the items names."""
    return work_words([*readers_used(loader), "crop", "resize"])


def trial_of(loader: Any) -> Trial:
    """Return the measurements of a loader of the script, over all its epochs. `give_up(TrialState.LAZY)` ends them."""
    if loader not in _trials:
        _trials[loader] = Trial(loader.num_workers)
    return _trials[loader]


def _fetch_lazily(iterator: Any, trial: Trial, extension: Extension | None) -> Any:
    """Make the iterator of a loader without workers fetch with lazy images, in the thread that iterates."""
    iterator._dataset_fetcher = LazyFetcher(iterator._dataset_fetcher, trial, 0, extension, time.thread_time)
    return iterator


class LazyItems:
    """The `worker_init_fn` of a loader with lazy images. It calls the script's own `worker_init_fn` first."""

    def __init__(self, own: Callable[[int], Any] | None, trial: Trial, extension: Extension | None) -> None:
        self.own = own
        self.trial = trial
        self.extension = extension

    def __call__(self, worker: int) -> None:
        """Make this worker process create a `LazyFetcher` in place of torch's fetcher."""
        if self.own is not None:
            try:
                self.own(worker)
            except BaseException as error:
                drop_own_frames(error)
                raise
        follow_installed_pillow()
        create = _DatasetKind.create_fetcher
        info = torch.utils.data.get_worker_info()

        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            try:
                fetcher = create(kind, dataset, *arguments)
            except BaseException as error:  # of the `__iter__` of an iterable dataset
                drop_own_frames(error)
                raise
            if info is None or dataset is not info.dataset:
                return fetcher  # a loader that the script makes inside its worker
            return LazyFetcher(fetcher, self.trial, worker, self.extension, time.process_time)

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)


class LazyFetcher:
    """A wrapper of torch's fetcher that makes batches with lazy images, unless the measurement shows that they are slower.

    `clock`: returns the CPU time, in seconds, of the thread or process that makes the items.
    """

    def __init__(
        self, fetcher: Any, trial: Trial, worker: int, extension: Extension | None, clock: Callable[[], float]
    ) -> None:
        self._fetcher = fetcher
        self._trial = trial
        self._worker = worker
        self._extension = extension
        self._clock = clock
        self._batches = 0
        self._cannot_be_measured = False
        compare_first_reads()
        if "PIL.Image" in sys.modules:
            from headrace.accelerate.lazy.affine_transform import compare_first_transforms
            from headrace.accelerate.lazy.pillow import compare_first_images

            compare_first_images()
            compare_first_transforms()
        self._opened_before = _opened_natively()
        self._work = native_work()
        if torch.utils.data.get_worker_info() is not None:
            print_by(trial.hand_over)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_fetcher"], name)

    def fetch(self, index: Any) -> Any:
        """Return the batch of torch's fetcher, or what replaces it on the way to the training process.

        An error of an item has the traceback that it would have there.
        """
        try:
            batch = self._fetch(index)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            self._note_work()
        return batch if self._extension is None else self._extension.handed_over(batch)

    def _fetch(self, index: Any) -> Any:
        state = self._trial.state
        if state is TrialState.LAZY and not has_watching_mode():
            return self._lazily(index)
        if state is not TrialState.MEASURING or has_watching_mode():
            return self._fetcher.fetch(index)
        self._batches += 1
        warm_up = self._batches <= WARM_UP_BATCHES
        ordinary = 0 if warm_up else self._ordinary_items(index)
        if ordinary:
            batch = self._divided(index, ordinary)
        else:
            lazy = warm_up or self._trial.next_is_lazy()
            batch, spent_s = self._measured(index, lazy=lazy)
            items = len(index) if isinstance(index, list | tuple) else 1
            if not warm_up:
                self._trial.add(self._worker, lazy=lazy, items=items, cpu_s=spent_s)
        undecided = self._trial.state is TrialState.MEASURING  # another worker may have decided
        if undecided and self._batches == BATCHES_WITHOUT_JPEG and _opened_natively() == self._opened_before:
            self._trial.give_up(TrialState.NO_JPEG)
        return batch

    def _ordinary_items(self, index: Any) -> int:
        """Return how many first items of a batch to make without lazy images. 0 if all are made in one call."""
        fetcher = self._fetcher
        if type(fetcher) not in (_MapDatasetFetcher, _IterableDatasetFetcher) or type(index) is not list:
            return 0
        if not fetcher.auto_collation or getattr(fetcher.dataset, "__getitems__", None):
            return 0
        return self._trial.ordinary_items(len(index))

    def _divided(self, index: list[Any], ordinary: int) -> Any:
        """Make the first `ordinary` items of a batch without lazy images, the others with them, and measure both."""
        extension = None if self._cannot_be_measured else self._extension
        begun_s: list[float] = []
        with contextlib.ExitStack() as around, contextlib.ExitStack() as lazily:

            def begin() -> None:
                begun_s.append(self._clock())
                if extension is not None:
                    around.enter_context(extension.around())
                lazily.enter_context(self._lazy_images())

            divided = _Divided(index, ordinary, begin)
            start_s = self._clock()
            batch = self._fetcher.fetch(divided)
            lazily.close()
            if begun_s and extension is not None:
                batch = extension.finish(batch)
            end_s = self._clock()
        if begun_s and self._cannot_be_measured and self._extension is not None:
            batch = self._extension.finish(batch)
        if not begun_s:
            return batch  # the data ended early
        further_s = extension.cost_s(batch) if extension is not None else None
        lazy_s = end_s - begun_s[0] + (further_s or 0.0)
        measured = (begun_s[0] - start_s, ordinary), (lazy_s, divided.made - ordinary)
        self._trial.add_divided(self._worker, *measured)
        return batch

    def _measured(self, index: Any, *, lazy: bool) -> tuple[Any, float]:
        """Return a batch and its CPU time in seconds, in this process and in the training process."""
        start = self._clock()
        if not lazy:
            return self._fetcher.fetch(index), self._clock() - start
        if self._extension is None:
            return self._fetch_lazily(index), self._clock() - start
        if self._cannot_be_measured:
            return self._extension.finish(self._fetch_lazily(index)), self._clock() - start
        batch = self._lazily(index)
        spent_s = self._clock() - start
        further_s = self._extension.cost_s(batch)
        self._cannot_be_measured = further_s is None
        return batch, spent_s + (further_s or 0.0)

    def _lazily(self, index: Any) -> Any:
        if self._extension is None:
            return self._fetch_lazily(index)
        with self._extension.around():
            return self._extension.finish(self._fetch_lazily(index))

    def _fetch_lazily(self, index: Any) -> Any:
        with self._lazy_images():
            return self._fetcher.fetch(index)

    def _lazy_images(self) -> contextlib.AbstractContextManager[Any]:
        """Return an entered context manager under which an item is made with lazy images."""
        with contextlib.ExitStack() as blocks:
            blocks.enter_context(native_readers())
            if "PIL.Image" in sys.modules:
                from headrace.accelerate.lazy.opening import lazy_images

                blocks.enter_context(lazy_images())
            return blocks.pop_all()

    def _note_work(self) -> None:
        """Record which steps have become native since the last batch, in memory that all processes of the loader share."""
        work = native_work()
        if work != self._work:
            self._trial.note(name for name, now, before in zip(WORK, work, self._work, strict=True) if now > before)
            self._work = work


class _Divided(list[Any]):
    """The list of the indices of a batch, iterated over once. `begin` is called after the first `ordinary` ones.

    `made`: the number of items that have been made.
    """

    def __init__(self, indices: list[Any], ordinary: int, begin: Callable[[], None]) -> None:
        super().__init__(indices)
        self._ordinary = ordinary
        self._begin = begin
        self.made = 0

    def __iter__(self) -> Iterator[Any]:
        for number, index in enumerate(super().__iter__()):
            if number == self._ordinary:
                self._begin()
            yield index
            self.made += 1


def _opened_natively() -> int:
    """Return how many JPEGs this process has opened natively: lazily by Pillow, or by a reader of another library."""
    opening = sys.modules.get("headrace.accelerate.lazy.opening")
    return natively_read() + (opening.lazily_opened() if opening else 0)


def trial_reason(trial: Trial) -> str:
    """Return in words why the items of a loader are made without lazy images."""
    if trial.state is TrialState.NO_JPEG:
        return "its items open no JPEG with Pillow, OpenCV or torchvision.io"
    saves = "saves too little" if trial.cpu_share() < 1 else "does not save"
    return f"native decode {saves} CPU time here (measured: {trial.cpu_share():.2f} × that of the script's own items)"
