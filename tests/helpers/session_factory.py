"""Sessions made by arithmetic, for tests of the rules and of the report: what a run of a given kind would have left.

`make_session` plays the queueing of a training loop: `workers` processes that take `cpu_s + queue_s + blocked_s` per
batch, and a consumer that takes `compute_s` per step.
"""

from __future__ import annotations

import random

from headrace.diagnosis.model import Diagnosis, Finding, Fix
from headrace.diagnosis.series import heat_map, percentiles, stages, timeline
from headrace.session.model import (
    Batch,
    Event,
    GpuProperties,
    GpuSample,
    Host,
    NotMeasured,
    ObservedLoader,
    Process,
    Sample,
    Session,
    Step,
)

MAIN_PID = 1000


def make_session(
    *,
    workers: int = 2,
    steps: int = 120,
    batch_size: int = 32,
    compute_s: float = 0.02,
    cpu_s: float = 0.03,
    queue_s: float = 0.0,
    blocked_s: float = 0.0,
    collate_s: float = 0.001,
    transfer_s: float = 0.0005,
    main_cpu_share: float = 0.05,
    sync_s: float = 0.0,
    sync_count: int = 0,
    cores: int = 4,
    foreign_cores: float = 0.0,
    read_bytes: int = 3_500_000,
    disk_bytes: int = 0,
    events: tuple[Event, ...] = (),
    gpu_busy: float | None = None,
    throttle: tuple[str, ...] | None = None,
    rank: int = 0,
    world_size: int = 1,
    jitter: float = 0.03,
    seed: int = 0,
    **sample_fields: float,
) -> Session:
    """One rank's session. Waits follow from the queue: a batch is ready when its worker has finished it."""
    rng = random.Random(seed)
    pid = MAIN_PID + 100 * rank
    noise = lambda: rng.uniform(1 - jitter, 1 + jitter)  # noqa: E731
    begin_s = 2.0
    batches: list[Batch] = []
    made: list[Step] = []
    free_s = [begin_s] * max(1, workers)
    started: list[float] = [begin_s] * (2 * workers)  # when the index of a batch was handed out (prefetch_factor=2)
    now_s = begin_s
    for index in range(steps):
        wall_s = (cpu_s + queue_s + blocked_s) * noise()
        scale = wall_s / (cpu_s + queue_s + blocked_s)
        worker = index % workers if workers else -1
        if workers:
            start_s = max(free_s[worker], started[index])
            idle_s = start_s - free_s[worker]
            done_s = free_s[worker] = start_s + wall_s
        else:
            start_s, idle_s, done_s = now_s, None, now_s + wall_s
        batches.append(
            Batch(
                pid=pid + 1 + worker if workers else pid,
                loader=0,
                worker=worker,
                start_s=start_s,
                wall_s=wall_s,
                items=batch_size,
                cpu_s=cpu_s * scale,
                queue_s=queue_s * scale,
                collate_s=collate_s,
                collate_cpu_s=collate_s,
                other_cpu_s=0.0002,
                idle_s=idle_s,
                read_bytes=read_bytes,
                disk_bytes=disk_bytes,
                socket_s=0.0,
                major_faults=0,
            )
        )
        ready = done_s <= now_s
        wait_s = max(0.0, done_s - now_s) + transfer_s
        started.append(now_s + wait_s)
        pause_s = sum(event.duration_s for event in events if now_s <= event.start_s < now_s + wait_s + compute_s)
        compute = compute_s * noise() + pause_s
        made.append(
            Step(
                pid=pid,
                loader=0,
                epoch=0,
                start_s=now_s,
                wait_s=wait_s,
                compute_s=compute,
                ready=int(ready),
                items=batch_size,
                cpu_s=main_cpu_share * compute_s,
                process_cpu_s=main_cpu_share * compute_s,
                sync_s=sync_s,
                sync_count=sync_count,
                h2d_s=0.0,
                optimizer_steps=1,
                batch_bytes=batch_size * 3 * 224 * 224 * 4,
            )
        )
        now_s += wait_s + compute
    busy = min(1.0, foreign_cores / cores + workers / cores)
    samples = tuple(
        Sample(
            time_s=0.5 * (tick + 1),
            interval_s=0.5,
            core_busy=tuple(min(1.0, busy * noise()) for _ in range(cores)),
            own_cores=min(float(cores), workers * cpu_s / (cpu_s + queue_s + blocked_s)),
            foreign_cores=foreign_cores,
            runnable=workers + 1,
            memory_used_bytes=4 << 30,
            own_memory_bytes=1 << 30,
            gpus=() if gpu_busy is None else (GpuSample(0, busy=gpu_busy, sm_clock_mhz=1980, throttle=throttle),),
            **sample_fields,
        )
        for tick in range(max(4, int(now_s / 0.5)))
    )
    return Session(
        command=("python", "train.py"),
        cwd="/work/project",
        started_at=1_700_000_000.0,
        duration_s=now_s + 0.2,
        exit_code=0,
        host=Host(
            hostname="box",
            cores_online=cores,
            cores_affinity=cores,
            memory_bytes=16 << 30,
            kernel="6.1",
            gpus=() if gpu_busy is None else (GpuProperties(0, "NVIDIA A100", 40 << 30, "550.1", 1410),),
        ),
        processes=(
            Process(pid, 1, "main", 0.05, rank=rank, world_size=world_size, torch="2.15.0", torch_threads=1),
            *(Process(pid + 1 + number, pid, "worker", 1.5, worker_id=number) for number in range(workers)),
        ),
        loaders=(
            ObservedLoader(
                pid,
                0,
                num_workers=workers,
                batch_size=batch_size,
                prefetch_factor=2 if workers else None,
                dataset="torchvision.datasets.folder.ImageFolder",
                dataset_length=1_281_167,
                transform="Compose(RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor())",
            ),
        ),
        steps=tuple(made),
        batches=tuple(sorted(batches, key=lambda batch: batch.start_s)),
        events=events,
        samples=samples,
        not_measured=() if gpu_busy is not None else (NotMeasured("GPU", "no NVIDIA driver on this machine"),),
    )


def example_session() -> Session:
    """A CPU-bound ImageFolder job with a GPU and two pauses: something for every panel of a report."""
    pauses = (
        Event(MAIN_PID, "save", 3.0, 0.25, "checkpoint.pt"),
        Event(MAIN_PID, "gc", 4.5, 0.05, "generation 2"),
    )
    return make_session(cpu_s=0.08, queue_s=0.01, blocked_s=0.01, events=pauses, gpu_busy=0.35, cores=8)


def example_diagnosis() -> Diagnosis:
    """A diagnosis of `example_session` written by hand, to render; `headrace.diagnosis.diagnose` makes real ones."""
    session = example_session()
    steps = list(session.steps[2:])
    return Diagnosis(
        verdict="CPU_PREP",
        confidence=0.82,
        share_of_step={
            "input_storage": 0.05,
            "input_cpu": 0.47,
            "input_queue": 0.06,
            "input_collate": 0.01,
            "h2d": 0.01,
            "compute": 0.37,
            "communication": 0.0,
            "sync": 0.0,
            "periodic": 0.02,
            "other": 0.01,
        },
        findings=(
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
        ),
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
    )  # fmt: skip
