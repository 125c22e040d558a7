"""Measure how many images the script's loops took from its loaders, and how long they waited for them.

`install` wraps the `next()` of torch's iterators, which costs about a microsecond a batch. `follow` begins to count for an
iterator. What was counted goes to a file when a pass or the process ends (`write_record`), and `headrace run` prints it as its
last line.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headrace.accelerate.lazy.trial import Trial
from headrace.accelerate.settings import WAITS
from headrace.attach.record.unseen_frames import drop_own_frames, left_out_of_warnings
from headrace.system.files.private_files import private_opener

__all__ = ["LoopWaits", "follow", "install", "waits_of", "write_record"]


class LoopWaits:
    """Batches, images and wait times, summed over all passes over the loaders of one dataset and batch size.

    `dataset`: its description. `batches`, `images`: how many the loop took; `batch_size`: None if the loader does not know, and
    `images` is 0 then. `looped_s`: seconds from the first `next()` of a pass to its end. `waited_s`: of these, seconds inside
    `next()`. `is_native`: whether the last loader was taken over, whole or in part. `trial`: what was measured of it, or None.
    """

    __slots__ = ("batch_size", "batches", "dataset", "images", "is_native", "looped_s", "trial", "waited_s")

    def __init__(self, dataset: str, batch_size: int | None) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.batches = self.images = 0
        self.looped_s = self.waited_s = 0.0
        self.is_native = False
        self.trial: Trial | None = None


class _Pass:
    """One pass over a loader, counted up to `until_s`. `look`: called after each batch, until it returns False."""

    __slots__ = ("look", "until_s", "waits")

    def __init__(self, waits: LoopWaits, look: Callable[[bool], bool] | None) -> None:
        self.waits = waits
        self.until_s = 0.0
        self.look = look


_passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
_waits: dict[tuple[str, int | None], LoopWaits] = {}


def install(after_pass: Callable[[], None], at_exit: Callable[[], None]) -> None:
    """Wrap `_BaseDataLoaderIter.__next__` to count the batches and waits of iterators passed to `follow`. Call it only once.

    `after_pass`: called after each pass. `at_exit`: called when the process ends.
    """
    base: Any = _BaseDataLoaderIter
    base.__next__ = _counted(base.__next__, after_pass)
    process = os.getpid()
    atexit.register(lambda: at_exit() if os.getpid() == process else None)


def follow(iterator: Any, waits: LoopWaits, look: Callable[[bool], bool] | None = None) -> None:
    """Count the batches of a new iterator in `waits`.

    `look`: is called after each batch with False, and at the end of a pass with True, until it returns False.
    """
    _passes[iterator] = _Pass(waits, look)


def waits_of(dataset: str, loader: Any) -> LoopWaits:
    """Return the counts of all loaders of this dataset and batch size: batches, images, seconds looped and waited.

    `dataset`: its description (`folders.describe`). The counts begin at 0.
    """
    held = getattr(getattr(loader, "batch_sampler", None), "__dict__", {})  # a property would run code of the script
    size = getattr(loader, "batch_size", None) or held.get("batch_size")
    key = dataset, size if type(size) is int else None
    if key not in _waits:
        _waits[key] = LoopWaits(*key)
    return _waits[key]


def write_record(folder: Path) -> None:
    """Write the sums of the loader over which the script looped longest, of those that are taken over, to a file in `folder`.

    An error of the file (folder gone, disk full) is ignored: only the last line of `headrace run` is missing then.
    """
    waits = max((one for one in _waits.values() if one.is_native and one.batches), key=lambda one: one.looped_s, default=None)
    if waits is None or not waits.looped_s or get_worker_info() is not None:
        return
    measured = waits.trial.measured() if waits.trial is not None else None
    record = {
        "dataset": waits.dataset,
        "batches": waits.batches,
        "images": waits.images,
        "seconds": waits.looped_s,
        "wait_share": waits.waited_s / waits.looped_s,
        "item_cpu_share": measured[0] if measured else None,
        "measured_items": measured[1] if measured else None,
        "rank": os.environ.get("RANK"),
        "pid": os.getpid(),
    }
    path = folder / WAITS.format(os.getpid())
    with suppress(OSError), open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(json.dumps(record))


def _counted(original: Callable[[Any], Any], after_pass: Callable[[], None]) -> Callable[[Any], Any]:
    @left_out_of_warnings
    def __next__(self: Any) -> Any:
        current = _passes.get(self)
        begin_s = perf_counter()
        try:
            data = original(self)
        except BaseException as error:
            if current is not None and isinstance(error, StopIteration):
                _end(current, self, begin_s)
                after_pass()
            drop_own_frames(error)
            raise
        if current is not None:
            _add(current, self, begin_s, data)
        return data

    return __next__


def _add(current: _Pass, iterator: Any, begin_s: float, data: Any) -> None:
    now_s, waits = perf_counter(), current.waits
    first = iterator._num_yielded == 1
    waits.looped_s += now_s - (begin_s if first else current.until_s)
    waits.waited_s += now_s - begin_s
    waits.batches += 1
    if waits.batch_size is not None:
        waits.images += _images(data, waits.batch_size)
    current.until_s = now_s
    if current.look is not None and not current.look(False):
        current.look = None


def _end(current: _Pass, iterator: Any, begin_s: float) -> None:
    now_s, waits = perf_counter(), current.waits
    if iterator._num_yielded:
        waits.looped_s += now_s - current.until_s
        waits.waited_s += now_s - begin_s
    if current.look is not None and not current.look(True):
        current.look = None


def _images(data: Any, batch_size: int) -> int:
    """Return the number of images in a batch: the last one of a pass may hold fewer."""
    first = data[0] if type(data) in (list, tuple) and data else next(iter(data.values()), None) if type(data) is dict else data
    if isinstance(first, Tensor) and first.ndim:
        return min(batch_size, int(first.shape[0]))
    return batch_size
