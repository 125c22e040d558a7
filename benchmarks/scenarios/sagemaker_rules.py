"""The rules of SageMaker Debugger's ProfilerReport, applied to a session for comparison.

Many users know these rules, but AWS closed the service to new customers, and its framework rules stop at PyTorch 2.0.
Thresholds: "Amazon SageMaker Developer Guide", list of Debugger built-in rules (March 2023). Where the guide does not say how
a rule counts, the code follows the last public version of the rules in awslabs/sagemaker-debugger (November 2020). The managed
rules may differ. A data point is a sample every 0.5 s, there and here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.stats import mean, percentile
from headrace.session.machine import Sample
from headrace.session.model import Session
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["RULES", "RuleResult", "apply_rules"]

FIRED, SILENT, NOT_APPLICABLE = "fires", "silent", "cannot tell"

CPU_BUSY, GPU_IDLE, BOTTLENECK_SHARE, BOTTLENECK_PATIENCE = 0.90, 0.10, 0.50, 100
LOW_P95, LOW_P5, LOW_WINDOW, LOW_PATIENCE = 0.70, 0.10, 500, 1000
BATCH_P95, BATCH_WINDOW, BATCH_PATIENCE = 0.70, 500, 100
MEMORY_INCREASE, MEMORY_WINDOW, MEMORY_PATIENCE = 0.10, 500, 100
BALANCE_DISTANCE, BALANCE_PATIENCE = 0.5, 10
OUTLIER_DEVIATIONS, OUTLIERS, OUTLIER_STEPS = 5, 10, 100
INITIALIZATION_S = 20 * 60
LOADER_LEAST, LOADER_MOST, LOADER_PATIENCE = 0.70, 2.00, 10


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The outcome of one rule: "fires", "silent", or "cannot tell" when a source was not measured. `why` holds the numbers.

    `tells`: whether the rule had what it needs; a rule that still waits for data points is silent, and tells nothing.
    """

    rule: str
    outcome: str
    why: str
    tells: bool = True


Answer = tuple[str, str] | tuple[str, str, bool]
"""Outcome, reason, and whether the rule tells anything (default: yes)."""


def apply_rules(session: Session) -> tuple[RuleResult, ...]:
    """Return the outcome of every rule, in the order of the ProfilerReport."""
    return tuple(RuleResult(name, *rule(session)) for name, rule in RULES)


def _answer(fires: bool, why: str) -> Answer:
    return (FIRED if fires else SILENT, why)


def _too_short(seen: int, patience: int) -> Answer:
    return (SILENT, f"waits for {patience:,} data points ({patience / 2:.0f} s); this run gave {seen:,}", False)


def _cannot_tell(why: str) -> Answer:
    return (NOT_APPLICABLE, why, False)


NO_GPU: Answer = _cannot_tell("needs GPU utilisation, which was not measured")


def _gpu_series(session: Session, read: Callable[[Sample, int], float | None]) -> dict[int, list[float]]:
    """Return the known values of each GPU, in order of time."""
    series: dict[int, list[float]] = {}
    for sample in session.samples:
        for place, gpu in enumerate(sample.gpus):
            if (value := read(sample, place)) is not None:
                series.setdefault(gpu.index, []).append(value)
    return series


def _busy(session: Session) -> dict[int, list[float]]:
    return _gpu_series(session, lambda sample, place: sample.gpus[place].busy)


def _memory(session: Session) -> dict[int, list[float]]:
    sizes = {gpu.index: gpu.memory_bytes for gpu in session.host.gpus}

    def share(sample: Sample, place: int) -> float | None:
        used, size = sample.gpus[place].memory_used_bytes, sizes.get(sample.gpus[place].index)
        return None if used is None or not size else used / size

    return _gpu_series(session, share)


def cpu_bottleneck(session: Session) -> Answer:
    """Fires when more than half of the data points have a core above 90 % and a GPU below 10 %."""
    points = [sample for sample in session.samples if sample.core_busy and any(gpu.busy is not None for gpu in sample.gpus)]
    if not points:
        return NO_GPU
    if len(points) < BOTTLENECK_PATIENCE:
        return _too_short(len(points), BOTTLENECK_PATIENCE)
    hits = sum(
        max(sample.core_busy) > CPU_BUSY and any(gpu.busy is not None and gpu.busy < GPU_IDLE for gpu in sample.gpus)
        for sample in points
    )
    return _answer(
        hits / len(points) > BOTTLENECK_SHARE, f"{percent_text(hits / len(points))} of the data points count, 50 % needed"
    )


def io_bottleneck(session: Session) -> Answer:
    """Needs I/O wait above 50 % on a core. headrace does not record I/O wait, since it misses most stalls."""
    return _cannot_tell("needs I/O wait per core, which headrace does not record")


def low_gpu_utilization(session: Session) -> Answer:
    """Fires when a GPU's 95th percentile is below 70 %, or its 5th below 10 %, over the last 500 data points."""
    series = _busy(session)
    if not series:
        return NO_GPU
    seen = max(map(len, series.values()))
    if seen < LOW_PATIENCE:
        return _too_short(seen, LOW_PATIENCE)
    for index, values in series.items():
        p95, p5 = (percentile(values[-LOW_WINDOW:], share) for share in (0.95, 0.05))
        if p95 < LOW_P95 or p5 < LOW_P5:
            return (FIRED, f"GPU {index}: 95th percentile {percent_text(p95)}, 5th {percent_text(p5)}")
    return (SILENT, "no GPU is low or fluctuating")


def batch_size(session: Session) -> Answer:
    """Fires when the 95th percentiles of CPU, GPU and GPU memory are all below 70 %."""
    busy, memory = _busy(session), _memory(session)
    cpu = [value for sample in session.samples if (value := mean(sample.core_busy)) is not None]
    if not busy or not memory or not cpu:
        return _cannot_tell("needs CPU, GPU and GPU memory; not all were measured")
    if len(cpu) < BATCH_PATIENCE:
        return _too_short(len(cpu), BATCH_PATIENCE)
    highest = {
        "CPU": percentile(cpu[-BATCH_WINDOW:], 0.95),
        "GPU": max(percentile(values[-BATCH_WINDOW:], 0.95) for values in busy.values()),
        "GPU memory": max(percentile(values[-BATCH_WINDOW:], 0.95) for values in memory.values()),
    }
    listed = ", ".join(f"{name} {percent_text(value)}" for name, value in highest.items())
    return _answer(max(highest.values()) < BATCH_P95, f"95th percentiles: {listed}; all must be below 70 %")


def gpu_memory_increase(session: Session) -> Answer:
    """Fires when the moving average of GPU memory rises by more than 10 points from one data point to the next."""
    series = _memory(session)
    if not series:
        return _cannot_tell("needs GPU memory, which was not measured")
    seen = max(map(len, series.values()))
    if seen < max(MEMORY_PATIENCE, MEMORY_WINDOW + 1):
        return _too_short(seen, max(MEMORY_PATIENCE, MEMORY_WINDOW + 1))
    rises = [
        (mean(values[-MEMORY_WINDOW:]) or 0.0) - (mean(values[-MEMORY_WINDOW - 1 : -2]) or 0.0) for values in series.values()
    ]
    return _answer(max(rises) > MEMORY_INCREASE, f"moving average up by {100 * max(rises):.2f} points; 10 needed")


def load_balancing(session: Session) -> Answer:
    """Fires when the utilisation histograms of two GPUs have a Jensen-Shannon distance above 0.5."""
    series = _busy(session)
    if len(series) < 2:
        return _cannot_tell("needs two GPUs")
    if (seen := min(map(len, series.values()))) < BALANCE_PATIENCE:
        return _too_short(seen, BALANCE_PATIENCE)
    histograms = [_histogram(values) for values in series.values()]
    distances = [_distance(one, other) for place, one in enumerate(histograms) for other in histograms[place + 1 :]]
    return _answer(max(distances) > BALANCE_DISTANCE, f"greatest distance {max(distances):.2f}; 0.5 needed")


def _histogram(values: Sequence[float]) -> list[float]:
    """Return counts in bins of two points from 0 to 98 %. The public rule drops values above 98 %, too."""
    counts = [0.0] * 49
    for value in values:
        if 100 * value <= 98:
            counts[min(48, int(100 * value / 2))] += 1
    return counts


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the Jensen-Shannon distance with natural logarithms (SciPy's default); 0 when a histogram is empty."""
    first, second = math.fsum(one), math.fsum(other)
    if not first or not second:
        return 0.0
    shares = [(a / first, b / second) for a, b in zip(one, other, strict=True)]
    divergence = math.fsum(_against_mean(a, b) + _against_mean(b, a) for a, b in shares) / 2
    return math.sqrt(max(0.0, divergence))


def _against_mean(value: float, other: float) -> float:
    return value * math.log(2 * value / (value + other)) if value > 0 else 0.0


def step_outlier(session: Session) -> Answer:
    """Fires when more than 10 steps are longer than the mean plus five standard deviations. Needs more than 100 steps."""
    steps = [step.step_s for step in session.steps]
    if len(steps) <= OUTLIER_STEPS:
        return (SILENT, f"needs more than {OUTLIER_STEPS} steps; this run had {len(steps)}", False)
    centre = math.fsum(steps) / len(steps)
    deviation = math.sqrt(math.fsum((step - centre) ** 2 for step in steps) / len(steps))
    count = sum(step > centre + OUTLIER_DEVIATIONS * deviation for step in steps)
    return _answer(count > OUTLIERS, f"{count_text(count, 'outlier')}; more than {OUTLIERS} needed")


def max_initialization_time(session: Session) -> Answer:
    """Fires when the first 20 minutes hold no step."""
    first_s = session.steps[0].start_s if session.steps else session.duration_s
    if first_s is None:
        return _cannot_tell("the time of the first step was not measured")
    return _answer(first_s > INITIALIZATION_S, f"first step after {first_s:.0f} s; the limit is {INITIALIZATION_S:,} s")


def dataloader(session: Session) -> Answer:
    """Fires when there are fewer worker processes than 70 % of the cores, or more than 200 %, once training has begun."""
    begin_s = session.steps[0].start_s if session.steps else 0.0
    workers = [float(one.workers) for one in session.samples if one.workers is not None and one.time_s >= begin_s]
    cores = session.host.cores_online
    if not workers or not cores:
        return _cannot_tell("needs the number of worker processes, which was not measured")
    if len(workers) < LOADER_PATIENCE:
        return _too_short(len(workers), LOADER_PATIENCE)
    share = percentile(workers, 0.5) / cores
    return _answer(
        not LOADER_LEAST <= share <= LOADER_MOST,
        f"worker processes are {percent_text(share)} of {cores} cores; 70 to 200 % is well",
    )


RULES: tuple[tuple[str, Callable[[Session], Answer]], ...] = (
    ("CPUBottleneck", cpu_bottleneck),
    ("IOBottleneck", io_bottleneck),
    ("LowGPUUtilization", low_gpu_utilization),
    ("BatchSize", batch_size),
    ("GPUMemoryIncrease", gpu_memory_increase),
    ("LoadBalancing", load_balancing),
    ("StepOutlier", step_outlier),
    ("MaxInitializationTime", max_initialization_time),
    ("Dataloader", dataloader),
)
"""All rules by SageMaker's names. Its two Overall… rules never fire and are left out."""
