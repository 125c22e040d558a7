"""The parts of a step, as shares that sum to 1."""

from __future__ import annotations

import math

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.kinds import KINDS
from headrace.diagnosis.model import SHARES
from headrace.diagnosis.rules.input import unseen_input_kind

__all__ = ["share_of_step"]


def share_of_step(job: MeasuredJob) -> dict[str, float]:
    """Return the parts of the mean steady step (`SHARES`). They sum to 1; what no part explains counts as compute."""
    rank, cost = job.rank, job.rank.batch_cost
    pauses_s = min(rank.compute_s, rank.pauses.gc_s + rank.pauses.periodic_s)
    waiting_s = min(rank.exposed_wait_s, rank.step_s)
    handover_s = min(waiting_s, rank.handover_s if rank.workers else 0.0)
    if cost is not None:
        split = cost.parts_s
    else:
        split = {"blocked" if KINDS[unseen_input_kind(job)[0]].is_blocked else "on a core": 1.0}
    whole_s = math.fsum(split.values()) or 1.0
    late_s = waiting_s - handover_s
    collective_s = min(rank.compute_s, rank.collective_s or 0.0) if len(job.ranks) > 1 else 0.0
    sync_s = _sync_s(job)
    h2d_s = min(rank.compute_s, rank.h2d_s or 0.0)
    queue_s = min(rank.step_s - waiting_s, rank.main_queue_s or 0.0)
    parts = {
        "input_storage": late_s * split.get("blocked", 0.0) / whole_s,
        "input_cpu": late_s * split.get("on a core", 0.0) / whole_s,
        "input_queue": late_s * split.get("queueing for a core", 0.0) / whole_s,
        "input_collate": late_s * split.get("collating", 0.0) / whole_s + handover_s,
        "h2d": h2d_s,
        "communication": collective_s,
        "sync": sync_s,
        "periodic": pauses_s,
        "other": queue_s,
    }
    parts["compute"] = max(0.0, rank.step_s - math.fsum(parts.values()))
    total_s = math.fsum(parts.values())
    return {name: parts[name] / total_s for name in SHARES}


def _sync_s(job: MeasuredJob) -> float:
    """Return the seconds per step in which the device idles because the script waits for it several times."""
    rank = job.rank
    if rank.sync_count is None or rank.sync_s is None or rank.sync_count < 2:
        return 0.0
    idle_s = max(0.0, min(rank.typical_compute_s - rank.sync_s, rank.sync_s))
    return min(idle_s, (1 - job.machine.gpu_busy) * rank.step_s) if job.machine.gpu_busy is not None else idle_s
