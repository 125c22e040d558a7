"""A callback for Hugging Face's Trainer that records `train()` and diagnoses it."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from headrace.profiling.in_process import Watch

__all__ = ["HeadraceCallback"]


class HeadraceCallback(TrainerCallback):
    """Records each `train()`. `out` and `report` as in `headrace.watch`.

    The Trainer does not call its callbacks when a training raises. Such a training is diagnosed when the process ends, and a
    further `train()` before that continues the same session.

        trainer = Trainer(..., callbacks=[HeadraceCallback()])
    """

    def __init__(self, out: str | Path | None = None, *, report: bool = True) -> None:
        self._out, self._report = out, report
        self._watch: Watch | None = None

    @property
    def diagnosis(self) -> Any:
        """The diagnosis of the last training; None until it has ended."""
        return self._watch.diagnosis if self._watch is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start recording a session, before the data loader is iterated."""
        if self._watch is not None and self._watch.active:
            return  # the training before raised, and this one repeats it
        self._watch = Watch(self._out, report=self._report)
        self._watch.start()
        atexit.register(self._end_failed)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the session after the training, and diagnose it: `diagnosis` is set."""
        atexit.unregister(self._end_failed)
        if self._watch is not None:
            self._watch.stop()

    def _end_failed(self) -> None:
        """Diagnose a training that raised, when the process ends."""
        if self._watch is not None:
            self._watch.stop(failed=True, exiting=True, error=getattr(sys, "last_value", None))
