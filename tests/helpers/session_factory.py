"""Sessions of simulated jobs, for tests of the rules and of the report.

`make_session` simulates the queue of a training loop: `workers` processes that take `cpu_s + queue_s + blocked_s` per batch,
and a consumer that takes `compute_s` per step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

from headrace.diagnosis.findings.reachable import with_reachable
from headrace.diagnosis.measure.series import heat_map, percentiles, stages, timeline
from headrace.diagnosis.result.model import Diagnosis, Finding, Fix
from headrace.session.machine import GpuProperties, GpuSample, Host, Sample
from headrace.session.model import Batch, Event, NotMeasured, ObservedLoader, Process, Session, Step

MAIN_PID = 1000

FIRST_NEXT_S = 2.0
"""When the first `next()` begins, seconds since the command was started."""


@dataclass(frozen=True)
class SimulatedJob:
    """One rank of a training job. Times are seconds per batch or per step.

    cpu_s, queue_s, blocked_s: what a worker needs for a batch: on a core, waiting for one, blocked.
    transfer_s: hand-over of a batch. main_cpu_share: training thread on a core, over `compute_s`.
    next_queue_s: training thread waiting for a core in `next()`, beside workers; compute_queue_s: the same outside `next()`.
    gpu_wait_share: part of the wait in which the GPU has no work; None without a GPU's clock.
    jitter: half-width of the random factor on all times.
    """

    workers: int = 2
    steps: int = 120
    batch_size: int = 32
    compute_s: float = 0.02
    cpu_s: float = 0.03
    queue_s: float = 0.0
    blocked_s: float = 0.0
    collate_s: float = 0.001
    transfer_s: float = 0.0005
    main_cpu_share: float = 0.05
    next_queue_s: float = 0.0
    compute_queue_s: float | None = None
    gpu_wait_share: float | None = None
    h2d_s: float = 0.0
    sync_s: float = 0.0
    sync_count: int = 0
    cores: int = 4
    foreign_cores: float = 0.0
    read_bytes: int = 3_500_000
    disk_bytes: int = 0
    events: tuple[Event, ...] = ()
    gpu_busy: float | None = None
    throttle: tuple[str, ...] | None = None
    rank: int = 0
    world_size: int = 1
    jitter: float = 0.03
    seed: int = 0

    @property
    def pid(self) -> int:
        return MAIN_PID + 100 * self.rank

    @property
    def make_s(self) -> float:
        """Mean time of making a batch."""
        return self.cpu_s + self.queue_s + self.blocked_s


def make_session(**options: Any) -> Session:
    """Return the session of one rank. `options`: fields of `SimulatedJob`, and fields of `Sample` for all samples."""
    names = {item.name for item in fields(SimulatedJob)}
    job = SimulatedJob(**{name: value for name, value in options.items() if name in names})
    rng = random.Random(job.seed)
    batches, steps, end_s = _simulate(job, rng)
    samples = _samples(job, rng, end_s, {name: value for name, value in options.items() if name not in names})
    return Session(
        command=("python", "train.py"),
        cwd="/work/project",
        started_at=1_700_000_000.0,
        duration_s=end_s + 0.2,
        exit_code=0,
        host=Host(
            hostname="box",
            cores_online=job.cores,
            cores_affinity=job.cores,
            memory_bytes=16 << 30,
            kernel="6.1",
            gpus=() if job.gpu_busy is None else (GpuProperties(0, "NVIDIA A100", 40 << 30, "550.1", 1410),),
        ),
        processes=(
            Process(job.pid, 1, "main", 0.05, rank=job.rank, world_size=job.world_size, torch="2.15.0", torch_threads=1),
            *(Process(job.pid + 1 + number, job.pid, "worker", 1.5, worker_id=number) for number in range(job.workers)),
        ),
        loaders=(
            ObservedLoader(
                job.pid,
                0,
                num_workers=job.workers,
                batch_size=job.batch_size,
                prefetch_factor=2 if job.workers else None,
                dataset="torchvision.datasets.folder.ImageFolder",
                dataset_length=1_281_167,
                transform="Compose(RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor())",
            ),
        ),
        steps=tuple(steps),
        batches=tuple(sorted(batches, key=lambda batch: batch.start_s)),
        events=job.events,
        samples=samples,
        not_measured=() if job.gpu_busy is not None else (NotMeasured("GPU", "no NVIDIA driver on this machine"),),
    )


def _noise(job: SimulatedJob, rng: random.Random) -> float:
    return rng.uniform(1 - job.jitter, 1 + job.jitter)


def _simulate(job: SimulatedJob, rng: random.Random) -> tuple[list[Batch], list[Step], float]:
    """Return batches, steps, and the end of the last step. A batch is ready when its worker has finished it."""
    now_s = FIRST_NEXT_S
    batches: list[Batch] = []
    steps: list[Step] = []
    free_s = [now_s] * max(1, job.workers)
    ordered_s = [now_s] * (2 * job.workers)  # when the training process ordered a batch (prefetch_factor=2)
    for index in range(job.steps):
        wall_s = job.make_s * _noise(job, rng)
        worker = index % job.workers if job.workers else -1
        if job.workers:
            start_s = max(free_s[worker], ordered_s[index])
            idle_s: float | None = start_s - free_s[worker]
            done_s = free_s[worker] = start_s + wall_s
        else:
            start_s, idle_s, done_s = now_s, None, now_s + wall_s
        batches.append(_batch(job, worker, start_s, wall_s, idle_s))
        wait_s = max(0.0, done_s - now_s) + job.transfer_s + (job.next_queue_s if job.workers else 0.0)
        ordered_s.append(now_s + wait_s)
        pause_s = sum(event.duration_s for event in job.events if now_s <= event.start_s < now_s + wait_s + job.compute_s)
        compute_s = job.compute_s * _noise(job, rng) + pause_s
        steps.append(_step(job, now_s, wait_s, compute_s, wall_s, is_ready=done_s <= now_s))
        now_s += wait_s + compute_s
    return batches, steps, now_s


def _batch(job: SimulatedJob, worker: int, start_s: float, wall_s: float, idle_s: float | None) -> Batch:
    scale = wall_s / job.make_s
    return Batch(
        pid=job.pid + 1 + worker,
        loader=0,
        worker=worker,
        start_s=start_s,
        wall_s=wall_s,
        items=job.batch_size,
        cpu_s=job.cpu_s * scale,
        queue_s=job.queue_s * scale,
        collate_s=job.collate_s,
        collate_cpu_s=job.collate_s,
        other_cpu_s=0.0002,
        idle_s=idle_s,
        read_bytes=job.read_bytes,
        disk_bytes=job.disk_bytes,
        socket_s=0.0,
        major_faults=0,
    )


def _step(job: SimulatedJob, start_s: float, wait_s: float, compute_s: float, made_s: float, *, is_ready: bool) -> Step:
    queued_s = job.next_queue_s if job.workers else job.queue_s * made_s / job.make_s
    return Step(
        pid=job.pid,
        loader=0,
        epoch=0,
        start_s=start_s,
        wait_s=wait_s,
        compute_s=compute_s,
        ready=int(is_ready),
        items=job.batch_size,
        cpu_s=job.main_cpu_share * job.compute_s,
        process_cpu_s=job.main_cpu_share * job.compute_s,
        sync_s=job.sync_s,
        sync_count=job.sync_count,
        queue_s=job.compute_queue_s,
        wait_queue_s=queued_s or None,
        gpu_wait_s=None if job.gpu_wait_share is None else job.gpu_wait_share * wait_s,
        gpu_step_s=None if job.gpu_wait_share is None else compute_s,
        h2d_s=job.h2d_s,
        optimizer_steps=1,
        batch_bytes=job.batch_size * 3 * 224 * 224 * 4,
    )


def _samples(job: SimulatedJob, rng: random.Random, end_s: float, values: dict[str, Any]) -> tuple[Sample, ...]:
    busy = min(1.0, job.foreign_cores / job.cores + job.workers / job.cores)
    gpus = () if job.gpu_busy is None else (GpuSample(0, busy=job.gpu_busy, sm_clock_mhz=1980, throttle=job.throttle),)
    return tuple(
        Sample(
            time_s=0.5 * (tick + 1),
            interval_s=0.5,
            core_busy=tuple(min(1.0, busy * _noise(job, rng)) for _ in range(job.cores)),
            own_cores=min(float(job.cores), job.workers * job.cpu_s / job.make_s),
            foreign_cores=job.foreign_cores,
            runnable=job.workers + 1,
            memory_used_bytes=4 << 30,
            own_memory_bytes=1 << 30,
            gpus=gpus,
            **values,
        )
        for tick in range(max(4, int(end_s / 0.5)))
    )


def example_session() -> Session:
    """Return the session of a CPU-bound job with a GPU and two pauses, which fills every panel of a report."""
    pauses = (
        Event(MAIN_PID, "save", 3.0, 0.25, "checkpoint.pt"),
        Event(MAIN_PID, "gc", 4.5, 0.05, "generation 2"),
    )
    return make_session(cpu_s=0.08, queue_s=0.01, blocked_s=0.01, events=pauses, gpu_busy=0.35, cores=8)


def example_diagnosis() -> Diagnosis:
    """Return a diagnosis of `example_session` with hand-written values, to render."""
    session = example_session()
    steps = list(session.steps[2:])
    found = Diagnosis(
        verdict="CPU_PREP",
        confidence=0.82,
        share_of_step={
            "input_storage": 0.05,
            "input_cpu": 0.47,
            "input_queue": 0.06,
            "input_collate": 0.01,
            "h2d": 0.01,
            "compute": 0.37,
            "core_wait": 0.0,
            "communication": 0.0,
            "sync": 0.0,
            "periodic": 0.02,
            "other": 0.01,
        },
        findings=_example_findings(),
        img_s=640.0,
        ceiling_img_s=1560.0,
        not_measured=("PSI: /proc/pressure is not there",),
        summary="decoding and augmenting take longer than the step, and cores are free for more workers",
        steps=len(steps),
        ranks=1,
        step_s=0.05,
        step_p95_s=0.056,
        wait_share=0.6,
        wasted_gpu_hours_per_100=59.0,
        noise="low",
        command=session.command,
        exit_code=0,
        duration_s=session.duration_s,
        terms_s={"compute": 0.0205, "workers": 0.045, "cpu": 0.02},
        startup_s={"imports": 1.4, "first_batch": 0.6},
        environment={"cores": 8, "torch": "2.15.0", "gpu": "NVIDIA A100"},
        percentiles=tuple(
            row
            for row in (
                percentiles("step", "s", [step.step_s for step in steps]),
                percentiles("wait", "s", [step.wait_s for step in steps]),
            )
            if row
        ),
        heat_map=heat_map(session),
        timeline=timeline(session, steps),
        stages=stages(session.batches),
    )
    return with_reachable(found)


def _example_findings() -> tuple[Finding, ...]:
    return (
        Finding(
            "CPU_PREP",
            0.54,
            (
                "next() waits 30 ms of each 50 ms step; only 2 % of the batches were ready in time",
                "a worker spends 80 of 100 ms per batch on a core, and 6 of 8 cores are idle",
            ),
            (
                Fix("num_workers=6", "six workers instead of two", 1480.0, (1350.0, 1560.0), None,
                    "DataLoader(..., num_workers=6)", 2.3, "COMPUTE_BOUND", "closed form", "one argument"),
                Fix("headrace_run", "headrace makes the batches", 1540.0, (1300.0, 1590.0), 1511.0,
                    "headrace run -- python train.py", 2.4, "COMPUTE_BOUND", "micro-benchmark", "no edit"),
                Fix("pin_memory", "≈ 0: the copy to the GPU takes 0.2 ms", 640.0, (630.0, 650.0), None,
                    "DataLoader(..., pin_memory=True)", 1.0),
            ),
            0.82,
            "decoding takes longer than the step, and cores are free",
        ),
        Finding("PERIODIC_STALL", 0.02, ("torch.save took 0.25 s once",), (), 0.6, "checkpoint"),
    )  # fmt: skip
