"""The measurements of `headrace tune`: batch size, compile mode, threads, batches ahead; and what binds the training.

Input alone, compute alone, and both together are measured, as in MXNet's benchmarks (`--test-io 1`, `--benchmark 1`) and
DS-Analyzer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.datasets.records import Dataset
from headrace.errors import UsageError
from headrace.system import machine
from headrace.training.devices import Device
from headrace.training.options import Options
from headrace.training.resolve_options import ResolvedOptions, with_global_batch
from headrace.training.tune.batch_size import CPU_SECONDS, BatchSizeChoice, choose_batch_size
from headrace.training.tune.compiling import choose_compile
from headrace.training.tune.compute_rate import ComputeRate
from headrace.training.tune.memory_limit import memory_budget_bytes
from headrace.training.tune.rates import CombinedRate, InputRate, combined_rate, compute_rate, input_rate

__all__ = ["TuningResult", "tune"]

ENOUGH = 1.10  # input this many times as fast as compute never makes it wait
NEARLY = 0.97  # choose the fewest threads that reach this share of the best rate
KEEPS_UP = 0.95  # compute binds if both together reach this share of compute alone
WAITS = 0.02  # try more batches ahead if the device waits for more than this share of the time
BUSY = 0.8  # threads wait for storage if they keep less than this share of their cores busy
PREFETCHES = (3, 6, 12)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The chosen settings, the measurements, and what binds: "compute", "input: CPU", "input: storage" or "overlap"."""

    options: Options
    device: str
    ranks: int
    batch_trials: tuple[tuple[int, float | None], ...]  # (size, images a second; None: does not fit)
    batch_left_out: tuple[int, ...]  # sizes for which the search had no time
    compile_img_s: dict[str, float]
    ingest: tuple[InputRate, ...]  # by threads
    compute_img_s: float
    together: tuple[CombinedRate, ...]  # by batches ahead
    binds: str
    advice: str


def tune(
    resolved: ResolvedOptions,
    data: Dataset,
    device: Device,
    *,
    ranks: int = 1,
    seconds: float = 5.0,
    memory_bytes: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> TuningResult:
    """Measure each setting for about `seconds`. `log` receives a line for each. Raises UsageError if the batch does not fit."""
    options = resolved.options
    choice: BatchSizeChoice | None = None
    if resolved.auto_batch_size and not device.simulated:
        choice = _choose_batch_size(resolved, data, device, ranks=ranks, memory_bytes=memory_bytes, log=log)
        options = replace(options, batch_size=choice.batch_size)
    options = with_global_batch(options, resolved.global_batch, ranks)
    compiled = choose_compile(options, device=device, classes=len(data.classes), processes=ranks, log=log)
    if resolved.auto_compile:
        options = replace(options, compile=compiled.mode)
    compute, _ = compute_rate(options, device, classes=len(data.classes), ranks=ranks)
    if compute is None:
        raise UsageError(f"a batch of {options.batch_size} does not fit on {device.name}", hint="--batch-size auto")
    log(f"compute alone: {compute:,.0f} img/s")
    ingest = _measure_by_threads(options, data, device, compute=compute, seconds=seconds, log=log)
    best = _fewest_threads(ingest, compute)
    options = replace(options, threads=max(1, best.threads // ranks))
    together = _measure_by_prefetch(options, data, ranks=ranks, compute=compute, ingest=best, seconds=seconds, log=log)
    fastest = max(together, key=lambda one: one.img_s)
    fewest_ahead = min(one.prefetch for one in together if one.img_s >= NEARLY * fastest.img_s)
    binds, advice = _what_binds(compute, best, fastest)
    return TuningResult(
        options=replace(options, prefetch=fewest_ahead),
        device=device.name,
        ranks=ranks,
        batch_trials=() if choice is None else tuple((one.batch_size, one.img_s) for one in choice.trials),
        batch_left_out=() if choice is None else choice.left_out,
        compile_img_s=compiled.img_s,
        ingest=ingest,
        compute_img_s=compute,
        together=together,
        binds=binds,
        advice=advice,
    )


def _choose_batch_size(
    resolved: ResolvedOptions,
    data: Dataset,
    device: Device,
    *,
    ranks: int,
    memory_bytes: int | None,
    log: Callable[[str], None],
) -> BatchSizeChoice:
    def log_rate(rate: ComputeRate) -> None:
        log(f"batch {rate.batch_size}: " + (f"{rate.img_s:,.0f} img/s" if rate.img_s else "does not fit"))

    choice = choose_batch_size(
        resolved.options,
        classes=len(data.classes),
        images=len(data),
        memory_bytes=memory_bytes,
        host_budget_bytes=memory_budget_bytes() if device.kind == "cpu" else None,
        global_batch=resolved.global_batch,
        processes=ranks,
        seconds=CPU_SECONDS if device.kind == "cpu" else None,
        on_trial=log_rate,
    )
    if (message := choice.left_out_message()) is not None:
        log(message)
    return choice


def _measure_by_threads(
    options: Options, data: Dataset, device: Device, *, compute: float, seconds: float, log: Callable[[str], None]
) -> tuple[InputRate, ...]:
    """Measure with all usable cores, then with half as many as long as that might still be enough."""
    found: list[InputRate] = []
    threads = max(1, round(machine.cores().usable))
    while threads:
        one = input_rate(options, data, device, threads=threads, seconds=seconds)
        log(f"input alone, {threads} threads: {one.img_s:,.0f} img/s")
        found.append(one)
        if one.img_s < ENOUGH * compute and one.img_s < NEARLY * max(other.img_s for other in found):
            break
        threads //= 2
    return tuple(found)


def _fewest_threads(ingest: tuple[InputRate, ...], compute: float) -> InputRate:
    best = max(one.img_s for one in ingest)
    wanted = min(NEARLY * best, ENOUGH * compute * 1.5)  # half as much again in reserve, for the threads of training itself
    return min((one for one in ingest if one.img_s >= wanted), key=lambda one: one.threads)


def _measure_by_prefetch(
    options: Options,
    data: Dataset,
    *,
    ranks: int,
    compute: float,
    ingest: InputRate,
    seconds: float,
    log: Callable[[str], None],
) -> tuple[CombinedRate, ...]:
    """Measure with more batches ahead as long as the device waits although the input alone is fast enough."""
    found: list[CombinedRate] = []
    for prefetch in PREFETCHES:
        expected = min(compute, ingest.img_s)
        with_prefetch = replace(options, prefetch=prefetch)
        one = combined_rate(with_prefetch, data, ranks=ranks, expected_img_s=expected, seconds=seconds)
        log(f"together, {prefetch} batches ahead: {one.img_s:,.0f} img/s, {one.wait_share:.1%} waiting")
        found.append(one)
        if one.wait_share <= WAITS or ingest.img_s < ENOUGH * compute:
            break
    return tuple(found)


def _what_binds(compute: float, ingest: InputRate, together: CombinedRate) -> tuple[str, str]:
    if together.img_s >= KEEPS_UP * compute:
        return "compute", "input keeps up; faster: a faster GPU, lower precision, or a smaller model"
    if ingest.img_s < ENOUGH * compute:
        if ingest.cores < BUSY * ingest.threads:
            return "input: storage", "the threads wait for data: pack it (headrace pack), or put it on a faster disk"
        return "input: CPU", "decoding binds: use more cores, or smaller images (headrace pack --short-side)"
    return "overlap", "input and compute are each fast enough alone, but compete for the CPU"
