"""What bounds the number of loader workers besides the model: batches of an epoch, memory per worker, /dev/shm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.model import Finding
from headrace.system.text.sizes import count_text, size_text

__all__ = ["WorkerLimit", "add_worker_limit", "worker_limits"]

USABLE = 0.8
"""Let new workers take this share of the free memory; the rest is for growth and for the page cache."""

PREFETCHED = 2
"""Batches that a worker makes ahead (`prefetch_factor`) if the loader does not say. One more is being made or used."""


@dataclass(frozen=True, slots=True)
class WorkerLimit:
    """One bound on the workers of a loader.

    workers: at most this many.
    bound: the measured values, for a fix that is held back by them.
    each_bytes, place: what one worker needs, and of what; 0 where the workers are bounded by their work.
    """

    workers: int
    bound: str
    each_bytes: float = 0.0
    place: str = ""

    def needs(self, workers: int) -> str:
        """Return the memory that `workers` workers need, in words: "3.2 GB of memory"."""
        return f"{size_text(workers * self.each_bytes)} of {self.place}"


def worker_limits(job: MeasuredJob) -> list[WorkerLimit]:
    """Return the bounds that were measured, the tightest first: the batches of an epoch, memory, and /dev/shm."""
    found = [limit for limit in (_batches_limit(job), _memory_limit(job), _shared_memory_limit(job)) if limit is not None]
    return sorted(found, key=lambda limit: limit.workers)


def add_worker_limit(job: MeasuredJob, found: Finding) -> Finding:
    """Return the finding; if one more worker has no room or no work, with that reason in its evidence.

    Where workers copy what the fork shares, their number is no advice either.
    """
    limits, copying = worker_limits(job), job.machine.copying
    if copying is not None and job.rank.workers:
        words = "no more workers are advised: each copies the same Python objects (MEMORY_GROWTH below)"
        return replace(found, evidence=(*found.evidence, words))
    if job.model is None or not limits or limits[0].workers > job.rank.workers:
        return found
    verb = "fits" if limits[0].each_bytes else "would have work"
    return replace(found, evidence=(*found.evidence, f"not one more loader worker {verb}: {limits[0].bound}"))


def _batches_limit(job: MeasuredJob) -> WorkerLimit | None:
    """Return how many workers an epoch keeps busy: one for each of its batches, which one worker makes alone."""
    batches = job.model.batches if job.model is not None else None
    if not batches:
        return None
    return WorkerLimit(batches, f"an epoch has {count_text(batches, 'batch')}, and one worker makes a batch")


def _memory_limit(job: MeasuredJob) -> WorkerLimit | None:
    """Return how many workers fit into the memory that is left, by what a worker holds alone. All ranks share the memory."""
    rank, left = job.rank, job.machine.memory_left_bytes
    held = [int(event.detail or 0) for event in job.session.events if event.name == "worker_memory"]
    if not held or max(held) <= 0 or left is None:
        return None
    each = max(held)
    workers = rank.workers + int(USABLE * left / each / len(job.ranks))
    return WorkerLimit(workers, f"{size_text(left)} of memory are left, and a worker holds {size_text(each)}", each, "memory")


def _shared_memory_limit(job: MeasuredJob) -> WorkerLimit | None:
    """Return how many workers' batches fit into /dev/shm. Workers hand their batches over there."""
    rank = job.rank
    free = [sample.shared_memory_free_bytes for sample in job.session.samples if sample.shared_memory_free_bytes is not None]
    if not free or not rank.batch_bytes or rank.loader.family != "torch":
        return None
    each = rank.batch_bytes * ((rank.loader.prefetch_factor or PREFETCHED) + 1)
    workers = rank.workers + int(USABLE * min(free) / each / len(job.ranks))
    words = f"{size_text(min(free))} of /dev/shm are free, and the batches of a worker take {size_text(each)}"
    return WorkerLimit(workers, words, each, "/dev/shm")
