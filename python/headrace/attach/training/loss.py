"""Record the loss that the script computes its gradients from, a few times a second.

The loss of a step is the first tensor on which the script calls `backward()` after a batch. A scaled one (GradScaler) counts
before it is scaled. On the CPU the mean over all steps is recorded. On a GPU the loss of some steps is copied to pinned memory
behind the work that is queued, and read when that has run, so that no step waits for it. A script that calls
`torch.autograd.backward` itself, or that captures its whole step in a CUDA graph, has no loss here. When an optimizer of other
weights steps for the first time, that is recorded as well: the losses of two models have no common trend.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from typing import Any

from headrace.attach.record import load_hooks
from headrace.attach.record.counters import COUNTERS
from headrace.attach.record.recorder import Recorder
from headrace.attach.record.unseen_frames import drop_own_frames

__all__ = ["LossReader", "install", "note_losses"]

NEW_WEIGHTS = "new_weights"
"""Name of the event at the first step of an optimizer whose weights were not trained before."""

INTERVAL_S = 0.1
"""Seconds between two recorded losses at least: a trend needs no more."""


def install(recorder: Recorder) -> None:
    """Patch `torch.Tensor.backward` and `GradScaler.scale` to record the loss that gradients are computed from."""
    from torch.optim import optimizer

    reader = _SampledLoss(recorder)
    recorder.before_flush.append(lambda last: reader.guarded(reader.write, last))
    note_losses(reader)
    models = _Models(recorder)
    optimizer.register_optimizer_step_post_hook(lambda stepped, *_: models.guarded(models.note, stepped))


def note_losses(reader: LossReader) -> None:
    """Patch `torch.Tensor.backward` and `GradScaler.scale` to show `reader` each tensor that gradients are computed from."""
    import torch

    torch.Tensor.backward = _noted_backward(torch.Tensor.backward, reader)
    scaler: Any = torch.amp.grad_scaler.GradScaler  # the scaler of torch.cuda.amp is a subclass
    scaler.scale = _noted_scale(scaler.scale, reader)


def _noted_backward(original: Callable[..., Any], reader: LossReader) -> Callable[..., Any]:
    def backward(self: Any, *args: Any, **options: Any) -> Any:
        reader.guarded(reader.note, self)
        try:
            return original(self, *args, **options)
        except BaseException as error:
            drop_own_frames(error)
            raise

    backward.__doc__ = original.__doc__
    return backward


def _noted_scale(original: Callable[..., Any], reader: LossReader) -> Callable[..., Any]:
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        reader.guarded(reader.note_scaled, outputs, scaled)
        return scaled

    scale.__doc__ = original.__doc__
    return scale


class LossReader(load_hooks.Guarded):
    """What is shown each tensor on which a script calls `backward()`."""

    where = "reading of the loss"

    def __init__(self) -> None:
        self._scaled: tuple[weakref.ref[Any], Any] | None = None

    def note(self, tensor: Any) -> None:
        """Look at a tensor on which the script calls `backward()`."""
        raise NotImplementedError

    def unscaled(self, tensor: Any) -> Any:
        """Return the loss without the factor of a GradScaler, detached."""
        scaled, self._scaled = self._scaled, None
        return scaled[1] if scaled is not None and scaled[0]() is tensor else tensor.detach()

    def note_scaled(self, outputs: Any, scaled: Any) -> None:
        """Remember the loss before it was scaled."""
        if hasattr(outputs, "detach"):
            self._scaled = (weakref.ref(scaled), outputs.detach())


class _Models(load_hooks.Guarded):
    """Notices when an optimizer steps whose weights no optimizer has stepped before, as in each fold of a cross-validation."""

    where = "reading of the loss"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._weights: dict[int, weakref.ref[Any]] = {}

    def note(self, optimizer: Any) -> None:
        """Record an event at the first step of an optimizer whose first parameter is new: a script may make new optimizers."""
        if optimizer in self._optimizers:
            return
        self._optimizers.add(optimizer)
        first = next((each for group in optimizer.param_groups for each in group["params"]), None)
        known = self._weights.get(id(first))
        if first is None or (known is not None and known() is first):
            return
        self._weights = {key: known for key, known in self._weights.items() if known() is not None}
        self._weights[id(first)] = weakref.ref(first)
        self._recorder.event(NEW_WEIGHTS, time.monotonic(), 0.0)


class _SampledLoss(LossReader):
    """Reads the loss of one step in each interval."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._next_s = 0.0
        self._sum, self._count = 0.0, 0
        self._copied: tuple[float, Any, Any] | None = None

    def note(self, tensor: Any) -> None:
        """Read the value of `tensor` if it is the first of its step; on a GPU, if a value is due."""
        COUNTERS.losses += 1
        loss = self.unscaled(tensor)
        now_s = time.monotonic()
        is_due = now_s >= self._next_s
        if COUNTERS.losses > 1 or not (tensor.is_cpu or (is_due and tensor.is_cuda)):
            return
        if loss.numel() != 1 or loss.dtype.is_complex:
            return
        if loss.is_cpu:
            self._sum, self._count = self._sum + float(loss), self._count + 1
        if not is_due:
            return
        self._next_s = now_s + INTERVAL_S
        self._write_copied()
        if loss.is_cpu:
            self._write_mean(now_s)
        elif self._copied is None:
            self._copy(now_s, loss)

    def _copy(self, now_s: float, loss: Any) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        buffer = torch.empty(1, dtype=torch.float32, pin_memory=True)
        buffer.copy_(loss.reshape(1), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._copied = now_s, buffer, event

    def write(self, last: bool) -> None:
        """Write the value that a GPU has copied. If `last`, also write the mean of values on the CPU not written yet."""
        if last and self._count:
            self._write_mean(time.monotonic())
        self._write_copied()

    def _write_mean(self, now_s: float) -> None:
        self._write(now_s, self._sum / self._count)
        self._sum, self._count = 0.0, 0

    def _write_copied(self) -> None:
        """Write the copied value if the device has passed the copy."""
        if self._copied is not None and self._copied[2].query():
            now_s, buffer, _ = self._copied
            self._copied = None
            self._write(now_s, float(buffer[0]))

    def _write(self, now_s: float, value: float) -> None:
        written = float(f"{value:.6g}") if math.isfinite(value) else str(value)  # JSON has no NaN
        self._recorder.row("losses", 0, [round(now_s, 4), written])
