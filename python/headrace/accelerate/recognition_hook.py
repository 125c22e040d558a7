"""The hook of `headrace diagnose`: find out whether `headrace run` would take over each DataLoader of the job.

The loader is not taken over.
The answer stands in the session, so that `headrace run` is advised only where it helps. The rules look at types and arguments.
They call nothing of the script that may draw random numbers, open a file or change a state; what `run` proves by comparing
images (`--check`, the items of native decode) is not proved here. A loader is asked about once, when its first iterator has
been made, which belongs to no step.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from headrace.accelerate.refusal import own_iterators, tensors_in_memory
from headrace.accelerate.runtime.unsupported import Refusal, attempt
from headrace.attach.record.recorder import Recorder, recorder
from headrace.attach.record.unseen_frames import drop_own_frames, when_made

__all__ = ["Answer", "ask", "install"]

FREE_LOADERS = 4
"""Number of first loaders that are always examined. More are examined while that stays cheap (`MOST_SHARE`)."""

MOST_SHARE = 0.005
"""Stop examining loaders when this has taken more than this share of the time since the first loader: it slows the job."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether and how `headrace run` would take over a loader.

    `take_over`: "whole", "part" (native decode in the script's own workers), "refused", "active" (the script runs under
    `headrace run`), or "unknown". `reason`: why not as a whole, or why it is not known. `native_part`: "resized" or "cropped",
    the last step that native decode applies; None with lazy images, whose gain only the items themselves tell.
    """

    take_over: str
    reason: str | None = None
    native_part: str | None = None


def install() -> None:
    """Wrap `DataLoader._get_iterator`, and the iterators of loader classes that make their own."""
    from torch.utils.data import dataloader

    asker = _Asker(recorder())
    dataloader.DataLoader._get_iterator = _asking(dataloader.DataLoader._get_iterator, asker)
    when_made(dataloader._BaseDataLoaderIter, asker.record_others)


def _asking(original: Callable[[Any], Any], asker: _Asker) -> Callable[[Any], Any]:
    @functools.wraps(original)  # with the mark of `headrace run`, if it is installed
    def get_iterator(loader: Any) -> Any:
        try:
            iterator = original(loader)
        except BaseException as error:
            drop_own_frames(error)
            raise
        asker.record(iterator, loader)
        return iterator

    return get_iterator


class _Asker:
    """Examines each loader of this process once in a session, and records the answer."""

    def __init__(self, target: Recorder) -> None:
        self._recorder = target
        self._asked: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        self._count = 0
        self._spent_s = 0.0
        self._began_s = time.monotonic()

    def record(self, iterator: Any, loader: Any) -> None:
        """Record the answer for the loader of a new iterator. An error is recorded, and never reaches the script."""
        try:
            current = getattr(iterator, "_headrace", None)
            if current is None or self._recorder.closed or _is_in_worker():
                return
            place = (current.session, current.loader)
            if self._asked.get(loader) == place or self._is_too_dear():
                return
            self._asked[loader] = place
            begin_s = time.monotonic()
            answer = ask(loader)
            spent_s = time.monotonic() - begin_s
            self._count += 1
            self._spent_s += spent_s
            self._recorder.line(
                "take_over",
                loader=current.loader,
                take_over=answer.take_over,
                take_over_reason=answer.reason,
                native_part=answer.native_part,
                seconds=round(spent_s, 6),
            )
        except Exception as error:  # the loader's own attributes may raise anything; the job goes on without an answer
            _require_no_signal(error)
            return

    def record_others(self, iterator: Any, loader: Any) -> None:
        """Record the answer for a loader whose class makes its own iterators. Raise nothing."""
        with suppress(Exception):
            if own_iterators(loader):
                self.record(iterator, loader)

    def _is_too_dear(self) -> bool:
        return self._count >= FREE_LOADERS and self._spent_s > MOST_SHARE * (time.monotonic() - self._began_s)


def _require_no_signal(error: Exception) -> None:
    """Raise an error again that a signal handler of the script has raised meanwhile."""
    from headrace.accelerate.workers.errors import is_of_handler

    if is_of_handler(error):
        raise error


def ask(loader: Any) -> Answer:
    """Return how `headrace run` would take over a DataLoader, by its rules alone: nothing is compared. Raise nothing."""
    try:
        return _ask(loader)
    except Exception as error:
        _require_no_signal(error)
        return Answer("unknown", f"its recogniser failed ({type(error).__name__}: {error})")


def _ask(loader: Any) -> Answer:
    from torch.utils.data import DataLoader

    if (reason := own_iterators(loader)) is not None:
        return Answer("refused", reason)
    if getattr(DataLoader._get_iterator, "_headrace", False):
        return Answer("active")
    if (reason := tensors_in_memory(loader.dataset)) is not None:
        return Answer("refused", reason)
    if "numpy" not in sys.modules:
        return Answer("unknown", "the script does not use NumPy, which headrace run imports")
    # Imported here, so that a script without a DataLoader does not load the native module.
    from headrace.accelerate.transforms.torch_blur import without_comparison

    with without_comparison():
        return _recognised(loader)


def _recognised(loader: Any) -> Answer:
    from headrace.accelerate.lazy.loader import native_steps, require_image_library
    from headrace.accelerate.script.type_comparisons import require_types_of_images_unseen
    from headrace.accelerate.whole.recognition import Recognition

    recognition = Recognition(loader)
    whole = recognition.first_that_fits(lambda recognised: Answer("whole"))
    if not isinstance(whole, Refusal):
        return whole
    transforms = recognition.first_transforms
    if not isinstance(transforms, Refusal):
        first = transforms[0]
        return Answer("part", f"decode and {first.name} at least: {whole}", "resized" if first.resized else "cropped")
    for rule in (require_image_library, lambda: require_types_of_images_unseen(loader)):
        if (refusal := attempt(rule)) is not None:
            return Answer("refused", f"{whole}; not in part either: {refusal}")
    return Answer("part", f"{native_steps(loader)} only: {whole}")


def _is_in_worker() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None
