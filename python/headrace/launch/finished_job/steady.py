"""What the hosts did while they trained: when the GPU worked, and the mean use while it did."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.measure.stats import mean, percentile
from headrace.launch.finished_job.hang import SuspectedHang, find_hang
from headrace.launch.finished_job.times import JobTimes, Spans
from headrace.launch.finished_job.use import HostUse
from headrace.launch.finished_job.work import ACTIVE_LEAST, find_work

__all__ = ["Steady", "steady_use"]

HARDLY_USED = 0.005
"""Count a GPU as hardly used below this mean share of the training: a test of it, and training on the CPU."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Means over the hosts, over the phases in which the GPU worked (the whole training where no GPU was measured).

    start_s: seconds of training before the first, over all attempts; None where no GPU was measured. seconds: of all phases.
    points: of the host with the fewest. cores, gpus: of one host. gpu_most: the highest point of the GPU. busy_cores: cores
    that were busy, beyond one for each GPU at work, whose driver waits on a core. idle_gpus: GPUs that never worked while
    others did. pauses: spans between and after the phases, of the first host; pauses_s: their sum, a mean over hosts;
    pauses_cores: cores that were busy meanwhile. hang: in which the job ended, if it is suspected of one; hang_s: its seconds.
    """

    points: int
    start_s: float | None
    seconds: float
    cpu: float | None
    gpu: float | None
    gpu_p5: float | None
    gpu_p95: float | None
    gpu_most: float | None
    io_wait: float | None
    cores: int | None
    gpus: int | None
    busy_cores: float | None
    idle_gpus: int
    pauses: Spans = ()
    pauses_s: float = 0.0
    pauses_cores: float | None = None
    hang: SuspectedHang | None = None
    hang_s: float = 0.0

    @property
    def is_gpu_unused(self) -> bool:
        """Whether the GPU was measured and did nothing, or next to nothing."""
        if self.gpu is None or self.gpu_most is None:
            return False
        return self.gpu_most < ACTIVE_LEAST or self.gpu < HARDLY_USED


def steady_use(uses: Sequence[HostUse], times: JobTimes, *, ended_by_itself: bool) -> Steady:
    """Return what the hosts did in the training of all attempts. A job that ended by itself did not hang."""
    hang = find_hang(uses, times, ended_by_itself=ended_by_itself)
    lived = times if hang is None else _until(times, hang.since_s)
    works = [find_work(use, lived) for use in uses]

    def values(name: str, *, of_pauses: bool = False) -> list[list[float]]:
        """The points of a curve in the phases of work, or in those between, of each host."""
        spans = (work.pauses if of_pauses else work.spans for work in works)
        curves = [(getattr(use, name) or (), use.interval_s, span) for use, span in zip(uses, spans, strict=True)]
        return [[value for _, value in times.in_training(curve, lasts_s=s, trainings=span)] for curve, s, span in curves]

    def mean_of(name: str, *, of_pauses: bool = False) -> float | None:
        return mean(list(itertools.chain.from_iterable(values(name, of_pauses=of_pauses))))

    first, cpu, pauses_cpu = uses[0], mean_of("cpu"), mean_of("cpu", of_pauses=True)
    gpu = list(itertools.chain.from_iterable(values("gpu")))
    start_s = max((work.start_s for work in works if work.start_s is not None), default=None)
    pauses_s = math.fsum(end - begin for work in works for begin, end in work.pauses) / len(works)
    hang_s = times.training_s - math.fsum(end - begin for begin, end in lived.trainings) if hang else 0.0
    busy_cores = None if cpu is None or not first.cores else cpu * first.cores - (mean(gpu) or 0.0) * (first.gpus or 0)
    return Steady(
        points=min(len(by_cpu) or len(by_gpu) for by_cpu, by_gpu in zip(values("cpu"), values("gpu"), strict=True)),
        start_s=start_s,
        seconds=max(0.0, times.training_s - (start_s or 0.0) - pauses_s - hang_s),
        cpu=cpu,
        gpu=mean(gpu),
        gpu_p5=percentile(gpu, 0.05) if gpu else None,
        gpu_p95=percentile(gpu, 0.95) if gpu else None,
        gpu_most=max(gpu, default=None),
        io_wait=mean_of("io_wait"),
        cores=first.cores,
        gpus=first.gpus,
        busy_cores=None if busy_cores is None else max(0.0, busy_cores),
        idle_gpus=_idle_gpus(uses),
        pauses=works[0].pauses,
        pauses_s=pauses_s,
        pauses_cores=None if pauses_cpu is None or not first.cores else pauses_cpu * first.cores,
        hang=hang,
        hang_s=hang_s,
    )


def _until(times: JobTimes, end_s: float) -> JobTimes:
    """Return the times of a job whose last training had ended earlier."""
    return replace(times, trainings=tuple((begin, min(end, end_s)) for begin, end in times.trainings if begin < end_s))


def _idle_gpus(uses: Sequence[HostUse]) -> int:
    """Return how many GPUs never worked on hosts on which another did."""
    found = 0
    for use in uses:
        most = [max(value for _, value in series) for series in use.gpu_rows.values() if series]
        if any(one >= ACTIVE_LEAST for one in most):
            found += sum(one < ACTIVE_LEAST for one in most)
    return found
