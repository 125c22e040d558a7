"""Run all rules, and order the causes that they find. The first cause is the verdict."""

from __future__ import annotations

from collections.abc import Callable

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.contention import thread_contention
from headrace.diagnosis.rules.gpu import compute_bound, h2d_bound, overhead_bound, sync_bound
from headrace.diagnosis.rules.input import INPUT_SHARE, inside_next, new_iterators, slow_input
from headrace.diagnosis.rules.machine import (
    cpu_oversubscribed,
    cpu_quota,
    external_cpu,
    hours_until_full,
    memory_growth,
    thermal_throttle,
)
from headrace.diagnosis.rules.pauses import gc_pause, periodic_stall, script_bound, startup
from headrace.diagnosis.rules.ranks import communication, rank_straggler

__all__ = ["find_causes"]

Rule = Callable[[MeasuredJob], Finding | None]

OUTSIDE_RULES: tuple[Rule, ...] = (cpu_quota, thermal_throttle, external_cpu)
"""Rules for causes outside the job. Such a cause makes the job look as if it had a cause inside as well."""

RULES: tuple[Rule, ...] = (
    rank_straggler,
    gc_pause,
    periodic_stall,
    startup,
    new_iterators,
    inside_next,
    slow_input,
    h2d_bound,
    communication,
    script_bound,
    sync_bound,
    overhead_bound,
    cpu_oversubscribed,
)
"""Rules for causes inside the job. Of two causes with equal shares, the one whose rule stands first here leads."""

OUTSIDE_CAUSE_SHARE = 0.10
"""Put a cause outside the job first when it takes at least this share of the step, and half of the largest inside cause's."""

CONTENTION_FIRST = 2.0
"""Put another cause before contention inside a process only when its share is more than this many times as large."""

URGENT_HOURS = 1.0
"""Make memory growth the verdict when memory is full within this time and no other cause slows the job."""


def find_causes(job: MeasuredJob) -> list[Finding]:
    """Return all causes, the verdict first. The verdict is COMPUTE_BOUND when no cause takes a large share of the step."""
    outside = _findings(OUTSIDE_RULES, job)
    inside = sorted(_findings(RULES, job), key=_share, reverse=True)
    least_share = max(OUTSIDE_CAUSE_SHARE, 0.5 * (_share_without_queueing(job, inside[0]) if inside else 0.0))
    first = [found for found in outside if _share(found) >= least_share]
    rest = sorted([*inside, *(found for found in outside if found not in first)], key=_share, reverse=True)
    causes = _contention_first(job, [*first, *rest])
    growth = memory_growth(job)
    if not any(_share(found) >= INPUT_SHARE for found in causes):
        causes.insert(0, compute_bound(job))
        hours = hours_until_full(job)
        if growth is not None and hours is not None and hours < URGENT_HOURS:
            return [growth, *causes]
    return causes if growth is None else [*causes, growth]


def _contention_first(job: MeasuredJob, causes: list[Finding]) -> list[Finding]:
    """Return the causes with contention of a process's own threads first, where it takes a large part of the largest cause.

    Threads that spin make batches slow, and wait for the cores that other programs use: both then look like the cause.
    """
    contention = thread_contention(job)
    if contention is None or CONTENTION_FIRST * _share(contention) < max(map(_share, causes)):
        return causes
    return [contention, *(found for found in causes if found.kind != contention.kind)]


def _findings(rules: tuple[Rule, ...], job: MeasuredJob) -> list[Finding]:
    return [found for rule in rules if (found := rule(job)) is not None]


def _share_without_queueing(job: MeasuredJob, found: Finding) -> float:
    """Return the share of a cause without the queueing for a core that is part of it: a cause outside the job explains that."""
    is_own_work = KINDS[found.kind].is_input and job.rank.makes_batches
    return _share(found) - (job.share(job.rank.wait_s - job.rank.net_wait_s) if is_own_work else 0.0)


def _share(found: Finding) -> float:
    return found.share or 0.0
