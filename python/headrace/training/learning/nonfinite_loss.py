"""Losses that are not finite: report the step and its records; skip its update, or end the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.loading.loader import Loader
from headrace.system.text.sizes import count_text

if TYPE_CHECKING:
    import torch

__all__ = ["BadStep", "LossMonitor"]

NAMED = 3  # name at most this many records in the message; metrics.jsonl has all of them


@dataclass(frozen=True, slots=True)
class BadStep:
    """A step whose loss was not finite, with the keys of this rank's records in its batch and the files that hold them."""

    step: int
    epoch: int
    loss: float
    records: tuple[str, ...]
    files: tuple[str, ...]

    def describe(self) -> str:
        """Return one line that names the step, its loss and some of its records."""
        names = ", ".join(self.records[:NAMED]) + (f" and {len(self.records) - NAMED} more" if self.records[NAMED:] else "")
        where = f", of {', '.join(self.files[:NAMED])}" if len(self.files) < len(self.records) else ""
        return f"the loss is {self.loss} at step {self.step} (epoch {self.epoch}); its batch: {names}{where}"


class LossMonitor:
    """Collects the losses of steps on the device, and reads several at a time so that no step waits for the device.

    Each bad step is given to `report`. The first `allowed` bad steps are skipped; the next one raises HeadraceError.
    """

    def __init__(self, allowed: int, steps_per_epoch: int, report: Callable[[BadStep], None]) -> None:
        self.allowed, self._steps_per_epoch, self._report = allowed, steps_per_epoch, report
        self.bad = 0
        self._pending: list[tuple[int, torch.Tensor]] = []
        self._last: float | None = None

    def add(self, step: int, loss: torch.Tensor) -> None:
        """Add the loss of `step` (counted from 1). The device may not have computed it yet."""
        self._pending.append((step, loss))

    def read(self, loader: Loader, *, saved: Callable[[], object]) -> float | None:
        """Wait for the losses added since the last call; return the newest finite loss.

        Raises HeadraceError for a bad step beyond `allowed`; `saved` returns the last checkpoint, for the message.
        """
        if not self._pending:
            return self._last
        import torch

        steps = [step for step, _ in self._pending]
        values: Sequence[float] = torch.stack([loss.float() for _, loss in self._pending]).tolist()
        self._pending.clear()
        for step, value in zip(steps, values, strict=True):
            if math.isfinite(value):
                self._last = value
                continue
            found = self._bad_step(loader, step, value)
            self._report(found)
            self.bad += 1
            if self.bad > self.allowed:
                raise HeadraceError(f"{found.describe()}. {self._so_far()}{_kept(saved())}", hint=_HINT)
        return self._last

    def _bad_step(self, loader: Loader, step: int, value: float) -> BadStep:
        epoch, in_epoch = divmod(step - 1, self._steps_per_epoch)
        rows = loader.batch_records(epoch, in_epoch).tolist()
        table = loader.dataset.table
        files = {table.files[table.file[row]] for row in rows}
        return BadStep(step, epoch, value, tuple(table.keys[row] for row in rows), tuple(sorted(files)))

    def _so_far(self) -> str:
        return f"Skipped before: {count_text(self.allowed, 'bad step')}. " if self.allowed else ""


_HINT = (
    "look at these images (headrace inspect); else lower --learning-rate, lengthen --warmup-epochs, use --clip-norm or "
    "--precision fp32; --nan-steps N skips N such steps"
)


def _kept(saved: object) -> str:
    return f"The last good checkpoint is {saved}" if saved else "Nothing was saved before"
