"""What a loader of a trial reads, and with how many workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.system.hardware import machine
from headrace.trials.experiment.cells import Cell

__all__ = ["Source", "workers_of"]


@dataclass(frozen=True, slots=True)
class Source:
    """What a loader reads. path: folder, pack or file. validation: use the operations of validation images. fixed: see
    `headrace.trials.experiment.transforms`; images then come in the order of the folder. device: where the model computes,
    "cpu" or "cuda". headrace's loaders put their batches there."""

    path: Path
    validation: bool = False
    fixed: bool = False
    device: str = "cpu"


def workers_of(cell: Cell) -> int:
    """Return the number of workers or threads of a cell: as declared, else one per usable core, as in the article's scripts."""
    return cell.workers if cell.workers is not None else max(1, round(machine.cores().usable))
