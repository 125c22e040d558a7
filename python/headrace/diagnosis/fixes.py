"""The fixes: which ones a finding calls for, and how each changes the step model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.measure import BatchCost
from headrace.diagnosis.model import Finding, Fix
from headrace.diagnosis.prediction import predicted_fix, round_rate
from headrace.diagnosis.rules.gpu import host_work_s, operator_share
from headrace.diagnosis.rules.input import SMALL_BATCH_BYTES, workers_that_fit
from headrace.diagnosis.rules.ranks import straggler_input
from headrace.diagnosis.startup import startup_parts_s

__all__ = ["add_fixes", "bigger_batch", "fixed_share", "pin_memory", "unpredicted"]

MOST_FIXES = 5

MOST_WORKERS = 32

MORE_THAN_DECODING = 1.5
"""CPU per image over the micro-benchmark's from which a job does something else as well; caches and noise make less."""


def add_fixes(job: MeasuredJob, found: Finding) -> Finding:
    """The finding with the fixes that concern it, best first; without a model or images, without predictions."""
    late = straggler_input(job) if found.kind == "RANK_STRAGGLER" else None
    makers = FIXES.get(late[0] if late is not None else found.kind, ())
    fixes = [fix for make in makers for fix in make(job)]
    fixes.sort(key=lambda fix: -(fix.gain if fix.gain is not None else 1.0))
    return replace(found, fixes=tuple(fixes[:MOST_FIXES]))


def more_workers(job: MeasuredJob) -> list[Fix]:
    """The fewest workers that are as good as any number; for a saturated input, twice the present ones, to say ≈ 0."""
    model = job.model
    if model is None:
        return []
    best_s = model.changed(workers=MOST_WORKERS).step_s
    count = next(n for n in range(1, MOST_WORKERS + 1) if model.changed(workers=n).step_s <= 1.03 * best_s)
    if count <= model.workers:
        count = max(2 * model.workers, model.workers + 2)
    after = model.changed(workers=count)
    change = f"{_workers(count)} instead of {model.workers or 'none'}"
    if job.rank.loader.iterable and count > 1:
        change += "; the iterable dataset must give each worker its own part (get_worker_info), else samples come twice"
    return [
        predicted_fix(
            job, f"num_workers={count}", change, after, f"DataLoader(..., num_workers={count})", effort="one argument"
        )
    ]


def _workers(count: int) -> str:
    return "one loader worker" if count == 1 else f"{count} loader workers"


def spread_workers(job: MeasuredJob) -> list[Fix]:
    """Workers that may run on any core no longer queue for a few."""
    model, work = job.model, job.rank.work
    if model is None or work is None or not work.queue_s:
        return []
    present = model.changed(blocked_s=model.blocked_s + work.queue_s)
    words = f"workers free to run on all {job.machine.cores or 1:g} cores: nothing binds them to a few"
    command = "no os.sched_setaffinity, taskset, OMP_PROC_BIND or KMP_AFFINITY that workers inherit"
    return [predicted_fix(job, "spread_workers", words, model, command, effort="one line", error=0.05, before=present)]


def fewer_workers(job: MeasuredJob) -> list[Fix]:
    """No more busy threads than cores: frees the training process from queueing."""
    model, cores = job.model, job.machine.cores
    if model is None or not cores or model.workers < 2:
        return []
    count = workers_that_fit(model.workers, cores)
    after = model.changed(workers=count)
    words = f"{_workers(count)} instead of {model.workers}, so that threads stop queueing for {cores:g} cores"
    return [
        predicted_fix(
            job,
            f"num_workers={count}",
            words,
            after,
            f"DataLoader(..., num_workers={count})",
            effort="one argument",
            error=0.15,
        )
    ]


def fewer_threads(job: MeasuredJob) -> list[Fix]:
    """One compute thread: intra-op threads spin while they wait for one another on full cores."""
    threads = job.rank.process.torch_threads or 1
    if job.model is None or threads <= 1 or job.machine.gpu_busy is not None:
        return []
    queue_s = job.rank.main_queue_s or 0.0
    after = job.model.changed(main_cpu_s=job.model.main_cpu_s * 0.8)
    words = f"one compute thread instead of {threads} ({queue_s * 1e3:.3g} ms per step are lost to queueing now)"
    return [predicted_fix(job, "threads=1", words, after, "OMP_NUM_THREADS=1", effort="one variable", error=0.1)]


def _cpu_ratio(job: MeasuredJob, name: str) -> float | None:
    """CPU time of making an image in another way over the way it is made now, from the micro-benchmark.

    A job that spends much more per image than decoding, cropping and resizing take keeps what it does beyond that.
    """
    benchmark: Mapping[str, float] = job.session.facts.get("image_benchmark", {})
    now, then, work = benchmark.get("plain_s"), benchmark.get(name), job.rank.work
    if not now or then is None or work is None:
        return None
    spent_s = _prepare_cpu_s(work) / (job.rank.items or 1.0)
    beyond_s = spent_s - now if spent_s > MORE_THAN_DECODING * now else 0.0
    return (beyond_s + then) / (beyond_s + now)


def _prepare_cpu_s(work: BatchCost) -> float:
    return max(0.0, (work.cpu_s or 0.0) - work.collate_cpu_s)


def headrace_run(job: MeasuredJob) -> list[Fix]:
    """headrace's own input path; predicted only from its measured decode of the job's own images."""
    model, work = job.model, job.rank.work
    ratio = _cpu_ratio(job, "headrace_s")
    if model is None or work is None or ratio is None:
        return []
    cores = max(1, int(job.machine.cores or 1))
    # As `headrace run` chooses them: the script's number of workers, at most one thread for each core.
    threads = min(model.workers, cores) if model.workers else max(1, cores // model.ranks)
    after = model.changed(
        cpu_s=_prepare_cpu_s(work) * ratio, send_s=0.0, handover_s=min(model.handover_s, 0.0005), workers=threads
    )
    command, effort = "headrace run -- " + shlex.join(job.session.command), "no edit"
    if job.rank.loader.image_folder is False:  # headrace run would leave a dataset class of the user's own alone
        command, effort = "headrace.Loader(headrace.open(FOLDER), batch_size=…, transform=…)", "a few lines"
    words = f"headrace makes the batches: {1 / max(ratio, 1e-3):.1f} times less CPU per image, no worker processes"
    basis = "its decode of this job's own images, measured here"
    return [predicted_fix(job, "headrace_run", words, after, command, basis=basis, effort=effort, error=0.1)]


def pre_resize(job: MeasuredJob) -> list[Fix]:
    """Images made smaller once; predicted from decoding shrunk copies of the job's own images."""
    model, work = job.model, job.rank.work
    ratio = _cpu_ratio(job, "pre_resized_s")
    benchmark = job.session.facts.get("image_benchmark", {})
    if model is None or work is None:
        return []
    if benchmark and benchmark.get("pre_resized_s") is None:
        return []  # no image is larger
    command = "headrace pack --short-side 256 SRC DST"
    if ratio is None:
        words = "images made smaller once, ahead of training: fewer bytes to read, fewer pixels to decode"
        return [predicted_fix(job, "pre_resize", words, None, command, basis="no image files were found to measure")]
    size = benchmark.get("pre_resized_bytes_ratio", 1.0)
    after = model.changed(
        cpu_s=work.collate_cpu_s + _prepare_cpu_s(work) * ratio,
        serial_s=model.serial_s * size,
        blocked_s=model.blocked_s * max(size, 0.3),
    )
    words = f"images shrunk to a short side of 256 once: {1 / max(ratio, 1e-3):.1f} times less CPU, {size:.0%} of the bytes"
    return [
        predicted_fix(
            job,
            "pre_resize",
            words,
            after,
            command,
            basis="shrunk copies of this job's images, measured here",
            error=0.05,
        )
    ]


def pack(job: MeasuredJob) -> list[Fix]:
    """Shards read in large pieces: no wait per file. The rate of sequential reading is assumed ten times better."""
    model = job.model
    if model is None:
        return []
    after = model.changed(blocked_s=0.1 * model.blocked_s)
    words = "images packed into shards and read in large pieces: no wait per file"
    return [
        predicted_fix(
            job,
            "pack",
            words,
            after,
            "headrace pack SRC DST",
            basis="a tenth of today's waits",
            effort="one pass",
            error=0.15,
        )
    ]


def cache(job: MeasuredJob) -> list[Fix]:
    """The dataset kept in memory from the second epoch on, as far as it fits."""
    model, work, machine = job.model, job.rank.work, job.machine
    length = job.rank.loader.dataset_length
    if model is None or work is None or not work.read_bytes or not job.rank.items or not length:
        return []
    if work.read_bytes < 1000 * job.rank.items:
        return []  # the images come another way than by read(): their size is not known
    size = length * work.read_bytes / job.rank.items
    limit, used = machine.memory_limit_bytes, machine.memory_used_bytes
    if limit is None or used is None:
        return []  # whether it fits is not known
    free = 0.8 * max(0, limit - used)
    hit = min(1.0, free / size)
    after = model.changed(blocked_s=(1 - hit) * model.blocked_s, serial_s=(1 - hit) * model.serial_s)
    words = f"images ({size / 1e9:.3g} GB) kept in memory from the second epoch on" + (
        "" if hit == 1 else f", {hit:.0%} of them"
    )
    return [predicted_fix(job, "cache", words, after, 'headrace.Loader(..., cache="ram:…")', error=0.05)]


VALUE_BYTES: Mapping[str, int] = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
"""Of one number in a batch, by its dtype; what is not listed is taken for float32."""


def uint8_batches(job: MeasuredJob) -> list[Fix]:
    """One byte a value, normalised late; for batches of some size whose values have more."""
    model, work = job.model, job.rank.work
    size = next((step.batch_bytes for step in job.rank.steps if step.batch_bytes), 0)
    bytes_now = VALUE_BYTES.get(job.rank.loader.batch_format or "float32", 4)
    if model is None or work is None or size < SMALL_BATCH_BYTES or bytes_now == 1:
        return []
    left = 1 / bytes_now
    after = model.changed(
        handover_s=model.handover_s * left,
        compute_s=max(0.0, model.compute_s - (1 - left) * (job.rank.h2d_s or 0.0)),
        cpu_s=_prepare_cpu_s(work) + work.collate_cpu_s * left,
        send_s=model.send_s * left,
        blocked_s=model.blocked_s,
    )
    part = {2: "half", 4: "a quarter", 8: "an eighth"}[bytes_now]
    words = f"batches of uint8, normalised on the device: {part} of the bytes to collate, send and copy"
    return [predicted_fix(job, "uint8_batches", words, after, None, effort="a few lines", error=0.1)]


def pin_memory(job: MeasuredJob) -> list[Fix]:
    """Pinned batches copied asynchronously; only where copies to a GPU were measured."""
    copied = job.rank.h2d_s
    if job.model is None or copied is None or job.rank.loader.pin_memory:
        return []
    after = job.model.changed(compute_s=max(0.0, job.model.compute_s - 0.8 * copied))
    words = "batches in pinned memory, copied with non_blocking=True while the GPU works"
    return [
        predicted_fix(job, "pin_memory", words, after, "DataLoader(..., pin_memory=True)", effort="one argument", error=0.1)
    ]


def _less_compute(
    name: str, seconds: Callable[[MeasuredJob], float], words: str, command: str | None, *, cpu: bool = False
) -> Callable[[MeasuredJob], list[Fix]]:
    """A fix that takes a measured time out of the training process; `cpu`: and the work that it was, not only the wait."""

    def make(job: MeasuredJob) -> list[Fix]:
        lost_s = seconds(job)
        if job.model is None or lost_s <= 0:
            return []
        after = job.model.changed(compute_s=max(0.0, job.model.compute_s - lost_s))
        if cpu:
            after = after.changed(main_cpu_s=max(0.0, after.main_cpu_s - lost_s))
        return [predicted_fix(job, name, words, after, command, basis="the time measured", effort="a few lines")]

    return make


def remove_sync(job: MeasuredJob) -> list[Fix]:
    """Without waits the device works while the script does; the longer of the two remains."""
    rank = job.rank
    if job.model is None or rank.sync_s is None:
        return []
    host_s = host_work_s(rank)
    after = job.model.changed(compute_s=max(host_s, rank.sync_s))
    words = f"no .item(), .cpu() or print of tensors in every step ({rank.sync_count:.0f} waits now), but every 50 steps"
    basis = "the device works while the script does"
    found = predicted_fix(job, "remove_sync", words, after, None, basis=basis, effort="a few lines")
    if job.machine.gpu_busy is None and found.interval is not None and rank.items is not None:
        # How long the device idles between the waits was not measured: it may not idle at all.
        found = replace(found, interval=(min(found.interval[0], round_rate(rank.items / rank.step_s)), found.interval[1]))
    return [found]


def replayed(job: MeasuredJob) -> Mapping[str, float]:
    """Seconds per step of one batch replayed, by phase (`attach.replay`); empty where that was not done."""
    found = dict((job.session.facts.get("replay") or {}).get("seconds") or {})
    if "base_again" in found:
        found["base"] = 0.5 * (found["base"] + found.pop("base_again"))
    return found


def fixed_share(job: MeasuredJob) -> float | None:
    """The part a / (a + c·b) of the compute time that does not grow with the batch: by replay, else by the operators' share."""
    seconds = replayed(job)
    if {"half", "base", "double"} <= seconds.keys():
        per_batch_s = (seconds["double"] - seconds["half"]) / 1.5
        return min(1.0, max(0.0, 1 - per_batch_s / seconds["base"]))
    operators = operator_share(job.session, job.rank)
    return None if operators is None else 1 - operators


def bigger_batch(job: MeasuredJob) -> list[Fix]:
    """Four times the images per step: the fixed cost a of `a + c·b` is paid once."""
    model, rank = job.model, job.rank
    share = fixed_share(job)
    if rank.items is None:
        return []
    size = int(rank.items * 4)
    words = f"batch size {size} instead of {rank.items:.0f}: Python's cost is paid once per batch"
    command = f"DataLoader(..., batch_size={size})"
    if model is None or share is None:
        return [predicted_fix(job, f"batch_size={size}", words, None, command, basis="the cost per image was not measured")]
    fixed_s = share * rank.typical_compute_s
    after = model.changed(
        compute_s=fixed_s + 4 * (model.compute_s - fixed_s),
        cpu_s=4 * model.cpu_s,
        blocked_s=4 * model.blocked_s,
        send_s=4 * model.send_s,
        serial_s=4 * model.serial_s,
        main_cpu_s=fixed_s + 4 * max(0.0, model.main_cpu_s - fixed_s),
    )
    found = predicted_fix(
        job,
        f"batch_size={size}",
        words,
        after,
        command,
        basis="a + c·b from a replayed batch" if replayed(job) else "a + c·b from the operators' share",
        scale=4.0,
        error=0.08,
    )
    if not replayed(job) and found.interval is not None:
        # Operators have a cost of their own per call, too: at most, everything is paid once per batch.
        found = replace(found, interval=(found.interval[0], max(found.interval[1], round_rate(4 * rank.items / rank.step_s))))
    return [found]


def persistent_workers(job: MeasuredJob) -> list[Fix]:
    """Workers that live on from epoch to epoch do not start anew."""
    rank = job.rank
    kept = rank.loader.persistent_workers and not rank.loader.remade
    if job.model is None or rank.items is None or kept or not rank.workers or rank.epochs < 2:
        return []
    images = sum(step.items or 0 for step in rank.all_steps)
    loop_s, saved_s = rank.loop_s + rank.workers_start_s, rank.epoch_start_s * (rank.epochs - 1) / rank.epochs
    after = images / max(1e-9, loop_s - saved_s)
    words = "workers kept from epoch to epoch (persistent_workers=True)"
    if rank.loader.remade:
        words = "one DataLoader, made before the first epoch, that keeps its workers (persistent_workers=True)"
    return [
        Fix(
            "persistent_workers",
            words,
            round_rate(after),
            (round_rate(0.9 * after), round_rate(1.05 * after)),
            command="DataLoader(..., persistent_workers=True)",
            gain=round(loop_s / max(1e-9, loop_s - saved_s), 3),
            basis="the starts measured",
            effort="one argument",
        )
    ]


GPU_FIXES: Mapping[str, tuple[str, str]] = {
    "amp": ("bf16 arithmetic on the tensor cores", "with torch.autocast('cuda', torch.bfloat16): ..."),
    "channels_last": ("channels-last memory, as cuDNN prefers it", "model.to(memory_format=torch.channels_last)"),
    "compile": ("kernels fused by the compiler", "model = torch.compile(model)"),
}


def unpredicted(job: MeasuredJob, name: str) -> list[Fix]:
    """A fix of the model's own work, predicted only from a replayed batch; none where the job has it already."""
    words, command = GPU_FIXES[name]
    seconds = replayed(job)
    has = _has(job.session.facts.get("configuration") or {}, name)
    if name in seconds and job.model is not None and not has:
        after = job.model.changed(compute_s=job.model.compute_s * seconds[name] / seconds["base"])
        return [predicted_fix(job, name, words, after, command, basis="a replayed batch", effort="a few lines", error=0.05)]
    if job.machine.gpu_busy is None or has:
        return []
    return [Fix(name, words, command=command, basis="not predicted: depends on the model; measure it", effort="a few lines")]


def _has(facts: Mapping[str, Any], name: str) -> bool:
    """Whether the training process was seen to do so already."""
    if name == "amp":
        return bool(facts.get("autocast")) or facts.get("parameter_format") in ("float16", "bfloat16")
    if name == "channels_last":
        return bool(facts.get("channels_last")) or facts.get("convolutions") == 0
    return bool(facts.get("compiled"))


def unmeasured(name: str) -> Callable[[MeasuredJob], list[Fix]]:
    """`unpredicted` of that fix, for the table below."""
    return lambda job: unpredicted(job, name)


def faster_start(job: MeasuredJob) -> list[Fix]:
    """What can be kept from one start to the next; how long the next start then takes was not measured."""
    parts = startup_parts_s(job.session, job.rank)
    least_s = 0.2 * sum(parts.values())
    fixes = []
    if parts.get("download", 0.0) > least_s:
        words = "what is downloaded kept on a disk that outlives the job, or packed and streamed while training"
        fixes.append(Fix("cache", words, basis="not predicted: the next start was not tried", effort="a volume"))
    if parts.get("compile", 0.0) > least_s:
        words = "compiled kernels kept from run to run"
        command = "TORCHINDUCTOR_CACHE_DIR=/a/disk/that/stays"
        fixes.append(
            Fix("compile", words, command=command, basis="not predicted: the next start was not tried", effort="one variable")
        )
    return fixes


_AMP, _CHANNELS_LAST, _COMPILE = unmeasured("amp"), unmeasured("channels_last"), unmeasured("compile")

_ASYNC = _less_compute(
    "async_checkpoint",
    lambda job: job.rank.pauses.save_s + job.rank.pauses.unknown_s if job.rank.pauses.save_s else 0.0,
    "checkpoints written by a thread while training goes on",
    None,
)

_GC_FREEZE = _less_compute(
    "gc_freeze",
    lambda job: job.rank.pauses.gc_s,
    "gc.freeze() after set-up, and collections only between epochs",
    "gc.collect(); gc.freeze()",
    cpu=True,
)

FIXES: Mapping[str, tuple[Callable[[MeasuredJob], list[Fix]], ...]] = {
    "NO_OVERLAP": (more_workers, headrace_run, pre_resize),
    "CPU_PREP": (more_workers, headrace_run, pre_resize),
    "CPU_SATURATED": (more_workers, headrace_run, pre_resize),
    "CPU_UNEVEN": (spread_workers,),
    "CPU_OVERSUBSCRIBED": (fewer_workers, fewer_threads, headrace_run),
    "STORAGE_LATENCY": (more_workers, pack, cache),
    "STORAGE_BANDWIDTH": (more_workers, cache, pre_resize),
    "NETWORK": (more_workers, pack, cache),
    "COLLATE_IPC": (uint8_batches, headrace_run, more_workers),
    "H2D_BOUND": (pin_memory, uint8_batches),
    "COMPUTE_BOUND": (more_workers, _AMP, _CHANNELS_LAST, _COMPILE),
    "OVERHEAD_BOUND": (bigger_batch, _COMPILE),
    "SYNC_BOUND": (remove_sync,),
    "PERIODIC_STALL": (_ASYNC,),
    "GC_PAUSE": (_GC_FREEZE,),
    "STARTUP": (persistent_workers, faster_start),  # predicted on the rate that includes the starts
    "EXTERNAL_CPU": (headrace_run,),
}
"""Which fixes each cause calls for."""
