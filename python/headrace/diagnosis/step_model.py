"""The model of the step: which of four resources sets its pace, now and after a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.diagnosis.measure import Machine, Rank

__all__ = ["StepModel", "build_model"]

SHARPNESS = 12
"""Set by the jobs of benchmarks/scenarios/jobs.py that are near the knee after their fix."""

TERM_WORDS: Mapping[str, str] = {
    "compute": "the training process",
    "workers": "the number of workers",
    "cpu": "the CPU cores",
    "storage": "storage",
}


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds per batch of each demand, and the resources they meet; `step_s` is what follows.

    `compute_s` G, `handover_s` M, `cpu_s` C (collating included), `blocked_s` S beside nobody, `send_s` CPU of a worker
    process outside the fetching thread, `main_cpu_s` c, `serial_s` x: seconds for which one batch keeps storage busy.
    `cores` is what is left to the job, `ranks` p the processes that share it, `workers` n per rank (0: in the process).
    """

    compute_s: float
    handover_s: float
    cpu_s: float
    blocked_s: float
    send_s: float
    main_cpu_s: float
    serial_s: float
    cores: float
    ranks: int
    workers: int

    @property
    def terms_s(self) -> dict[str, float]:
        """Seconds per step that each resource would need alone."""
        workers = max(1, self.workers)
        made_s = self.cpu_s + self.blocked_s + self.send_s
        consumer_s = self.compute_s + self.handover_s
        return {
            "compute": consumer_s if self.workers else consumer_s + made_s,
            "workers": made_s / workers if self.workers else 0.0,
            "cpu": self.ranks * (self.cpu_s + self.send_s + self.main_cpu_s) / max(0.05, self.cores),
            "storage": self.ranks * self.serial_s,
        }

    @property
    def step_s(self) -> float:
        """The slower of the two sides, and a little more where they are close: steps vary, and each side waits.

        The training process is one side, the making of batches (its largest term) the other. A power mean: two equal
        sides give 6 % more than either, one of half the other's size adds nothing.
        """
        terms = self.terms_s
        consumer_s = terms.pop("compute")
        return float((consumer_s**SHARPNESS + max(terms.values()) ** SHARPNESS) ** (1 / SHARPNESS))

    @property
    def binding(self) -> str:
        """The name of the largest term."""
        terms = self.terms_s
        return max(terms, key=lambda name: terms[name])

    @property
    def runner_up_s(self) -> float:
        """The second largest term: the bound of what removing the first can bring."""
        return sorted(self.terms_s.values())[-2]

    def changed(self, **changes: float) -> StepModel:
        """The model after a change."""
        return replace(self, **changes)  # type: ignore[arg-type]


def build_model(rank: Rank, ranks: int, machine: Machine, *, read_rate: float | None = None) -> StepModel | None:
    """The model of what was measured, or None when no batch was seen being made.

    `read_rate`: the most bytes per second that storage gave to any number of readers, where that was tried.
    """
    cost = rank.batch_cost
    if cost is None:
        return None
    cpu_s = cost.cpu_s if cost.cpu_s is not None else cost.wall_s
    blocked_s = cost.off_core_s
    ratio = max(1.0, cost.alone_ratio or 1.0)
    workers = rank.workers
    alone_s = blocked_s / ratio
    # Blocked time grows from `alone_s` (ratio 1) to workers·alone_s (ratio = workers) as storage serves one at a time.
    serial_s = alone_s * min(1.0, (ratio - 1) / (workers - 1)) if workers > 1 else 0.0
    if read_rate and cost.disk_bytes:
        serial_s = max(serial_s, cost.disk_bytes / read_rate)
    compute_s = max(0.0, rank.compute_s - (rank.compute_queue_s or 0.0))
    return StepModel(
        compute_s=compute_s,
        handover_s=rank.handover_s if workers else 0.0,
        cpu_s=cpu_s,
        blocked_s=alone_s,
        send_s=cost.other_cpu_s,
        main_cpu_s=rank.process_cpu_s or 0.0,
        serial_s=serial_s,
        cores=usable_cores(machine),
        ranks=max(1, ranks),
        workers=workers,
    )


def usable_cores(machine: Machine) -> float:
    """Cores left to the job: those it may use, less what other programs take of them."""
    cores = machine.cores or 1.0
    free = (machine.core_count or cores) - (machine.foreign_cores or 0.0)
    return max(0.25 * cores, min(cores, free))
