"""The parts of a step, as shares that sum to 1."""

from __future__ import annotations

import math

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import SHARES
from headrace.diagnosis.rules.input import is_cause_unseen, unseen_input_kind

__all__ = ["share_of_step"]

CACHED_SHARE = 0.1
"""Take a batch as read from the page cache when less than this share of its bytes came from a disk."""


def share_of_step(job: MeasuredJob) -> dict[str, float]:
    """Return the parts of the mean steady step (`SHARES`). They sum to 1; what no part explains counts as compute.

    The parts of the input sum to the share of the step that waits for input (`Diagnosis.wait_share`).
    """
    rank = job.rank
    if rank.step_s <= 0:
        return dict.fromkeys(SHARES, 0.0) | {"other": 1.0}
    waiting_s = min(rank.exposed_wait_s, rank.step_s)
    rest_s = rank.step_s - waiting_s
    outside = {
        "h2d": rank.h2d_s or 0.0,
        "communication": (rank.collective_s or 0.0) if len(job.ranks) > 1 else 0.0,
        "sync": job.sync_idle_s,
        "script": job.script.seconds + (job.held_step[0] if job.held_step is not None else 0.0),
        "periodic": rank.pauses.gc_s + rank.pauses.periodic_s - rank.pauses.unknown_s + job.unknown_pause_s,
        "core_wait": (rank.compute_queue_s or 0.0) - rank.pause_queue_s,
    }
    outside = {name: min(rest_s, max(0.0, seconds)) for name, seconds in outside.items()}  # two clocks may disagree by 2 µs
    scale = min(1.0, rest_s / max(1e-12, math.fsum(outside.values())))  # times that overlap must not shrink the wait for input
    parts = _input_parts_s(job, waiting_s) | {name: scale * seconds for name, seconds in outside.items()}
    parts["compute"] = max(0.0, rank.step_s - math.fsum(parts.values()))
    of_waits = job.machine.quota_share_of_waits
    if of_waits is None:  # without a measured wait, the time of a stop counts as computing
        _move(parts, "compute", "quota", job.machine.stopped_share)
    else:
        _move(parts, "input_queue", "input_quota", of_waits)
        _move(parts, "core_wait", "quota", of_waits)
    total_s = math.fsum(parts.values())
    return {name: parts.get(name, 0.0) / total_s for name in SHARES}


def _move(parts: dict[str, float], source: str, target: str, share: float) -> None:
    parts[target] = share * parts[source]
    parts[source] -= parts[target]


def _input_parts_s(job: MeasuredJob, waiting_s: float) -> dict[str, float]:
    """Return the parts of the wait for input (on a core, blocked …) in seconds per step; they sum to `waiting_s`.

    With workers, the wait is split as the time that a worker takes for a batch, after the hand-over and the time in which
    the training thread queues for a core. A training thread that makes the batches itself queues as part of making them.
    """
    rank, cost = job.rank, job.rank.batch_cost
    if cost is not None:
        split = cost.parts_s
        if rank.makes_batches and rank.held_s:  # then a batch is blocked by the thread that holds the interpreter
            split = split | {"blocked": 0.0}
    else:
        queue = job.machine.queue_share or 0.0
        is_blocked = KINDS[unseen_input_kind(job)[0]].is_blocked
        split = {"blocked": 1.0} if is_blocked else {"on a core": 1.0 - queue, "queueing for a core": queue}
    queued_s = min(waiting_s, rank.exposed_queue_s)
    if cost is not None and rank.makes_batches and queued_s:  # as measured of the whole next(), not of a batch alone
        split = split | {"queueing for a core": 0.0}
    queued_next_s = queued_s * rank.next_queue_s / max(1e-12, rank.wait_s - rank.net_wait_s)
    next_s = min(job.exposed_next_s - queued_next_s, waiting_s - queued_s)
    handover_s = min(waiting_s - queued_s - next_s, rank.exposed_handover_s)
    late_s = max(0.0, waiting_s - queued_s - next_s - handover_s)
    whole_s = math.fsum(split.values())
    if not whole_s:
        split, whole_s = {"on a core": 1.0}, 1.0
    blocked_s = late_s * split.get("blocked", 0.0) / whole_s
    between_s = blocked_s if _is_between_threads(job) else 0.0
    return {
        "input_storage": blocked_s - between_s,
        "input_cpu": late_s * split.get("on a core", 0.0) / whole_s,
        "input_queue": late_s * split.get("queueing for a core", 0.0) / whole_s + queued_s,
        "input_collate": late_s * split.get("collating", 0.0) / whole_s + handover_s + between_s,
        "input_next": next_s,
    }


def _is_between_threads(job: MeasuredJob) -> bool:
    """Return whether a tf.data pipeline is blocked while one of its threads hands over to another: no disk is read.

    Where most of a batch's time is blocked, something else is behind it that was not seen.
    """
    cost = job.rank.batch_cost
    if cost is None or job.rank.loader.family != "tensorflow" or cost.disk_bytes is None or not cost.read_bytes:
        return False
    return cost.disk_bytes < CACHED_SHARE * cost.read_bytes and not is_cause_unseen(job, "NO_OVERLAP")
