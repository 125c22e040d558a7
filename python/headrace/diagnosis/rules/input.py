"""The rules for the input: does training wait for batches, and which resource limits their making?"""

from __future__ import annotations

import math

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.measure import BatchCost, Rank
from headrace.diagnosis.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.stats import mean

__all__ = [
    "INPUT_SHARE",
    "SMALL_BATCH_BYTES",
    "input_kind",
    "input_wait_s",
    "is_small_handover",
    "slow_input",
    "unseen_input_kind",
    "workers_are_needed",
    "workers_that_fit",
]

INPUT_SHARE = 0.07
"""Waiting for input below this share of the step is no finding (XProf: 5 % moderate, 20 % high)."""

SMALL_BATCH_BYTES = 1_000_000
"""Handing over less than this costs wake-ups and calls, not the moving of bytes."""

LEAST_IMAGE_BYTES = 1000.0
"""Less than this is no image: the bytes come another way."""

QUEUE_SHARE = 0.30
"""Of a batch's making, spent waiting for a core: more threads want to run than there are cores."""

NEEDED = 1.1
"""Times longer that a step takes with fewer workers, from which they are needed although they crowd the cores."""

BUSY_SHARE = 0.85
"""Cores in use on average from which the CPU counts as full: samples of half a second hide short idle times."""


def slow_input(job: MeasuredJob) -> Finding | None:
    rank, cost = job.rank, job.rank.batch_cost
    if is_small_handover(rank):
        return None
    share = job.share(input_wait_s(job))
    if share < INPUT_SHARE:
        return None
    if workers_are_needed(job):  # what they take from the training thread is what making batches costs, too
        share = min(1.0, share + job.share(rank.main_queue_s or 0.0))
    kind, evidence = input_kind(job, cost) if cost is not None else unseen_input_kind(job)
    ready = f"; {rank.at_once_share:.0%} of the batches came at once" if rank.workers else ""
    what = "what comes before the forward pass" if rank.loader.family == "none" else "next()"
    waits = f"{what} takes {duration(_common_wait_s(job))} of each {duration(rank.step_s)} step{ready}"
    return make_finding(kind, share, waits, *evidence)


def _common_wait_s(job: MeasuredJob) -> float:
    """What every rank waits for input per step: those that have their batches wait for one that has not, a straggler."""
    return min(rank.exposed_wait_s for rank in job.ranks)


def input_wait_s(job: MeasuredJob) -> float:
    """The same, taking over ready batches left out where that is little."""
    rank = job.rank
    return max(0.0, _common_wait_s(job) - (rank.handover_s if _handover_is_small(rank) else 0.0))


def _handover_is_small(rank: Rank) -> bool:
    """Whether taking a ready batch over costs little; otherwise it is itself the input problem."""
    return rank.handover_s < INPUT_SHARE * rank.step_s


def is_small_handover(rank: Rank) -> bool:
    """Whether all of the wait is taking over batches that are ready and small: overhead of a small step, not input."""
    in_time = rank.ready_share is not None and rank.ready_share > 0.9
    return in_time and rank.batch_bytes < SMALL_BATCH_BYTES and rank.handover_s > 0.6 * rank.net_wait_s


def workers_are_needed(job: MeasuredJob) -> bool:
    """Whether as many as leave the training thread a core would be slower than today's: too much work, not too many threads."""
    model, cores = job.model, job.machine.cores
    if model is None or not cores or model.workers < 2:
        return False
    return model.changed(workers=workers_that_fit(model.workers, cores)).step_s > NEEDED * job.rank.step_s


def workers_that_fit(workers: int, cores: float) -> int:
    """Workers that leave a core to the training thread, one fewer at least."""
    return max(1, min(workers - 1, int(cores) - 1))


def unseen_input_kind(job: MeasuredJob) -> tuple[str, tuple[str, ...]]:
    """Batches made where no hook sees it, in native threads of the training process: its CPU use tells something."""
    rank, machine = job.rank, job.machine
    if rank.loader.family == "kineto":
        kind = "CPU_PREP" if rank.workers else "NO_OVERLAP"
        return kind, ("a trace does not show what makes batches slow, CPU or storage: run headrace diagnose to tell",)
    made_s = mean([step.wait_cpu_s for step in rank.steps if step.wait_cpu_s is not None]) or 0.0
    if rank.loader.family == "none" and made_s > 0.5 * rank.net_wait_s:
        words = f"the training thread itself works for {duration(made_s)} of that: it makes the batch, or does other work there"
        return "NO_OVERLAP", (words,)
    used = (rank.process_cpu_s or 0.0) / rank.step_s
    makers = "code of the script's own makes" if rank.loader.family == "none" else "the loader's own threads make"
    words = f"{makers} the batches; the training process uses {used:.1f} cores"
    ours = machine.own_cores is None or machine.own_cores >= 0.5 * (machine.cores or 1.0)
    if machine.busy_share is not None and machine.busy_share >= BUSY_SHARE and ours:
        return "CPU_SATURATED", (words, f"the cores are {machine.busy_share:.0%} busy")
    if used > 0.5 or machine.busy_share is None:
        return "CPU_PREP", (words,)
    return "STORAGE_LATENCY", (f"{words}, so the threads seem to wait for storage",)


def input_kind(job: MeasuredJob, cost: BatchCost) -> tuple[str, tuple[str, ...]]:
    rank = job.rank
    parts = cost.parts_s
    split = ", ".join(f"{duration(seconds)} {name}" for name, seconds in parts.items() if seconds >= 0.01 * cost.wall_s)
    made = f"making a batch takes {duration(cost.wall_s)}: {split}"
    if rank.workers == 0:
        return "NO_OVERLAP", (made, "num_workers=0: the device idles while a batch is made")
    transport_s = rank.handover_s + (cost.collate_s + cost.other_cpu_s) / rank.workers
    if transport_s > 0.5 * (rank.handover_s + cost.wall_s / rank.workers + cost.other_cpu_s / rank.workers):
        words = f"; a batch has {rank.batch_bytes / 1e6:.0f} MB" if rank.batch_bytes else ""
        return "COLLATE_IPC", (made, f"collating and handing over take {duration(transport_s)} per batch{words}")
    blocked_s, queue_s, cpu_s = parts["blocked"], parts["queueing for a core"], parts["on a core"]
    if blocked_s >= max(queue_s, cpu_s):
        return _storage_kind(job, cost, made)
    return _cpu_kind(job, cost, made, queue_s, cpu_s)


def _storage_kind(job: MeasuredJob, cost: BatchCost, made: str) -> tuple[str, tuple[str, ...]]:
    rank = job.rank
    evidence = [made]
    blocked_s = cost.blocked_s or 0.0
    if cost.read_bytes and cost.disk_bytes is not None and cost.read_bytes > 1e5:
        evidence.append(f"{min(1.0, cost.disk_bytes / cost.read_bytes):.0%} of the bytes came from a disk, not the page cache")
    if cost.alone_ratio is not None:
        others = "another" if rank.workers == 2 else f"{rank.workers - 1} others"
        shorter = f"alone, a batch is blocked {cost.alone_ratio:.1f} times shorter than beside {others}"
        evidence.append(shorter if cost.alone_ratio >= 1.2 else f"a batch is blocked as long alone as beside {others}")
    evidence += _swept(job)
    if cost.socket_s > 0.5 * blocked_s:
        return "NETWORK", (*evidence, f"{duration(cost.socket_s)} of it in reads from sockets")
    network = job.machine.network_bytes_s
    if network is not None and network > 1e6 and network * rank.step_s > _network_bytes_expected(job, cost):
        return "NETWORK", (*evidence, f"{network / 1e6:.0f} MB/s arrive over the network while the workers are blocked")
    if cost.alone_ratio is not None and cost.alone_ratio > 1 + 0.5 * (rank.workers - 1):
        rate = (cost.read_bytes or 0.0) * rank.workers / cost.wall_s
        return "STORAGE_BANDWIDTH", (*evidence, f"all workers together read {rate / 1e6:.0f} MB/s")
    return "STORAGE_LATENCY", tuple(evidence)


def _swept(job: MeasuredJob) -> list[str]:
    """What the job's own files, read cold, gave to one reader and to the number of readers that got most."""
    rates: dict[str, float] = job.session.facts.get("read_sweep") or {}
    if "1" not in rates:
        return []
    readers = max(rates, key=lambda count: rates[count])
    one, most = rates["1"] / 1e6, rates[readers] / 1e6
    if readers == "1":
        return [f"its files, read cold, come at {one:,.0f} MB/s to one reader, and no faster to more: concurrency is the limit"]
    return [f"its files, read cold, come at {one:,.0f} MB/s to one reader, at most at {most:,.0f} MB/s, to {readers}"]


def _network_bytes_expected(job: MeasuredJob, cost: BatchCost) -> float:
    """Bytes per step that must arrive at least for the workers to be waiting for the network.

    What a library reads from a connection counts nowhere, so any traffic of some size will do. Without a connection only a
    network file system is left, whose reads do count.
    """
    images = job.rank.items or 1.0
    read = cost.read_bytes or 0.0
    known = [int(event.detail or 0) for event in job.session.events if event.name == "tcp_connections"]
    if len(job.ranks) > 1 and not any(known):
        return math.inf  # the ranks' own gradients are traffic too
    if known and not any(known):
        return 0.5 * read if read > LEAST_IMAGE_BYTES * images else math.inf
    return max(0.5 * read, LEAST_IMAGE_BYTES * images)


def _cpu_kind(job: MeasuredJob, cost: BatchCost, made: str, queue_s: float, cpu_s: float) -> tuple[str, tuple[str, ...]]:
    rank, machine = job.rank, job.machine
    cores = machine.cores or 1.0
    busy = machine.busy_share
    full = f"; the cores are {busy:.0%} busy" if busy is not None else ""
    if queue_s > QUEUE_SHARE * cost.wall_s:
        # Under a quota cores may idle that the job is not allowed to use: `busy` then is of the quota.
        if busy is not None and busy < 0.7 and len(machine.core_busy) >= rank.workers:
            rows = sorted(machine.core_busy)
            return "CPU_UNEVEN", (
                made,
                f"workers queue although cores idle: the fullest is {rows[-1]:.0%} busy, the emptiest {rows[0]:.0%}",
            )
        threads = rank.process.torch_threads or 1
        main_cores = (rank.process_cpu_s or 0.0) / rank.step_s
        if rank.workers + 1 > cores and main_cores > 0.35:
            return "CPU_OVERSUBSCRIBED", (
                made,
                f"{rank.workers} workers and {threads} compute threads want {cores:g} cores; "
                f"workers wait {queue_s / max(1e-9, cost.cpu_s or 0.0):.1f} times as long for a core as they run",
            )
        return "CPU_SATURATED", (made, f"{rank.workers} workers share {cores:g} cores{full}")
    terms = job.model.terms_s if job.model is not None else {}
    saturated = busy is not None and busy >= BUSY_SHARE
    if terms and not saturated:
        saturated = terms["cpu"] >= 0.9 * max(terms["workers"], terms["compute"]) and (busy is None or busy > 0.75)
    if saturated:
        return "CPU_SATURATED", (
            made,
            f"the job needs {terms.get('cpu', 0.0) * cores / max(1e-9, rank.step_s):.1f} of {cores:g} cores{full}",
        )
    return "CPU_PREP", (made, f"{rank.workers} worker{'s' if rank.workers != 1 else ''} on {cores:g} cores{full}")
