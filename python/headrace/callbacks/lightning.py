"""A Lightning callback that watches `Trainer.fit` and reports why it is slow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headrace.profiling.in_process import Watch

# Two packages hold the same Lightning; the script has imported the one that its Trainer comes from.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["HeadraceCallback"]


class HeadraceCallback(Callback):
    """`Trainer(callbacks=[HeadraceCallback()])`; `out` and `report` as in `headrace.watch`. `diagnosis` afterwards."""

    def __init__(self, out: str | Path | None = None, *, report: bool = True) -> None:
        self._out, self._report = out, report
        self._watch: Watch | None = None

    @property
    def diagnosis(self) -> Any:
        """The diagnosis of the last fit, once it has ended."""
        return self._watch.diagnosis if self._watch is not None else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before the data loaders are iterated."""
        if stage == "fit":
            self._watch = Watch(self._out, report=self._report)
            self._watch.start()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """After the last step."""
        if stage == "fit" and self._watch is not None:
            self._watch.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A fit that failed is reported as well."""
        if self._watch is not None:
            self._watch.stop(failed=True)
