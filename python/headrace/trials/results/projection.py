"""Seconds per epoch on the machine of the published numbers, from CPU time an image measured here.

A pass is bound by the slower of two things that overlap: preparing its images on all processors, and computing. The CPU time of
an image is measured here; how fast the other machine's processor is comes from a published benchmark of both, never from the
experiment's own numbers. Workers of a DataLoader share the processors with the training process, whose CPU time of a step
counts too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.trials.experiment.accelerator import DISPATCHED, FORWARD_SHARE, HOST_S_PER_OPERATION

if TYPE_CHECKING:
    from headrace.trials.results.row import Row

__all__ = ["Projection"]


@dataclass(frozen=True, slots=True)
class Projection:
    """Another machine, to which rows are projected. speed: speed of one of its vCPUs ÷ that of a core here, with interval.

    speed: ratio of the processors' published scores. source: where they come from.
    """

    vcpus: int
    speed: float
    speed_low: float
    speed_high: float
    source: str

    def of(self, row: Row, counts: tuple[int, int]) -> Row:
        """Return the row with its projected seconds per epoch; unchanged for GPU loaders or if its rates were not measured."""
        if row.cpu_ms is None or row.compute_img_s is None or row.loader.endswith("-gpu"):
            return row
        point, low, high = (self._seconds(row, counts, speed) for speed in (self.speed, self.speed_high, self.speed_low))
        return replace(row, projected_s=point, projected_low_s=low, projected_high_s=high)

    def _seconds(self, row: Row, counts: tuple[int, int], speed: float) -> float:
        host_s = DISPATCHED.get(row.model, 0) * HOST_S_PER_OPERATION / row.batch_size
        seconds = 0.0
        for images, cpu_ms, share in ((counts[0], row.cpu_ms, 1.0), (counts[1], row.val_cpu_ms, FORWARD_SHARE)):
            # Training's CPU time was measured with the host's work beside it and includes that work; validation's was not.
            own_s = (cpu_ms or 0.0) / 1000 + (0.0 if share == 1.0 else share * host_s)
            workers = min(self.vcpus, row.workers or self.vcpus) if row.transform == "caltech" else self.vcpus
            seconds += images * max(own_s / speed / workers, share / (row.compute_img_s or 1.0))
        return seconds
