"""The measurements of `headrace tune`: batch size, compile mode, threads, batches ahead; and what binds the training.

Input alone, compute alone, and both together are measured, as in MXNet's benchmarks (`--test-io 1`, `--benchmark 1`) and
DS-Analyzer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.system.hardware import machine
from headrace.system.text.sizes import count_text, percent_text
from headrace.training.distributed.devices import Device
from headrace.training.inputs.data import check_batch_size
from headrace.training.settings.options import Options
from headrace.training.settings.resolve_options import ResolvedOptions, with_global_batch
from headrace.training.tune.batch_size import CPU_SECONDS, BatchSizeChoice, batch_words, choose_batch_size
from headrace.training.tune.compiling import CompileChoice, choose_compile
from headrace.training.tune.compute_rate import ComputeRate, measure_compute_rate
from headrace.training.tune.deadline import Deadline, OutOfTime
from headrace.training.tune.machine_use import QUIET_SHARE, MachineMeter, MachineUse
from headrace.training.tune.memory_limit import memory_budget_bytes
from headrace.training.tune.rates import CombinedRate, InputRate, combined_rate, compute_rate, input_rate

__all__ = ["Reporter", "TuningResult", "measured_batch_size", "tune", "what_binds"]

ENOUGH = 1.10  # input this many times as fast as compute never makes compute wait
NEARLY = 0.97  # choose the fewest threads that reach this share of the best rate
KEEPS_UP = 0.95  # compute limits the training if both together reach this share of the rate of compute alone
WAITS = 0.02  # try more batches ahead if the device waits for more than this share of the time
LITTLE_INPUT = 0.03  # input that takes less than this share of the CPU does not make the computation slower
BUSY = 0.8  # take the threads as blocked if they keep less than this share of their cores busy
STORAGE_IMAGE_BYTES = 1024  # if fewer bytes per image came from storage or network, the files were in the page cache
PREFETCHES = (3, 6, 12)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The chosen settings, the measurements, and what limits the training.

    binds: "compute", "input: CPU", "input: other programs", "input: storage", "input: blocked", "overlap" or "not measured".
    `batch_note` says what the batch means for steps and learning rate.
    `not_measured` lists what the time limit left out; settings without a measurement are as they were given.
    """

    options: Options
    device: str
    ranks: int
    batch_trials: tuple[tuple[int, float | None], ...]  # (batch size, images/s; None: does not fit)
    batch_left_out: tuple[int, ...]  # sizes for which the search had no time or no memory
    compile_img_s: dict[str, float]
    ingest: tuple[InputRate, ...]  # input alone, one measurement per number of threads
    compute_img_s: float | None
    compute_use: MachineUse | None
    together: tuple[CombinedRate, ...]  # input and compute together, one measurement per number of batches ahead
    binds: str
    advice: str
    not_measured: tuple[str, ...]
    batch_note: str


@dataclass(frozen=True, slots=True)
class Reporter:
    """Receives reports of the measurements. log: called with a line for each result. begin: with what is measured next."""

    log: Callable[[str], None] = lambda line: None
    begin: Callable[[str], None] = lambda what: None


def tune(
    resolved: ResolvedOptions,
    data: Dataset,
    device: Device,
    *,
    ranks: int = 1,
    seconds: float = 5.0,
    memory_bytes: int | None = None,
    deadline: Deadline | None = None,
    report: Reporter | None = None,
) -> TuningResult:
    """Return the best settings, measured for about `seconds` each. Raises UsageError or SourceError if no batch fits."""
    options, deadline, report = resolved.options, deadline or Deadline(), report or Reporter()
    choice: BatchSizeChoice | None = None
    if resolved.auto_batch_size and not device.simulated:
        report.begin("batch sizes")
        try:
            choice = measured_batch_size(
                resolved, data, device, ranks=ranks, memory_bytes=memory_bytes, deadline=deadline, log=report.log
            )
            options = replace(options, batch_size=choice.batch_size)
        except OutOfTime:
            report.log(deadline.left_out("batch sizes"))
    options = with_global_batch(options, resolved.global_batch, ranks)
    check_batch_size(options, data, ranks=ranks)
    compiled = CompileChoice("off", {}, {})
    if not deadline.passed:
        report.begin("compile modes")
        compiled = choose_compile(options, device=device, classes=len(data.classes), processes=ranks, log=report.log)
    if resolved.auto_compile:
        options = replace(options, compile=compiled.mode)
    compute, compute_use = _measure_compute(options, device, data, ranks=ranks, deadline=deadline, report=report)
    ingest = _measure_by_threads(options, data, device, compute=compute, seconds=seconds, deadline=deadline, report=report)
    best = _fewest_threads(ingest, compute) if ingest else None
    if best is not None:
        options = replace(options, threads=max(1, best.threads // ranks))
    together = _measure_by_prefetch(
        options, data, ranks=ranks, compute=compute, ingest=best, seconds=seconds, deadline=deadline, report=report
    )
    fastest = max(together, key=lambda one: one.img_s, default=None)
    if fastest is not None:
        options = replace(options, prefetch=min(one.prefetch for one in together if one.img_s >= NEARLY * fastest.img_s))
    binds, advice = what_binds(compute, best, fastest)
    return TuningResult(
        options=options,
        batch_note=batch_words(options, len(data), ranks),
        device=device.name,
        ranks=ranks,
        batch_trials=() if choice is None else tuple((one.batch_size, one.img_s) for one in choice.trials),
        batch_left_out=() if choice is None else choice.left_out,
        compile_img_s=compiled.img_s,
        ingest=ingest,
        compute_img_s=compute,
        compute_use=compute_use,
        together=together,
        binds=binds,
        advice=advice,
        not_measured=tuple(deadline.not_measured),
    )


def measured_batch_size(
    resolved: ResolvedOptions,
    data: Dataset,
    device: Device,
    *,
    ranks: int,
    memory_bytes: int | None,
    deadline: Deadline,
    log: Callable[[str], None],
) -> BatchSizeChoice:
    """Return the measured best batch size for the device. Raises OutOfTime after `deadline`, UsageError if none fits."""

    def log_rate(rate: ComputeRate) -> None:
        log(f"batch {rate.batch_size}: " + (f"{rate.img_s:,.0f} img/s" if rate.img_s else "does not fit"))

    def try_size(options: Options, **more: Any) -> ComputeRate:
        return measure_compute_rate(options, **more, timeout_s=deadline.left_s)

    limit_s = min(CPU_SECONDS if device.kind == "cpu" else math.inf, deadline.left_s)
    choice = choose_batch_size(
        resolved.options,
        classes=len(data.classes),
        images=len(data),
        memory_bytes=memory_bytes,
        host_budget_bytes=memory_budget_bytes() if device.kind == "cpu" else None,
        global_batch=resolved.global_batch,
        processes=ranks,
        seconds=None if limit_s == math.inf else limit_s,
        try_size=try_size,
        on_trial=log_rate,
    )
    if (message := choice.left_out_message()) is not None:
        log(message)
    return choice


def _measure_compute(
    options: Options, device: Device, data: Dataset, *, ranks: int, deadline: Deadline, report: Reporter
) -> tuple[float | None, MachineUse | None]:
    """Return the compute rate, and what else used the machine; None without time."""
    report.begin("compute alone")
    meter = MachineMeter()
    try:
        if deadline.passed:
            raise OutOfTime("no time left")
        compute, _ = compute_rate(options, device, classes=len(data.classes), ranks=ranks, timeout_s=deadline.left_s)
    except OutOfTime:
        report.log(deadline.left_out("compute alone"))
        return None, None
    if compute is None:
        raise UsageError(f"a batch of {options.batch_size} does not fit on {device.name}", hint="--batch-size auto")
    use = None if device.simulated else meter.use()
    report.log(f"compute alone: {compute:,.0f} img/s{use.noise() if use else ''}")
    return compute, use


def _measure_by_threads(
    options: Options,
    data: Dataset,
    device: Device,
    *,
    compute: float | None,
    seconds: float,
    deadline: Deadline,
    report: Reporter,
) -> tuple[InputRate, ...]:
    """Measure with all usable cores, then with half as many as long as that might still be enough."""
    found: list[InputRate] = []
    threads = max(1, round(machine.cores().usable))
    while threads:
        name = f"input alone, {count_text(threads, 'thread')}"
        report.begin(name)
        try:
            if deadline.passed:
                raise OutOfTime("no time left")
            one = input_rate(options, data, device, threads=threads, seconds=seconds, deadline=deadline)
        except OutOfTime:
            report.log(deadline.left_out(name))
            break
        report.log(f"{name}: {one.img_s:,.0f} img/s{one.use.noise() if one.use else ''}")
        found.append(one)
        enough = compute is not None and one.img_s >= ENOUGH * compute
        if not enough and one.img_s < NEARLY * max(other.img_s for other in found):
            break
        threads //= 2
    return tuple(found)


def _fewest_threads(ingest: tuple[InputRate, ...], compute: float | None) -> InputRate:
    best = max(one.img_s for one in ingest)
    # half as much again in reserve, for the threads of training itself
    wanted = NEARLY * best if compute is None else min(NEARLY * best, ENOUGH * compute * 1.5)
    return min((one for one in ingest if one.img_s >= wanted), key=lambda one: one.threads)


def _measure_by_prefetch(
    options: Options,
    data: Dataset,
    *,
    ranks: int,
    compute: float | None,
    ingest: InputRate | None,
    seconds: float,
    deadline: Deadline,
    report: Reporter,
) -> tuple[CombinedRate, ...]:
    """Measure with more batches ahead as long as the device waits although the input alone is fast enough."""
    found: list[CombinedRate] = []
    for prefetch in PREFETCHES:
        name = f"together, {count_text(prefetch, 'batch')} ahead"
        report.begin(name)
        try:
            if deadline.passed or compute is None or ingest is None:
                raise OutOfTime("no time left")
            one = combined_rate(
                replace(options, prefetch=prefetch),
                data,
                ranks=ranks,
                expected_img_s=min(compute, ingest.img_s),
                seconds=seconds,
                deadline=deadline,
            )
        except OutOfTime:
            report.log(deadline.left_out(name))
            break
        noise = one.use.noise() if one.use else ""
        report.log(f"{name}: {one.img_s:,.0f} img/s, {percent_text(one.wait_share, digits=1)} waiting{noise}")
        found.append(one)
        if one.wait_share <= WAITS or ingest.img_s < ENOUGH * compute:
            break
    return tuple(found)


def what_binds(compute: float | None, ingest: InputRate | None, together: CombinedRate | None) -> tuple[str, str]:
    """Return in words what limits the training (input or compute), and advice. Without a run of both, compare each alone."""
    if compute is None or ingest is None:
        return "not measured", "a longer --time-limit measures both compute and input"
    if together.img_s >= KEEPS_UP * compute if together is not None else ingest.img_s >= ENOUGH * compute:
        return "compute", "input keeps up; faster: a faster GPU, lower precision, or a smaller model"
    if ingest.img_s < ENOUGH * compute:
        return _what_binds_input(ingest)
    if together is not None and _is_no_overlap(ingest, together):
        return "compute", (
            f"the training never waits for input, and input takes {percent_text(_input_share(ingest, together))} of the CPU: "
            "it ran slower than compute alone because of other programs, or because speed changed between the measurements"
        )
    return "overlap", "input and compute are each fast enough alone, but compete for the CPU"


def _input_share(ingest: InputRate, together: CombinedRate) -> float:
    """Return the share of the machine's CPU that input takes at the rate of the training, by its cost when alone."""
    cores = ingest.use.cores if ingest.use is not None else machine.cores().usable
    return together.img_s / max(1e-9, ingest.img_s) * ingest.cores / max(1e-9, cores)


def _is_no_overlap(ingest: InputRate, together: CombinedRate) -> bool:
    """Return whether input is ready in time and takes too little CPU to slow down the computation."""
    return together.wait_share <= WAITS and _input_share(ingest, together) < LITTLE_INPUT


def _what_binds_input(ingest: InputRate) -> tuple[str, str]:
    """Return the limit of the input (CPU, other programs, storage, unknown) and advice, from CPU time and bytes."""
    use = ingest.use
    cpu = "input: CPU", "decoding binds: use more cores, or smaller images (headrace pack --short-side)"
    storage = "input: storage", "the threads wait for data: pack it (headrace pack), or put it on a faster disk"
    waiting = ingest.threads - ingest.cores
    if waiting <= (1 - BUSY) * ingest.threads:
        return cpu
    if use is None:
        return storage
    # Without the kernel's run-queue times, cores that other programs use stand for them.
    queue = use.queue_cores if use.queue_cores is not None else min(waiting, use.foreign_cores or 0.0)
    if queue >= waiting / 2:
        if (use.foreign_cores or 0.0) < QUIET_SHARE * use.cores:
            return cpu
        what = f"other programs use {use.foreign_cores:.1f} of {use.cores} cores, and the threads wait for a core"
        return "input: other programs", f"{what}: stop them, or measure again when nothing else runs"
    if use.arrived_bytes_s is None or use.arrived_bytes_s >= STORAGE_IMAGE_BYTES * ingest.img_s:
        return storage
    what = f"the threads were blocked for {waiting - queue:.1f} of {ingest.threads} cores' time"
    return "input: blocked", f"{what}, but the files came from the page cache: cause not seen"
