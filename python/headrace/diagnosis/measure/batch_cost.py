"""The cost of making one batch: seconds on a core, queueing for a core, blocked, and collating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.stats import mean, mean_of_known, median, overlap_s, required
from headrace.session.model import Batch, ObservedLoader, Process, Step

__all__ = ["BatchCost", "measure_batch_cost"]

UNDISTURBED = 0.2
"""Of a batch made alone, for which another worker may have been at work all the same."""

AROUND, LEAST_AROUND = 20, 3
"""Batches nearest to the one made alone that it is set against, but for the two at its sides; fewer than three tell nothing."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Making one batch, mean seconds in one worker: on a core, queueing for one, blocked, collating, other threads.

    `cpu_s` includes `collate_cpu_s`. `alone_ratio`: blocked time beside the other workers over blocked time alone
    (1: storage does not mind; the number of workers: it serves one at a time), None where that was not tried.
    """

    wall_s: float
    cpu_s: float | None
    queue_s: float | None
    blocked_s: float | None
    collate_s: float
    collate_cpu_s: float
    other_cpu_s: float
    socket_s: float
    read_bytes: float | None
    disk_bytes: float | None
    batches: int
    alone_ratio: float | None
    late_share: float | None

    @property
    def off_core_s(self) -> float:
        """Blocked; where queueing for a core was not measured, both together, as far as they can be told from collating."""
        if self.blocked_s is not None or self.cpu_s is None:
            return self.blocked_s or 0.0
        return max(0.0, self.wall_s - self.cpu_s - max(0.0, self.collate_s - self.collate_cpu_s))

    @property
    def prepare_cpu_s(self) -> float:
        """CPU seconds of reading, decoding and transforming: all but collating."""
        return max(0.0, (self.cpu_s or 0.0) - self.collate_cpu_s)

    @property
    def parts_s(self) -> dict[str, float]:
        """The wall time of a batch in seconds, by what it went into. The parts sum to `wall_s`."""
        cpu_s = self.cpu_s if self.cpu_s is not None else self.wall_s
        prepare_s = max(0.0, cpu_s - self.collate_cpu_s)
        queue_s = self.queue_s or 0.0
        blocked_s = self.off_core_s
        rest_s = max(0.0, self.wall_s - prepare_s - queue_s - blocked_s)
        return {"on a core": prepare_s, "queueing for a core": queue_s, "blocked": blocked_s, "collating": rest_s}


def measure_batch_cost(
    batches: Sequence[Batch], process: Process, loader: ObservedLoader, steps: Sequence[Step], processes: Sequence[Process]
) -> BatchCost | None:
    """The mean batch made while the steady steps ran."""
    own = {item.pid for item in processes if item.role == "worker" and item.parent_pid == process.pid} | {process.pid}
    begin_s, end_s = steps[0].start_s, steps[-1].start_s + steps[-1].step_s
    mine = [batch for batch in batches if batch.pid in own and batch.loader == loader.loader]
    if not mine:  # spawned by a fork server: the parent is not the training process
        mine = [batch for batch in batches if batch.loader == loader.loader and batch.worker >= 0]
    made = [batch for batch in mine if begin_s <= batch.start_s <= end_s and not batch.alone] or mine
    if not made:
        return None
    late = [batch.idle_s for batch in made if batch.idle_s is not None]
    other = mean_of_known(batch.other_cpu_s for batch in made)
    return BatchCost(
        wall_s=required(mean([batch.wall_s for batch in made])),
        cpu_s=mean_of_known(batch.cpu_s for batch in made),
        queue_s=mean_of_known(batch.queue_s for batch in made),
        blocked_s=mean_of_known(batch.blocked_s for batch in made),
        collate_s=mean_of_known(batch.collate_s for batch in made) or 0.0,
        collate_cpu_s=mean_of_known(batch.collate_cpu_s for batch in made) or 0.0,
        other_cpu_s=other or 0.0,
        socket_s=mean_of_known(batch.socket_s for batch in made) or 0.0,
        read_bytes=mean_of_known(batch.read_bytes for batch in made),
        disk_bytes=mean_of_known(batch.disk_bytes for batch in made),
        batches=len(made),
        alone_ratio=_alone_ratio(mine),
        late_share=mean([float(idle_s < 0.002) for idle_s in late]),
    )


def _alone_ratio(batches: Sequence[Batch]) -> float | None:
    """Blocked time of batches beside other workers' over that of one made alone, by the same worker and of the same kind.

    None where the other workers did not pause for it, or too few batches around it were read as it was (from a disk, or not).
    """
    for single in (batch for batch in reversed(batches) if batch.alone):
        begin_s, end_s = single.start_s, single.start_s + single.wall_s
        beside = [batch for batch in batches if batch.pid != single.pid]
        disturbed_s = math.fsum(overlap_s(begin_s, end_s, batch.start_s, batch.start_s + batch.wall_s) for batch in beside)
        if not single.blocked_s or disturbed_s > UNDISTURBED * single.wall_s:
            continue
        own = [batch for batch in batches if batch.pid == single.pid and not batch.alone][1:]
        alike = [batch for batch in own if _is_cold(batch) == _is_cold(single) and batch.blocked_s is not None]
        near = sorted(alike, key=lambda batch: abs(batch.start_s - single.start_s))[2:AROUND]
        if len(near) >= LEAST_AROUND:
            return required(median([batch.blocked_s or 0.0 for batch in near])) / single.blocked_s
    return None


def _is_cold(batch: Batch) -> bool:
    """Whether most of what it read came from a disk."""
    return bool(batch.read_bytes and batch.disk_bytes) and 2 * (batch.disk_bytes or 0) > (batch.read_bytes or 0)
