"""The rules for distributed jobs: one slow rank, and the exchange of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.diagnosis.measure import Rank
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.stats import median
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import input_kind

__all__ = ["communication", "rank_straggler", "slow_phase", "straggler_input"]

COMMUNICATION_SHARE = 0.15
"""Report the exchange of gradients when every rank waits for it for at least this share of the step."""

STRAGGLER_SHARE = 0.08
"""Report a slow rank when it needs this share of the step longer than the others do (TraceML warns at 10 %)."""

LOADER_PHASE = "the loader"


def rank_straggler(job: MeasuredJob) -> Finding | None:
    """Report that one rank needs longer than the others for its own part of the step, and in which phase."""
    known = [rank for rank in job.ranks if rank.own_s is not None]
    if len(known) < 2:
        return None
    slow = max(known, key=lambda rank: rank.own_s or 0.0)
    rest = [rank for rank in known if rank is not slow]
    usual_s = median([rank.own_s or 0.0 for rank in rest]) or 0.0
    extra_s = (slow.own_s or 0.0) - usual_s
    share = job.share(extra_s)
    if share < STRAGGLER_SHARE:
        return None
    phase, longer_s = slow_phase(slow, rest)
    late = straggler_input(job)
    return make_finding(
        "RANK_STRAGGLER",
        share,
        f"rank {slow.process.rank} needs {duration(slow.own_s or 0.0)} per step for its own part, the others need "
        f"{duration(usual_s)}",
        f"rank {slow.process.rank} is slow in {phase} ({duration(longer_s)} longer)",
        f"the others wait {duration(median([rank.collective_s or 0.0 for rank in rest]) or 0.0)} per step for its gradients",
        *(late[1] if late is not None else ()),
    )


def straggler_input(job: MeasuredJob) -> tuple[str, tuple[str, ...]] | None:
    """Return kind and evidence of the slow input of a rank that is slow in its loader; None for other slow ranks."""
    rest = [rank for rank in job.ranks if rank is not job.rank]
    if job.rank.batch_cost is None or not rest or slow_phase(job.rank, rest)[0] != LOADER_PHASE:
        return None
    return input_kind(job, job.rank.batch_cost)


def slow_phase(slow: Rank, rest: Sequence[Rank]) -> tuple[str, float]:
    """Return the phase in which `slow` exceeds the median of the rest most, and by how many seconds."""

    def phases(rank: Rank) -> dict[str, float]:
        forward, backward = rank.forward_s or 0.0, rank.backward_s or 0.0
        other = max(0.0, rank.compute_s - forward - backward - (rank.collective_s or 0.0))
        return {LOADER_PHASE: rank.wait_s, "forward": forward, "backward": backward, "the rest of the step": other}

    usual = {name: median([phases(rank)[name] for rank in rest]) or 0.0 for name in phases(slow)}
    longer = {name: value - usual[name] for name, value in phases(slow).items()}
    name = max(longer, key=lambda phase: longer[phase])
    return name, longer[name]


def communication(job: MeasuredJob) -> Finding | None:
    """Report that all ranks, the slowest included, wait for the exchange of gradients."""
    if len(job.ranks) < 2:
        return None
    waits = [rank.collective_s for rank in job.ranks if rank.collective_s is not None]
    if len(waits) < len(job.ranks):
        return None
    common = min(waits)  # even the slowest rank waits this long, so no rank is to blame
    share = job.share(common)
    if share < COMMUNICATION_SHARE:
        return None
    return make_finding(
        "COMMUNICATION", share, f"every rank waits at least {duration(common)} per step for gradients to arrive"
    )
