"""Run all rules, and order the causes that they find. The first cause is the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

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
    own_share_of_waits,
    queueing_in_input_s,
    thermal_throttle,
)
from headrace.diagnosis.rules.pauses import gc_pause, gil_in_step, growing_step, periodic_stall, script_bound, startup
from headrace.diagnosis.rules.ranks import communication, rank_straggler

__all__ = ["find_causes"]

Rule = Callable[[MeasuredJob], Finding | None]

OUTSIDE_RULES: tuple[Rule, ...] = (thermal_throttle, external_cpu)
"""Rules for causes outside the job, beside `cpu_quota`. Such a cause makes the job look as if it had a cause inside as well."""

OUTSIDE_KINDS = ("CPU_QUOTA", "THERMAL_THROTTLE", "EXTERNAL_CPU")

RULES: tuple[Rule, ...] = (
    rank_straggler,
    gc_pause,
    periodic_stall,
    growing_step,
    startup,
    new_iterators,
    inside_next,
    slow_input,
    h2d_bound,
    communication,
    script_bound,
    gil_in_step,
    sync_bound,
    overhead_bound,
    cpu_oversubscribed,
)
"""Rules for causes inside the job. Of two causes with equal shares, the one whose rule stands first here leads."""

LEADING_SHARE = 0.20
"""Let a cause inside the training process lead over computing from this share of the step (XProf calls 20 % high).

A wait for input leads from `INPUT_SHARE` on: the input is then the largest term of the step model. Without workers each batch
is waited for (NO_OVERLAP), however short that is."""

OUTSIDE_OVER_COMPUTING = 0.5
"""Let a cause outside the job lead over computing when its share is at least this many times that of computing."""

CONTENTION_FIRST = 2.0
"""Put another cause before contention inside a process only when its share is more than this many times as large.

So the other one is then the larger one also without the time that the contention explains."""

URGENT_HOURS = 1.0
"""Make memory growth the verdict when memory is full within this time and no other cause slows the job."""


def find_causes(job: MeasuredJob, parts: Mapping[str, float]) -> list[Finding]:
    """Return all causes, the verdict first: the largest that leads, each second of a step counted once.

    The verdict is COMPUTE_BOUND where all shares are small beside computing (`_leads`).

    parts: the parts of the step, as shares (`share_of_step`).
    """
    computing = parts["compute"]
    quota = cpu_quota(job, parts["input_quota"] + parts["quota"])
    outside = [*([quota] if quota is not None else []), *_findings(OUTSIDE_RULES, job)]
    inside = _findings(RULES, job)
    waits = 1.0 - own_share_of_waits(job) if any(found.kind == "EXTERNAL_CPU" for found in outside) else 0.0
    waits = waits or (job.machine.quota_share_of_waits or 0.0 if quota is not None else 0.0)
    if waits:
        inside = [rest for found in inside if (rest := _without_queueing(job, found, waits)) is not None]
    causes = sorted([*outside, *inside], key=_share, reverse=True)
    causes = _contention_first(job, causes)
    growth = memory_growth(job)
    leading = _leading(causes, computing)
    if leading is not None:
        causes.remove(leading)
        causes.insert(0, leading)
    else:
        causes.insert(0, compute_bound(job, computing, beside=tuple(causes)))
        hours = hours_until_full(job)
        if growth is not None and hours is not None and hours < URGENT_HOURS:
            return [growth, *causes]
    return causes if growth is None else [*causes, growth]


def _leading(causes: list[Finding], computing: float) -> Finding | None:
    """Return the cause that is the verdict; None for computing. causes: the largest first.

    A cause outside the job may explain what looks like a smaller one inside: behind it, none leads.
    """
    for found in causes:
        if _leads(found, computing):
            return found
        if found.kind in OUTSIDE_KINDS:
            return None
    return None


def _leads(found: Finding, computing: float) -> bool:
    """Return whether a cause may be the verdict, rather than computing."""
    share = _share(found)
    if found.kind in OUTSIDE_KINDS:
        computing -= share if found.kind == "THERMAL_THROTTLE" else 0.0  # a low clock makes computing longer
        return share >= OUTSIDE_OVER_COMPUTING * computing
    is_term = KINDS[found.kind].is_input and found.kind != "NO_OVERLAP"
    return share >= (INPUT_SHARE if is_term else min(LEADING_SHARE, computing))


def _contention_first(job: MeasuredJob, causes: list[Finding]) -> list[Finding]:
    """Return the causes with contention of a process's own threads first, where it takes a large part of the largest cause.

    Threads that spin make batches slow, and wait for the cores that other programs use: both then look like the cause. The
    other causes keep the time that contention does not explain.
    """
    contention = thread_contention(job)
    if contention is None or CONTENTION_FIRST * _share(contention) < max(map(_share, causes), default=0.0):
        return causes
    rest = [_less(found, _share(contention)) for found in causes if found.kind != contention.kind]
    return [contention, *sorted(rest, key=_share, reverse=True)]


def _without_queueing(job: MeasuredJob, found: Finding, waits: float) -> Finding | None:
    """Return a slow input without this share of its waits for a core: they are the share of EXTERNAL_CPU and CPU_QUOTA.

    None: what is left is too small a share to report.
    """
    if not KINDS[found.kind].is_input or (found.kind == "CPU_OVERSUBSCRIBED" and own_share_of_waits(job)):
        return found
    rest = _less(found, waits * job.share(queueing_in_input_s(job, found.kind)))
    return rest if _share(rest) >= INPUT_SHARE else None


def _less(found: Finding, share: float) -> Finding:
    return found if found.share is None else replace(found, share=round(max(0.0, found.share - share), 4))


def _findings(rules: tuple[Rule, ...], job: MeasuredJob) -> list[Finding]:
    return [found for rule in rules if (found := rule(job)) is not None]


def _share(found: Finding) -> float:
    return found.share or 0.0
