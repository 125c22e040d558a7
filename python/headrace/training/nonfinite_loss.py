"""A loss that is not a number: which step, which records, and whether to go on without that update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.loading.loader import Loader

if TYPE_CHECKING:
    import torch

__all__ = ["BadStep", "LossMonitor"]

NAMED = 3  # records that the message names; metrics.jsonl has all


@dataclass(frozen=True, slots=True)
class BadStep:
    """A step whose loss was not finite, and this rank's records of its batch with the files they lie in."""

    step: int
    epoch: int
    loss: float
    records: tuple[str, ...]
    files: tuple[str, ...]

    def describe(self) -> str:
        """One line for people."""
        names = ", ".join(self.records[:NAMED]) + (f" and {len(self.records) - NAMED} more" if self.records[NAMED:] else "")
        where = f", of {', '.join(self.files[:NAMED])}" if len(self.files) < len(self.records) else ""
        return f"the loss is {self.loss} at step {self.step} (epoch {self.epoch}); its batch: {names}{where}"


class LossMonitor:
    """Keeps the losses of steps on the device and reads them a few at a time: no step waits.

    `allowed` bad steps are passed over and told to `tell`; one more raises HeadraceError.
    """

    def __init__(self, allowed: int, steps_per_epoch: int, tell: Callable[[BadStep], None]) -> None:
        self.allowed, self._steps_per_epoch, self._tell = allowed, steps_per_epoch, tell
        self.bad = 0
        self._pending: list[tuple[int, torch.Tensor]] = []
        self._last: float | None = None

    def add(self, step: int, loss: torch.Tensor) -> None:
        """The loss of `step` (counted from 1), which may not be computed yet."""
        self._pending.append((step, loss))

    def read(self, loader: Loader, *, saved: Callable[[], object]) -> float | None:
        """Waits for the losses handed in since the last time; the newest finite one.

        Raises HeadraceError at a bad one that is not allowed; `saved` gives the last checkpoint, for its message.
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
            self._tell(found)
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
        return f"{self.allowed} such steps were passed over before. " if self.allowed else ""


_HINT = (
    "look at these images (headrace inspect); else lower --learning-rate, lengthen --warmup-epochs, use --clip-norm or "
    "--precision fp32; --nan-steps N passes over N such steps"
)


def _kept(saved: object) -> str:
    return f"The last good checkpoint is {saved}" if saved else "Nothing was saved before"
