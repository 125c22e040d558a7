"""The rules for the machine: CPU quota, other programs, a throttled GPU, too many threads, memory growth."""

from __future__ import annotations

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.measure import Rank
from headrace.diagnosis.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import INPUT_SHARE, input_wait_s, workers_are_needed
from headrace.diagnosis.stats import median

__all__ = ["cpu_oversubscribed", "cpu_quota", "external_cpu", "hours_until_full", "memory_growth", "thermal_throttle"]

FOREIGN_SHARE = 0.20
"""Of the cores; with queueing that delays the step. Below it, other programs rarely matter."""

LEAST_FOREIGN_DELAY = 0.02
"""Of the step, lost to queueing beside other programs: below it they are noise, not a cause."""

QUOTA_SHARE = 0.05

THROTTLE_SHARE = 0.20

OVERSUBSCRIBED_SHARE = 0.18
"""Of the step, lost by the training thread to queueing. One busy worker beside two compute threads on two cores costs
about 0.1, which is no fault."""

GROWTH_HOURS = 12.0
"""Memory growth counts as a fault when it fills what is left within this time."""


def cpu_quota(job: MeasuredJob) -> Finding | None:
    throttled = job.machine.throttled_share
    if throttled is None:
        return None
    # The kernel counts each core's stop. One busy core loses that share of the time; of several, it is the share of what
    # they would have run.
    share = throttled / max(1.0, throttled + (job.machine.own_cores or 0.0))
    if share < QUOTA_SHARE:
        return None
    quota = job.session.host.quota_cores
    limit = f"the limit is {quota:.2g} cores" if quota else "the cgroup has a CPU limit"
    return make_finding("CPU_QUOTA", share, f"the kernel stopped the job for {share:.0%} of the time; {limit}")


def thermal_throttle(job: MeasuredJob) -> Finding | None:
    machine = job.machine
    if not machine.gpu_throttle_share or machine.gpu_throttle_share < THROTTLE_SHARE:
        return None
    slower = _slow_down(job.rank)
    clock = machine.gpu_clock_share
    share = max(1 - clock if clock is not None else 0.0, slower or 0.0, 0.1)
    words = [f"{machine.gpu_throttle_share:.0%} of the GPU samples were throttled: {', '.join(machine.gpu_throttle)}"]
    if clock is not None:
        words.append(f"the clock was at {clock:.0%} of its maximum")
    change = change_point(job.rank)
    if slower and change is not None:
        words.append(f"compute is {slower:.0%} of the step longer from step {change} on")
    return make_finding("THERMAL_THROTTLE", share, *words)


def change_point(rank: Rank) -> int | None:
    """The step from which compute takes at least 15 % longer to the end, or None: the best single split of means."""
    values = [step.compute_s for step in rank.steps]
    if len(values) < 20:
        return None
    best, found = 0.0, None
    total, before = sum(values), 0.0
    for index in range(1, len(values)):
        before += values[index - 1]
        if 5 <= index <= len(values) - 5:
            left, right = before / index, (total - before) / (len(values) - index)
            gain = (right - left) ** 2 * index * (len(values) - index)
            if right > 1.15 * left and gain > best:
                best, found = gain, index
    return None if found is None else found + len(rank.all_steps) - len(values)


def _slow_down(rank: Rank) -> float | None:
    change = change_point(rank)
    if change is None:
        return None
    index = change - (len(rank.all_steps) - len(rank.steps))
    early = median([step.compute_s for step in rank.steps[:index]]) or 0.0
    late = median([step.compute_s for step in rank.steps[index:]]) or 0.0
    return max(0.0, late - early) / late if late > 0 else None


def external_cpu(job: MeasuredJob) -> Finding | None:
    foreign = job.machine.foreign_share
    if foreign is None or foreign < FOREIGN_SHARE:
        return None
    delayed = _queueing_s(job)
    if delayed is None:
        return None
    share = job.share(delayed)
    if share < LEAST_FOREIGN_DELAY:
        return None  # they are there, and not in the way
    queued = job.machine.queue_share
    words = [f"other programs use {job.machine.foreign_cores:.1f} of {job.machine.cores:g} cores"]
    if queued is not None:
        words.append(f"the job's threads wait for a core {queued:.0%} of the time in which they could run")
    words.append(f"that delays each step by about {duration(delayed)}")
    return make_finding("EXTERNAL_CPU", share, *words)


def _queueing_s(job: MeasuredJob) -> float | None:
    """Seconds of the step lost to waiting for a core: in the training process, and through late batches."""
    rank = job.rank
    if rank.main_queue_s is None and (rank.batch_cost is None or rank.batch_cost.queue_s is None):
        return None
    lost = rank.main_queue_s or 0.0
    if rank.batch_cost is not None and rank.batch_cost.queue_s is not None and rank.batch_cost.wall_s > 0:
        lost += rank.exposed_wait_s * rank.batch_cost.queue_s / rank.batch_cost.wall_s
    return lost


def cpu_oversubscribed(job: MeasuredJob) -> Finding | None:
    """The training process itself queues for cores that the job's own threads fill."""
    rank, machine = job.rank, job.machine
    foreign = machine.foreign_share
    if rank.main_queue_s is None or foreign is None or foreign >= FOREIGN_SHARE or not machine.cores:
        return None
    share = job.share(rank.main_queue_s)
    threads = rank.workers + (rank.process.torch_threads or 1)
    if share < OVERSUBSCRIBED_SHARE or threads <= machine.cores:
        return None
    if job.share(input_wait_s(job)) >= INPUT_SHARE and workers_are_needed(job):
        return None  # the cost of making batches, which the input's finding names
    return make_finding(
        "CPU_OVERSUBSCRIBED",
        share,
        f"the training thread waits {duration(rank.main_queue_s)} per step for a core",
        f"{rank.workers} workers and {rank.process.torch_threads or 1} compute threads want {machine.cores:g} cores",
    )


def memory_growth(job: MeasuredJob) -> Finding | None:
    growth, hours = job.machine.memory_growth_bytes_s, hours_until_full(job)
    if not growth or hours is None or hours > GROWTH_HOURS or growth < 1e5:
        return None
    per_step = growth * job.rank.step_s
    left_s = hours * 3600
    return make_finding(
        "MEMORY_GROWTH",
        None,
        f"memory grows by {growth / 1e6:.1f} MB/s ({per_step / 1e6:.2f} MB per step); full in {left_s / 60:.0f} min",
    )


def hours_until_full(job: MeasuredJob) -> float | None:
    machine = job.machine
    growth, used, limit = machine.memory_growth_bytes_s, machine.memory_used_bytes, machine.memory_limit_bytes
    return max(0, limit - used) / growth / 3600 if growth and used is not None and limit is not None else None
