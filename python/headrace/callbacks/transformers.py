"""A callback for Hugging Face's Trainer that watches `train()` and reports why it is slow."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from headrace.profiling.in_process import Watch

__all__ = ["HeadraceCallback"]


class HeadraceCallback(TrainerCallback):
    """`Trainer(..., callbacks=[HeadraceCallback()])`; `out` and `report` as in `headrace.watch`. `diagnosis` afterwards.

    The Trainer tells nobody that a training raised: such a one is reported when the process ends, and a further
    `train()` before that goes on in the same session.
    """

    def __init__(self, out: str | Path | None = None, *, report: bool = True) -> None:
        self._out, self._report = out, report
        self._watch: Watch | None = None

    @property
    def diagnosis(self) -> Any:
        """The diagnosis of the last training, once it has ended."""
        return self._watch.diagnosis if self._watch is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before the data loader is iterated."""
        if self._watch is not None and self._watch.active:
            return  # the one before raised, and is tried again
        self._watch = Watch(self._out, report=self._report)
        self._watch.start()
        atexit.register(self._end_failed)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the last step."""
        atexit.unregister(self._end_failed)
        if self._watch is not None:
            self._watch.stop()

    def _end_failed(self) -> None:
        """The process ends, and no training has."""
        if self._watch is not None:
            self._watch.stop(failed=True, exiting=True)
