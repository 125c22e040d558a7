"""The step model: which of four resources sets the pace of a step, now and after a change.

    step ≈ max(G + M + N, (C + S + K) / n, p·(C + c) / P, p·x)

G is compute, M the hand-over and N the rest of `next()` in the training process. Each of n workers needs C seconds on a core,
S blocked, and K for sending, per batch. P cores also run the training process (c). Storage serves one batch in x seconds. p
ranks share P and x.
Of an epoch of b batches, one worker makes at most ⌈b/n⌉, and the first one is late: (C + S + K) / n is ⌈b/n⌉/b · (C + S + K),
and a step takes at least G + M + N + (C + S + K) / b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.diagnosis.measure import Machine, Rank
from headrace.diagnosis.measure.pauses import steps_by_epoch
from headrace.session.model import Session

__all__ = ["StepModel", "best_rate", "build_model", "epoch_batches", "kept_iterator", "without_share"]

SHARPNESS = 12
"""Exponent of the power mean; fitted to the jobs of benchmarks/scenarios/jobs.py whose two sides are close after their fix."""

TERM_WORDS: Mapping[str, str] = {
    "compute": "the training process",
    "workers": "the number of workers",
    "cpu": "the CPU cores",
    "storage": "storage",
}


@dataclass(frozen=True, slots=True)
class StepModel:
    """What one batch demands, in seconds, and the resources that serve it.

    compute_s: G, computation in the training process.
    handover_s: M, taking over a ready batch.
    next_s: N, the rest of `next()` that the training process spends itself: sampler, pinning, new iterators.
    cpu_s: C, a worker on a core, collating included.
    blocked_s: S, a worker blocked when no other worker reads.
    send_s: K, CPU of a worker process outside the fetching thread.
    main_cpu_s: c, CPU of the training process.
    serial_s: x, time for which one batch keeps storage busy.
    cores: P, cores that other programs leave to the job.
    ranks: p, training processes that share the cores.
    workers: n, worker processes per rank; 0 when the training process makes the batches.
    batches: b, batches of an epoch, each of which one worker makes; None where that is not known, or does not hold.
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
    next_s: float = 0.0
    batches: int | None = None

    @property
    def terms_s(self) -> dict[str, float]:
        """Seconds per step that each resource alone would need: compute, workers, cpu, storage."""
        made_s = self._made_s
        part = 1 / max(1, self.workers)
        if self.batches:
            part = math.ceil(self.batches * part) / self.batches
        consumer_s = self.compute_s + self.handover_s + self.next_s
        return {
            "compute": consumer_s if self.workers else consumer_s + made_s,
            "workers": made_s * part if self.workers else 0.0,
            "cpu": self.ranks * (self.cpu_s + self.send_s + self.main_cpu_s) / max(0.05, self.cores),
            "storage": self.ranks * self.serial_s,
        }

    @property
    def step_s(self) -> float:
        """Modelled seconds per step: the power mean of the training process and of the largest term of the input.

        Steps vary, so two sides that are nearly equal wait for each other at times: two equal sides give 6 % more than
        either. A side of half the size adds nothing. The first batch of each epoch is waited for whatever the workers.
        """
        terms = self.terms_s
        consumer_s = terms.pop("compute")
        first_s = self._made_s / self.batches if self.workers and self.batches else 0.0
        step_s = (consumer_s**SHARPNESS + max(terms.values()) ** SHARPNESS) ** (1 / SHARPNESS)
        return max(float(step_s), consumer_s + first_s)

    @property
    def _made_s(self) -> float:
        """Seconds that one worker takes for a batch."""
        return self.cpu_s + self.blocked_s + self.send_s

    @property
    def binding(self) -> str:
        """The name of the largest term, which sets the pace."""
        terms = self.terms_s
        return max(terms, key=lambda name: terms[name])

    def changed(self, **changes: float | None) -> StepModel:
        """Return the model with other values in some fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


def build_model(rank: Rank, ranks: int, machine: Machine, *, read_rate: float | None = None) -> StepModel | None:
    """Return the model of a measured rank, or None when no batch was seen being made.

    ranks: number of training processes on this machine.
    read_rate: the highest rate of storage in bytes per second, where the read sweep measured it.
    """
    cost = rank.batch_cost
    if cost is None:
        return None
    cpu_s = cost.cpu_s if cost.cpu_s is not None else cost.wall_s
    # Without workers, a thread that holds the interpreter blocks the batch: that time is a part of `next_s` already.
    blocked_s = cost.off_core_s if rank.workers else max(0.0, cost.off_core_s - rank.held_s)
    ratio = max(1.0, cost.alone_ratio or 1.0)
    workers = rank.workers
    alone_s = blocked_s / ratio
    # A ratio of 1 means that storage serves all workers at once; a ratio of `workers`, one at a time.
    serial_s = alone_s * min(1.0, (ratio - 1) / (workers - 1)) if workers > 1 else 0.0
    if cost.is_refused or ratio > max(1, workers):  # the store gives no more than now, however many ask
        serial_s = blocked_s / max(1, workers)
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
        cores=_usable_cores(machine),
        ranks=max(1, ranks),
        workers=workers,
        next_s=max(rank.next_s, rank.net_wait_s - rank.handover_s) if rank.loader.passes and workers else rank.next_s,
        batches=epoch_batches(rank, max(1, ranks)),
    )


def kept_iterator(model: StepModel) -> StepModel:
    """Return the step model of a job that makes one iterator, and keeps it."""
    return model.changed(next_s=0.0)


def without_share(model: StepModel, lost: float) -> StepModel:
    """Return the model without a share of the computing time, 0 to 1. Waits for a core are no part of the model."""
    kept = max(0.0, 1 - lost)
    return model.changed(compute_s=model.compute_s * kept, main_cpu_s=model.main_cpu_s * kept)


def epoch_batches(rank: Rank, ranks: int) -> int | None:
    """Return the batches of a whole epoch of one rank; None where that is not known, or a batch is not one worker's work.

    From the epochs that ended, else from the length of the dataset. Epochs of one batch are iterators that were left.
    """
    loader = rank.loader
    if loader.family != "torch" or loader.passes:
        return None
    *ended, last = (len(steps) for _, steps in sorted(steps_by_epoch(rank.all_steps).items()))
    if ended and max(ended) > 1:
        return max(*ended, last)
    if loader.dataset_length is None or not rank.items:
        return None
    counts_batches = loader.batched_by == "dataset"
    length = loader.dataset_length if counts_batches else loader.dataset_length / (loader.batch_size or rank.items)
    return max(last, math.ceil(length / ranks))


def _usable_cores(machine: Machine) -> float:
    """Return the cores that other programs leave to the job, at least a quarter of the cores that it may use."""
    cores = machine.cores or 1.0
    free = (machine.core_count or cores) - (machine.foreign_cores or 0.0)
    return max(0.25 * cores, min(cores, free))


def best_rate(session: Session) -> float | None:
    """Return the bytes per second at which storage delivers the job's own files to the best number of readers.

    None without a read sweep.
    """
    rates = session.facts.get("read_sweep") or {}
    return max(rates.values(), default=None)
