"""Contention of the threads inside one process: a pool of threads that share too few cores, and spin while they wait.

PyTorch, OpenMP, OpenCV and BLAS split an operator over a pool of threads. The operator ends when its last thread ends. If one
thread has no core, the others spin: they use CPU and give nothing. `measure_contention` compares the CPU time of the process
with the CPU time that its work needs, and models the step with fewer threads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure import BatchCost, Rank, has_native_threads
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.stats import mean_of_known, percentile
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.session.model import Process
from headrace.system.text.sizes import count_text, number_text, percent_text

__all__ = ["Contention", "measure_contention", "thread_contention"]

POOLS = ("torch", "cv2", "numba", "blas")
"""Libraries with pools of threads, as `headrace.attach.machine.thread_settings` names them; "blas" is NumPy's OpenBLAS, MKL or
BLIS."""

POOL_SHARE = 0.25
"""Look for contention where other threads than the working one use at least this share of a process's CPU time."""

QUEUE_SHARE = 0.15
"""Look for contention where the working thread waits for a core for at least this share of the time."""

LEAST_GAIN = 1.1
"""Report contention only if the step would be this many times shorter even where every doubt counts against fewer threads.

So a pool that does useful work, such as that of a model trained on the CPU, is not reported."""

UNDISTURBED = 0.05
"""Take the CPU time of an undisturbed step from this quantile of the steps."""

SPUN = 0.4
"""At least this share of the training thread's own CPU time in an undisturbed step is work; the rest may still be spinning."""

CHEAP_SHARE = 1 / 3
"""Take the useful CPU time of a batch from the cheapest batches where these cost less than this share of the mean.

Batches of several images do not differ so much by their images; a batch whose threads did not have to spin does."""

LEAST_IMAGES = 4
"""Compare batches by their CPU time only from this many images each: of fewer, one large image makes a batch dear."""

COLD_CACHES = 0.45
"""The useful CPU time measured between interruptions may shrink to this share where threads no longer take turns on a core.

Measured: 0.4 to 1.0, the caches being cold after each turn."""

LEAST_QUEUE_LEFT, MOST_QUEUE_LEFT = 0.1, 0.85
"""Expect that this share of the waits for a core (over CPU time) remains with fewer threads, at least and at most.

Measured on 2 cores with 2 to 4 other busy programs, for image transforms and small and large models: 0.11 to 0.77."""


@dataclass(frozen=True, slots=True)
class Contention:
    """The CPU time and waits that the threads of one process cost one another, in seconds per step, or per batch of a worker.

    where, work: "training process" or "worker"; what takes the CPU time, in words.
    library: which library has the largest pool: one of `POOLS`.
    threads, proposed: threads of the pool now, and as many as have cores.
    wanted: threads of all ranks that want a core at the same time, with the cores that other programs use.
    cpu_s, pool_cpu_s: CPU time of the process, and of its threads beside the working one.
    useful_s: CPU time that the work needs, at least and at most.
    queue_s: the working thread waits for a core.
    step_s: the step with the proposed threads: shortest, likely, longest.
    """

    where: str
    work: str
    library: str
    threads: int
    proposed: int
    wanted: float
    cpu_s: float
    pool_cpu_s: float
    useful_s: tuple[float, float]
    queue_s: float
    step_s: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a step: wall time, CPU of its thread and of the pool, wait for a core, useful CPU at least and at most."""

    wall_s: float
    cpu_s: float
    pool_s: float
    queue_s: float
    low_s: float
    high_s: float

    @property
    def contends(self) -> bool:
        pool = self.pool_s >= POOL_SHARE * (self.cpu_s + self.pool_s)
        return pool and self.queue_s >= QUEUE_SHARE * self.wall_s and self.wall_s > 0

    def after_s(self, threads: int) -> tuple[float, float, float]:
        """Return shortest, likely and longest wall time with fewer threads."""
        blocked_s = max(0.0, self.wall_s - self.cpu_s - self.queue_s)
        ratio = self.queue_s / max(1e-9, self.cpu_s)
        shortest = self.low_s / threads * (1 + LEAST_QUEUE_LEFT * ratio)
        longest = self.high_s / threads * (1 + MOST_QUEUE_LEFT * ratio)
        return blocked_s + shortest, blocked_s + math.sqrt(shortest * longest), blocked_s + longest


def thread_contention(job: MeasuredJob) -> Finding | None:
    """Report that the threads inside the training process, or inside the workers, contend for too few cores."""
    found = measure_contention(job)
    if found is None:
        return None
    rank, cores = job.rank, job.machine.cores or 1.0
    low, high = found.useful_s
    images = rank.items or 1.0
    useful = f"{duration(low / images)} to {duration(high / images)}"
    training = f"each of {len(job.ranks)} ranks" if len(job.ranks) > 1 else "the training process"
    who = training if found.where == "training process" else f"each of {rank.workers} workers"
    words = [
        f"{who} has {found.threads} threads; with other programs "
        f"{number_text(found.wanted, digits=2)} threads want {cores:g} cores",
        f"{found.work} takes {duration(found.cpu_s / images)} of CPU time, of which its work needs {useful}: "
        "threads without a core make the others spin",
        f"{percent_text(found.pool_cpu_s / max(1e-9, found.cpu_s))} of the CPU time is that of the pool's other threads; "
        f"the working thread waits {duration(found.queue_s)} for a core",
    ]
    preempted = rank.batch_cost.preempted if rank.batch_cost is not None else None
    if preempted and preempted >= 1:
        words.append(f"the kernel takes the core from a running thread {preempted:.0f} times per batch")
    words += _setting_words([rank.process] if found.where == "training process" else _workers_of(job))
    return make_finding("CPU_OVERSUBSCRIBED", 1 - found.step_s[1] / rank.step_s, *words)


def _setting_words(processes: Sequence[Process]) -> list[str]:
    settings = processes[0].thread_settings if processes else {}
    names = [f"{name}={value}" for name, value in settings.items() if name.isupper()]
    names += [f"{name} has {count_text(int(value), 'thread')}" for name, value in settings.items() if name in POOLS]
    return ["settings: " + ", ".join(names)] if names else []


def _largest_pool(processes: Sequence[Process]) -> tuple[int, str]:
    """Return the threads of the largest pool that one of the processes may use, at least 1, and the library that has it."""
    pools = [(1, "torch")]
    for process in processes:
        settings = process.thread_settings
        pools += [(int(settings[name]), name) for name in POOLS if name in settings]
        pools.append((process.torch_threads or 1, "torch"))
    return max(pools, key=lambda pool: pool[0])


def measure_contention(job: MeasuredJob) -> Contention | None:
    """Return the contention of the threads in the training process, or else in a worker; None without contention."""
    return _in_training_process(job) or _in_workers(job)


def _in_training_process(job: MeasuredJob) -> Contention | None:
    rank = job.rank
    threads, library = _largest_pool([rank.process])
    loader_part = _loader_part(job)
    parts = [part for part in (loader_part, _compute_part(job, threads)) if part is not None]
    busy_workers = _busy_workers(rank)
    ranks = max(1, len(job.ranks))  # each has as many threads
    wanted = ranks * (threads + busy_workers) + (job.machine.foreign_cores or 0.0)
    cores = job.machine.cores
    if threads < 2 or not cores or wanted <= cores or not any(part.contends for part in parts):
        return None
    free = cores - ranks * busy_workers - (job.machine.foreign_cores or 0.0)
    proposed = max(1, min(threads - 1, int(free / ranks)))
    wall_s = math.fsum(part.wall_s for part in parts)
    shortest, likely, longest = (math.fsum(part.after_s(proposed)[n] for part in parts) for n in range(3))
    rest_s = max(0.0, rank.step_s - wall_s)
    if rank.workers or loader_part is not None:  # the rest is mostly waiting for what contends
        shortest, likely, longest = shortest * rank.step_s / wall_s, likely * rank.step_s / wall_s, longest + rest_s
    else:  # batches are made in the rest: it can lose its own waits for a core, and nothing else
        least_s = max(0.0, rest_s - (mean_of_known(step.wait_queue_s for step in rank.steps) or 0.0))
        shortest, likely, longest = shortest + least_s, likely + math.sqrt(least_s * rest_s), longest + rest_s
    useful_s = [math.fsum(part.low_s for part in parts), math.fsum(part.high_s for part in parts)]
    floor_s = [_input_floor_s(job, work_s) for work_s in (useful_s[0], math.sqrt(useful_s[0] * useful_s[1]), useful_s[1])]
    shortest, likely, longest = max(shortest, floor_s[0]), max(likely, floor_s[1]), max(longest, floor_s[2])
    if rank.step_s < LEAST_GAIN * longest:
        return None
    return Contention(
        "training process",
        "an image" if loader_part is not None else "computing on an image",
        library,
        threads,
        proposed,
        wanted,
        cpu_s=math.fsum(part.cpu_s + part.pool_s for part in parts),
        pool_cpu_s=math.fsum(part.pool_s for part in parts),
        useful_s=(useful_s[0], useful_s[1]),
        queue_s=math.fsum(part.queue_s for part in parts),
        step_s=(shortest, likely, longest),
    )


def _input_floor_s(job: MeasuredJob, main_cpu_s: float) -> float:
    """Return the seconds that a step needs for the batches of the workers, if the training process uses `main_cpu_s` of CPU.

    Fewer threads in the training process make no batch cheaper. 0 without workers, whose batches are one of the parts.
    """
    if job.model is None or not job.rank.workers:
        return 0.0
    terms_s = job.model.changed(main_cpu_s=main_cpu_s).terms_s
    return max(terms_s["workers"], terms_s["cpu"], terms_s["storage"])


def _busy_workers(rank: Rank) -> float:
    """Return how many workers are on a core or want one, on average."""
    cost = rank.batch_cost
    if not rank.workers or cost is None or cost.cpu_s is None:
        return 0.0
    return min(rank.workers, (cost.cpu_s + (cost.queue_s or 0.0)) / rank.step_s)


def _loader_part(job: MeasuredJob) -> _Part | None:
    """Return the making of a batch in the training process; None with workers, or where a counter is missing."""
    cost, rank = job.rank.batch_cost, job.rank
    if rank.workers or cost is None or cost.cpu_s is None or cost.queue_s is None or cost.pool_cpu_s is None:
        return None
    events = [event for event in job.session.events if event.name == "operator_cpu" and event.pid == rank.process.pid]
    if not events:
        return None
    found = json.loads(events[-1].detail or "{}")
    high_s, low_s = min(found["high_s"], cost.cpu_s + cost.pool_cpu_s), found["low_s"]
    cheapest_s = _cheapest_batches_s(job, cost.cpu_s + cost.pool_cpu_s)
    if cheapest_s is not None:
        high_s, low_s = min(high_s, cheapest_s), min(low_s, cheapest_s)
    low_s = min(COLD_CACHES * low_s, high_s)
    return _Part(cost.wall_s, cost.cpu_s, cost.pool_cpu_s, cost.queue_s, low_s, high_s)


def _cheapest_batches_s(job: MeasuredJob, mean_s: float) -> float | None:
    """Return the CPU seconds of the cheapest steady batches, pool included; None where all batches cost about the same.

    The operators are measured in a few batches only. In all of these the pool may have lacked a core.
    """
    rank = job.rank
    begin_s = rank.steps[0].start_s
    costs = [
        batch.cpu_s + batch.pool_cpu_s
        for batch in job.session.batches
        if batch.pid == rank.process.pid and batch.loader == rank.loader.loader and batch.start_s >= begin_s
        if batch.cpu_s is not None and batch.pool_cpu_s is not None
    ]
    if not costs or (rank.items or 0.0) < LEAST_IMAGES:
        return None
    cheapest_s = percentile(costs, UNDISTURBED)
    return cheapest_s if cheapest_s < CHEAP_SHARE * mean_s else None


def _compute_part(job: MeasuredJob, threads: int) -> _Part | None:
    """Return the model's part of a step on the CPU; None with a GPU, where autograd's thread launches the kernels."""
    rank = job.rank
    if job.machine.gpu_busy is not None or rank.main_cpu_s is None or rank.compute_queue_s is None:
        return None
    total_s = mean_of_known(step.process_cpu_s for step in rank.steps)
    known = [step.cpu_s for step in rank.steps if step.cpu_s is not None]
    if total_s is None or not known:
        return None
    pool_s = total_s - rank.main_cpu_s - (mean_of_known(step.wait_cpu_s for step in rank.steps) or 0.0)
    if not rank.workers and rank.batch_cost is not None:
        pool_s -= rank.batch_cost.pool_cpu_s or 0.0
    if has_native_threads(rank.loader):
        pool_s -= (rank.batch_cost.cpu_s or 0.0) if rank.batch_cost is not None else 0.0
    undisturbed_s = percentile(known, UNDISTURBED)
    high_s = min(threads * undisturbed_s, rank.main_cpu_s + max(0.0, pool_s))
    low_s = min(SPUN * undisturbed_s, high_s)
    return _Part(rank.compute_s, rank.main_cpu_s, max(0.0, pool_s), rank.compute_queue_s, low_s, high_s)


def _workers_of(job: MeasuredJob) -> list[Process]:
    mine = job.rank.process.pid
    return [each for each in job.session.processes if each.role == "worker" and each.parent_pid == mine]


def _in_workers(job: MeasuredJob) -> Contention | None:
    """Return the contention of thread pools in the workers: OpenCV, Numba, or PyTorch with more than one thread per worker."""
    rank, cost, cores = job.rank, job.rank.batch_cost, job.machine.cores
    threads, library = _largest_pool(_workers_of(job))
    if cost is None or not cores or threads < 2 or cost.cpu_s is None or cost.queue_s is None or job.model is None:
        return None
    wanted = rank.workers * threads + (job.machine.foreign_cores or 0.0)
    part = _worker_part(job, cost)
    if wanted <= cores or part is None or not part.contends:
        return None
    free = cores - (job.machine.foreign_cores or 0.0)
    proposed = max(1, min(threads - 1, int(free / rank.workers)))
    times = []
    for cpu_s in (part.low_s, math.sqrt(part.low_s * part.high_s), part.high_s):
        # One thread runs beside its queue no longer: the step model's cores say what queueing remains.
        after = job.model.changed(cpu_s=cpu_s, send_s=max(0.0, cost.other_cpu_s - part.pool_s))
        times.append(max(after.step_s, 1e-6))
    if rank.step_s < LEAST_GAIN * times[2]:
        return None
    useful_s = (part.low_s, part.high_s)
    whole_s = part.cpu_s + part.pool_s
    steps_s = (times[0], times[1], times[2])
    return Contention(
        "worker", "an image", library, threads, proposed, wanted, whole_s, part.pool_s, useful_s, part.queue_s, steps_s
    )


def _worker_part(job: MeasuredJob, cost: BatchCost) -> _Part | None:
    """Return the making of a batch in a worker, with useful CPU time from the cheapest batches."""
    made = [b for b in job.session.batches if b.loader == job.rank.loader.loader and b.worker >= 0 and not b.alone]
    known = [(b.cpu_s, b.pool_cpu_s) for b in made if b.cpu_s is not None and b.pool_cpu_s is not None]
    if not known or cost.cpu_s is None or cost.pool_cpu_s is None:
        return None
    high_s = min(percentile([cpu_s + pool_s for cpu_s, pool_s in known], UNDISTURBED), cost.cpu_s + cost.pool_cpu_s)
    low_s = min(high_s, SPUN * percentile([cpu_s for cpu_s, _ in known], UNDISTURBED))
    return _Part(cost.wall_s, cost.cpu_s, cost.pool_cpu_s, cost.queue_s or 0.0, low_s, high_s)
