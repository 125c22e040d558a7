"""The machine while the steps ran: cores, other programs, GPU, network, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.rank import Rank
from headrace.diagnosis.stats import fit_line, mean, mean_of_known, median, required
from headrace.session.model import Session

__all__ = ["Machine", "measure_machine"]

SETTLED_S = 120.0

FAST_GROWTH = 0.2


@dataclass(frozen=True, slots=True)
class Machine:
    """Means over the samples taken while steps were running. None is not measured.

    `core_count`: cores the job may run on, `cores`: how many it may use of them (quota); `core_busy` is of those alone.
    """

    cores: float | None
    core_count: int | None
    core_busy: tuple[float, ...]
    own_cores: float | None
    foreign_cores: float | None
    queue_share: float | None
    throttled_share: float | None
    gpu_busy: float | None
    gpu_throttle_share: float | None
    gpu_throttle: tuple[str, ...]
    gpu_clock_share: float | None
    network_bytes_s: float | None
    memory_growth_bytes_s: float | None
    memory_used_bytes: int | None
    memory_limit_bytes: int | None
    samples: int

    @property
    def busy_share(self) -> float | None:
        """Share of the usable cores in use by anything, 0..1; under a quota of fewer than there are, the job's use of it."""
        if self.own_cores is not None and self.cores and self.core_count and self.cores < self.core_count:
            return min(1.0, self.own_cores / self.cores)
        return mean(self.core_busy)

    @property
    def foreign_share(self) -> float | None:
        """Share of the usable cores taken by other programs."""
        return None if self.foreign_cores is None or not self.core_count else min(1.0, self.foreign_cores / self.core_count)


def measure_machine(session: Session, ranks: Sequence[Rank]) -> Machine:
    """What the samples say for the time in which the first rank's steady steps ran (all of them without steps)."""
    samples = list(session.samples)
    if ranks:
        begin_s, end_s = ranks[0].steps[0].start_s, ranks[0].steps[-1].start_s + ranks[0].steps[-1].step_s
        samples = [sample for sample in samples if begin_s + 0.25 <= sample.time_s <= end_s + 0.25] or samples
    mine = session.host.affinity
    core_rows = [
        tuple(row[core] for core in mine if core < len(row)) or row
        for row in (sample.core_busy for sample in samples if sample.core_busy)
    ]
    width = min((len(row) for row in core_rows), default=0)
    gpu_samples = [gpu for sample in samples for gpu in sample.gpus]
    reasons = [gpu.throttle for gpu in gpu_samples if gpu.throttle is not None]
    clocks = [gpu.sm_clock_mhz for gpu in gpu_samples if gpu.sm_clock_mhz is not None]
    highest = max((gpu.max_sm_clock_mhz or 0 for gpu in session.host.gpus), default=0)
    limits = [sample.memory_limit_bytes for sample in samples if sample.memory_limit_bytes]
    used = [sample.memory_used_bytes for sample in samples if sample.memory_used_bytes]
    return Machine(
        cores=session.host.cores,
        core_count=session.host.cores_affinity or session.host.cores_online,
        core_busy=tuple(required(mean([row[core] for row in core_rows])) for core in range(width)),
        own_cores=mean_of_known(sample.own_cores for sample in samples),
        foreign_cores=mean_of_known(sample.foreign_cores for sample in samples),
        queue_share=mean_of_known(sample.queue_share for sample in samples),
        throttled_share=mean_of_known(sample.throttled_share for sample in samples),
        gpu_busy=mean_of_known(gpu.busy for gpu in gpu_samples),
        gpu_throttle_share=mean([float(bool(reason)) for reason in reasons]),
        gpu_throttle=tuple(sorted({name for reason in reasons for name in reason})),
        gpu_clock_share=required(median(clocks)) / highest if clocks and highest else None,
        network_bytes_s=mean_of_known(
            None
            if sample.network_receive_bytes_s is None
            else max(sample.network_receive_bytes_s, sample.loopback_receive_bytes_s or 0.0)
            for sample in samples
        ),
        memory_growth_bytes_s=_growth(session),
        memory_used_bytes=used[-1] if used else None,
        memory_limit_bytes=limits[-1] if limits else session.host.memory_limit_bytes or session.host.memory_bytes,
        samples=len(samples),
    )


def _growth(session: Session) -> float | None:
    """Bytes per second by which the job's own memory grows, when it does so steadily; 0 when it does not, None unknown.

    Only samples with the same number of processes count: starting workers is not growth. Pages that forked workers come to
    own, allocators and caches grow for the first minutes of every job: within `SETTLED_S` only a leak that has added
    `FAST_GROWTH` of the memory held counts. Growth that slows down ends by itself: each third of the time must grow.
    """
    counts = Counter(sample.processes for sample in session.samples if sample.own_memory_bytes is not None)
    if not counts:
        return None
    common, _ = counts.most_common(1)[0]
    points = [
        (sample.time_s, float(sample.own_memory_bytes))
        for sample in session.samples
        if sample.processes == common and sample.own_memory_bytes is not None
    ]
    points = points[len(points) // 4 :]
    if points[-1][0] > 2 * SETTLED_S:
        points = [point for point in points if point[0] >= SETTLED_S]
    if len(points) < 9 or points[-1][0] - points[0][0] < 5:
        return None
    slope, fit = fit_line(points)
    third = len(points) // 3
    slowest = min(fit_line(part)[0] for part in (points[:third], points[third : 2 * third], points[2 * third :]))
    settled = points[0][0] >= SETTLED_S
    added = points[-1][1] - points[0][1]
    steady = fit > 0.9 and slope > 0 and slowest > 0.4 * slope
    return slope if steady and (settled or added > FAST_GROWTH * points[0][1]) else 0.0
