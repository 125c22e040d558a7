"""The hook of `diagnose --find-learning-rate`: the script's own loop with a learning rate that grows with each update.

The first optimizer that steps gets the rate of the test for the time of its step, and its own back after it, so that
schedulers of the script go on from their own values. Groups keep the ratio of their rates. The loader gives its batches without
an end while the loop trains, so that no epoch ends in a validation or a checkpoint. The trained weights are of no use, and must
not take the place of good ones: the run ends after the last update, and before that where the script saves them or would change
a file (`kept_files`). An error of the test ends the run too: the script is not to train on with these rates.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from headrace.attach.experiments import kept_files
from headrace.attach.experiments.range_curve import UPDATES, RangeCurve
from headrace.attach.experiments.replay import length_of
from headrace.attach.record import load_hooks
from headrace.attach.record.processes import rank_of_process
from headrace.attach.record.recorder import Recorder, recorder
from headrace.attach.record.unseen_frames import when_made
from headrace.attach.training.loss import LossReader, note_losses

__all__ = ["FACT", "install"]

FACT = "range_test"
"""Name of the session's fact that holds the curve."""

WRITTEN_EACH = 10
"""Write the curve after this many updates: a script may end before the test does."""

MOST_UPDATES = 2 * UPDATES
"""End after so many updates, where the script calculates gradients in a way in which its loss is not seen."""

STUCK = 40
"""End when so many times the usual number of backward passes is followed by no update: where a loss is no number, a GradScaler
makes none any more."""


def install() -> None:
    """Patch optimizers, the DataLoader's iterators and the functions that save, so that the script's loop makes the test."""
    import torch
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    test = _RangeTest(recorder())
    kept_files.install()
    kept_files.before_end.append(test.write)
    note_losses(test)
    optimizer.register_optimizer_step_pre_hook(lambda stepping, *_: test.guarded(test.before_step, stepping))
    optimizer.register_optimizer_step_post_hook(lambda stepping, *_: test.guarded(test.after_step, stepping))
    base: Any = dataloader._BaseDataLoaderIter
    when_made(base, test.iterator_made)
    base.__next__ = _endless(base.__next__, test)
    saver: Any = torch
    saver.save = _in_memory_only(saver.save)
    for module, functions in SAVING.items():
        load_hooks.when_imported(module, partial(_end_where_saved, functions=functions))


SAVING = {
    "safetensors.torch": ("save_file", "save_model"),
    "lightning.fabric.utilities.cloud_io": ("_atomic_save",),
    "lightning_fabric.utilities.cloud_io": ("_atomic_save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
}
"""Functions beside `torch.save` that write weights, by their module."""


def _in_memory_only(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap `torch.save`: a copy in memory is made as ever, anything else ends the run."""

    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        if not isinstance(f, io.BytesIO):
            _save()
        original(obj, f, *args, **options)

    return save


def _save(*_: Any, **__: Any) -> NoReturn:
    kept_files.end("the script was about to save its weights (let it save none in its first 100 updates)")


def _end_where_saved(module: Any, functions: tuple[str, ...]) -> None:
    for name in functions:
        if hasattr(module, name):
            setattr(module, name, _save)


def _endless(original: Callable[[Any], Any], test: _RangeTest) -> Callable[[Any], Any]:
    """Wrap `__next__`: at the end of an epoch in which the weights were updated, the next epoch follows in the same loop."""

    def __next__(self: Any) -> Any:
        while True:
            try:
                data = original(getattr(self, "_headrace_renewed", self))
            except StopIteration:
                renewed = test.guarded(test.renewed, self)
                if renewed is None:
                    raise
                self._headrace_renewed = renewed
                continue
            with suppress(Exception):  # a batch may be anything
                test.note_batch(data)
            return data

    return __next__


class _RangeTest(LossReader):
    """The test of this process. `_own`: the script's rates, by group, while an update runs with those of the test."""

    def __init__(self, target: Recorder) -> None:
        super().__init__()
        self._recorder = target
        self._pid, self._rank, self._ranks = 0, 0, 1
        self._curve = RangeCurve()
        self._losses: list[float] = []
        self._optimizer: int | None = None
        self._own: list[float] = []
        self._first: list[float] = []
        self._kind, self._batch, self._latest = "", 0, 0
        self._backwards: Counter[int] = Counter()
        self._updates = self._trained = 0  # the second counts backward passes too: not each is followed by an update

    def guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns. An error ends the run."""
        try:
            return function(*args)
        except Exception as error:
            kept_files.end(f"the test failed in this script ({type(error).__name__}: {error})")

    # The loader.

    def iterator_made(self, iterator: Any, loader: Any) -> None:
        """Remember the loader of a new iterator, and how much was trained before it."""
        with suppress(AttributeError):  # without it, the epoch ends as ever
            iterator._headrace_range = loader, self._trained  # no weak reference: the loop may be over a loader without a name

    def renewed(self, iterator: Any) -> Any:
        """Return the iterator of the next epoch; None where the loop of this one does not train, such as a validation."""
        from torch.utils.data import DataLoader

        loader, trained = getattr(iterator, "_headrace_range", (None, 0))
        if loader is None or self._trained <= trained:
            return None
        iterator._headrace_range = loader, self._trained
        # The `__iter__` of a subclass may be a generator, which goes on behind this iterator.
        return DataLoader.__iter__(loader) if isinstance(loader, DataLoader) else type(iterator)(loader)

    def note_batch(self, data: Any) -> None:
        """Note the size of a batch, which counts if an update follows."""
        self._latest = length_of(data)

    # The loss and the update.

    def note(self, tensor: Any) -> None:
        """Read the loss of a backward pass: with accumulated gradients an update has several."""
        self._trained += 1
        loss = self.unscaled(tensor)
        if loss.numel() == 1 and not loss.dtype.is_complex:
            self._losses.append(float(loss))
        if self._updates and len(self._losses) >= STUCK * self._usual_backwards():
            self._curve.diverged |= not all(math.isfinite(loss) for loss in self._losses[-STUCK:])
            self._end("" if self._curve.diverged else f"no update followed {len(self._losses)} backward passes")

    def before_step(self, optimizer: Any) -> None:
        """Give the first optimizer that steps the rate of the test."""
        if self._optimizer is None:
            self._optimizer, self._kind = id(optimizer), type(optimizer).__name__
            self._rank, _, self._ranks = rank_of_process()  # not before: `torch.multiprocessing.spawn` sets no variables
            self._pid = os.getpid()
            self._first = [_number(group.get("initial_lr") or group["lr"]) for group in optimizer.param_groups]
        if id(optimizer) != self._optimizer:
            return
        self._own = [_number(group["lr"]) for group in optimizer.param_groups]
        largest = max(self._first, default=0.0)
        for place, group in enumerate(optimizer.param_groups):
            first = self._first[place] if place < len(self._first) else largest
            _set_rate(group, self._curve.rate * (first / largest if largest > 0 else 1.0))

    def after_step(self, optimizer: Any) -> None:
        """Give the script its own rates back, and note the update."""
        if id(optimizer) != self._optimizer:
            return
        for group, rate in zip(optimizer.param_groups, self._own, strict=True):
            _set_rate(group, rate)
        self._updates += 1
        self._trained += 1
        losses, self._losses = self._losses, []
        self._batch = max(self._batch, self._latest)  # the last of an epoch may be smaller
        if losses:
            self._backwards[len(losses)] += 1
        if losses and not self._curve.diverged:
            self._curve.add(sum(losses) / len(losses))
        # All ranks must take the same number of steps, or one waits for the others' gradients for ever.
        is_over = self._updates >= UPDATES if self._ranks > 1 else self._curve.is_over or self._updates >= MOST_UPDATES
        if is_over:
            self._end()
        elif self._updates % WRITTEN_EACH == 0:
            self.write()

    def _usual_backwards(self) -> int:
        """Backward passes of an update: a GradScaler's first passes have none."""
        return self._backwards.most_common(1)[0][0] if self._backwards else 1

    def _end(self, why: str = "") -> NoReturn:
        if why or self._rank == 0:
            kept_files.end(why)
        kept_files.wait_for_end()  # the first rank writes the curve

    def write(self) -> None:
        """Write the curve so far, in the process of the first rank that trains."""
        if self._rank != 0 or self._pid != os.getpid():
            return
        value = {
            "points": [[one.rate, one.loss, one.smoothed] for one in self._curve.points],
            "diverged": self._curve.diverged,
            "complete": self._curve.is_over,
            "optimizer": self._kind,
            "own_rate": max(self._first, default=None),
            "global_batch": self._batch * self._usual_backwards() * self._ranks,
        }
        self._recorder.line("fact", name=FACT, value=value)
        self._recorder.flush()


def _number(rate: Any) -> float:
    return float(rate)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the rate of a group; one that is a tensor (`capturable`) keeps its memory."""
    if hasattr(group["lr"], "fill_"):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
