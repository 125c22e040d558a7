"""The hook that repeats one batch of the training loader, at several sizes and settings, to time training without loading.

It measures the step time without input: with half and twice the batch size, in bf16, and in channels-last memory. The
batch-size and number-format fixes are predicted from these times. The loop is the script's own. The trained weights are of no
use, and the run ends after the last phase.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from headrace.attach.record import load_hooks
from headrace.attach.record.processes import rank_from_environment
from headrace.attach.record.recorder import Recorder, recorder
from headrace.attach.record.unseen_frames import when_made

__all__ = ["MATCH_VARIABLE", "install", "length_of"]

MATCH_VARIABLE = "HEADRACE_REPLAY"
"""Environment variable with attributes, as JSON, that identify the loader: `{"batch_size": 64, "num_workers": 2}`."""

WARM_BATCHES = 4
WARM_STEPS, STEPS, PHASE_S = 3, 20, 6.0
PHASES = ("base", "half", "double", "channels_last", "amp", "base_again")


def install() -> None:
    """Patch `_BaseDataLoaderIter.__next__`, so that the matching loader repeats one batch and its steps are timed."""
    from torch.utils.data import dataloader

    replay = _Replay(recorder(), json.loads(os.environ.get(MATCH_VARIABLE, "{}")))
    base = dataloader._BaseDataLoaderIter
    original = base.__next__
    when_made(base, lambda iterator, loader: _mark(iterator, loader, replay.match))

    def __next__(self: Any) -> Any:
        if not getattr(self, "_headrace_replay", False):
            return original(self)
        if replay.batches < WARM_BATCHES:
            replay.batches += 1
            replay.batch = original(self)
            return replay.batch
        try:
            return replay.next()
        except Exception:
            load_hooks.disable("the replay of a batch")
            return original(self)

    base.__next__ = __next__


def _mark(iterator: Any, loader: Any, match: dict[str, Any]) -> None:
    """Mark the iterator of a loader with the attributes in `match`. Stand-ins for a DataLoader lack some of them."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    given = {"num_workers": getattr(loader, "num_workers", None), "batch_size": size}
    iterator._headrace_replay = all(given.get(name) == value for name, value in match.items())


class _Replay:
    """Runs the phases one after the other, and records the seconds per step of each phase when it ends."""

    def __init__(self, target: Recorder, match: dict[str, Any]) -> None:
        from torch.optim import optimizer

        self.match = match
        self.batches = 0
        self.batch: Any = None
        self._recorder = target
        self._seconds: dict[str, float] = {}
        self._optimizer: Any = None
        self._variants: Iterator[Any] | None = None
        optimizer.register_optimizer_step_post_hook(self._note_optimizer)

    def next(self) -> Any:
        """Return the batch of the current phase. After the last phase, end the process."""
        if self._variants is None:
            self._variants = self._run()
        try:
            return next(self._variants)
        except StopIteration:
            self._recorder.flush()
            os._exit(0)  # otherwise the loop would save and evaluate

    def _note_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = optimizer

    def _run(self) -> Iterator[Any]:
        # All ranks must take the same number of steps, or one waits for the others' gradients for ever.
        limit_s = PHASE_S if rank_from_environment()[2] == 1 else math.inf
        for phase in PHASES:
            batch = self._enter(phase)
            if batch is None:
                continue
            for _ in range(WARM_STEPS):
                yield batch
            on_gpu = _wait_for_device()
            times_s = [time.monotonic()]
            while len(times_s) <= STEPS and times_s[-1] - times_s[0] < limit_s:
                yield batch
                times_s.append(time.monotonic())
            _wait_for_device()
            # A GPU lags behind the loop, so the total counts. On a CPU the median ignores disturbances by other programs.
            steps = [after - before for before, after in pairwise(times_s)]
            self._seconds[phase] = (time.monotonic() - times_s[0]) / len(steps) if on_gpu else sorted(steps)[len(steps) // 2]
            self._leave(phase)
            size = length_of(self.batch)
            self._recorder.line("fact", name="replay", value={"batch_size": size, "seconds": dict(self._seconds)})
            self._recorder.flush()

    def _enter(self, phase: str) -> Any:
        """Apply the setting of a phase and return its batch. None: the phase makes no difference here."""
        import torch

        if phase == "half":
            return _resized(self.batch, length_of(self.batch) // 2) if length_of(self.batch) >= 2 else None
        if phase == "double":
            return _resized(self.batch, 2 * length_of(self.batch))
        if phase == "channels_last":
            return self._channels_last() if self._device() != "none" else None
        if phase == "amp":
            if self._device() == "none" or torch.is_autocast_enabled(self._device()):
                return None
            torch.set_autocast_dtype(self._device(), torch.bfloat16)
            torch.set_autocast_enabled(self._device(), True)
        return self.batch

    def _leave(self, phase: str) -> None:
        import torch

        if phase == "amp":
            torch.set_autocast_enabled(self._device(), False)
            torch.clear_autocast_cache()
        if phase == "channels_last":
            self._set_weights(torch.contiguous_format)

    def _weights(self) -> list[Any]:
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return [each for group in groups for each in group["params"] if each.dim() == 4]

    def _device(self) -> str:
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return groups[0]["params"][0].device.type if groups and groups[0]["params"] else "none"

    def _channels_last(self) -> Any:
        import torch

        weights = self._weights()
        if not weights or any(each.is_contiguous(memory_format=torch.channels_last) for each in weights if each.shape[2] > 1):
            return None  # no convolutions, or they are channels-last already
        self._set_weights(torch.channels_last)
        return _mapped(self.batch, lambda one: one.to(memory_format=torch.channels_last) if one.dim() == 4 else one)

    def _set_weights(self, memory_format: Any) -> None:
        for each in self._weights():
            each.data = each.data.to(memory_format=memory_format)


def _wait_for_device() -> bool:
    """Wait until the GPU is idle. Return whether a GPU is in use."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    torch.cuda.synchronize()
    return True


def _mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each tensor in a batch of nested lists, tuples and dicts."""
    if hasattr(batch, "element_size"):
        return change(batch)
    if isinstance(batch, dict):
        return type(batch)({name: _mapped(value, change) for name, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(value, change) for value in batch))
    return type(batch)(_mapped(value, change) for value in batch) if isinstance(batch, list | tuple) else batch


def length_of(batch: Any) -> int:
    """Return the batch size: the first dimension of the first tensor that has one, or 0."""
    if hasattr(batch, "element_size"):
        return int(batch.shape[0]) if batch.dim() else 0
    children = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for size in map(length_of, children) if size), 0)


def _resized(batch: Any, size: int) -> Any:
    """Cut or repeat the batch to `size` records. Tensors of another length stay."""
    length = length_of(batch)

    def change(one: Any) -> Any:
        if not one.dim() or one.shape[0] != length:
            return one
        repeats = -(-size // length)
        return one.repeat(repeats, *([1] * (one.dim() - 1)))[:size] if repeats > 1 else one[:size]

    return _mapped(batch, change)
