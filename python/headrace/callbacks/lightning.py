"""A Lightning callback that records `Trainer.fit` and diagnoses it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headrace.profiling.in_process import Watch

# Lightning comes in two packages. Use the one that the script has imported.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["HeadraceCallback"]


class HeadraceCallback(Callback):
    """Records each fit. `out` and `report` as in `headrace.watch`.

    trainer = Trainer(callbacks=[HeadraceCallback()])
    """

    def __init__(self, out: str | Path | None = None, *, report: bool = True) -> None:
        self._out, self._report = out, report
        self._watch: Watch | None = None

    @property
    def diagnosis(self) -> Any:
        """The diagnosis of the last fit; None until it has ended."""
        return self._watch.diagnosis if self._watch is not None else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start recording a session, before the data loaders are iterated."""
        if stage == "fit":
            self._watch = Watch(self._out, report=self._report)
            self._watch.start()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the session after the fit, and diagnose it: `diagnosis` is set."""
        if stage == "fit" and self._watch is not None:
            self._watch.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the session of a fit that raised, and diagnose it as failed."""
        if self._watch is not None:
            self._watch.stop(failed=True, error=exception)
