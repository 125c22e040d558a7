"""What the hosts did while they trained: when the GPU first worked, and the mean use from then on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.stats import mean, mean_of_known, percentile
from headrace.launch.finished_job.documents import Series
from headrace.launch.finished_job.times import JobTimes, Spans
from headrace.launch.finished_job.use import HostUse

__all__ = ["Steady", "steady_use"]

ACTIVE_PART, ACTIVE_LEAST = 0.25, 0.01
"""Count a GPU as working from the first point whose use is at least this part of its 90th percentile, and this share."""

SUSTAINED_POINTS = 5
"""Of these many points after it at least half have to reach it too, or it was a test of the GPU before the training."""

UNUSED_GPU = 0.02
"""Count a GPU as unused if the 95th percentile of its use is below this share, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Means over the hosts, from the first work of the GPU on (from the start of training where no GPU was measured).

    start_s: seconds of training before, over all attempts; None where no GPU was measured. seconds: those after it.
    points: of the host with the fewest. cores, gpus: of one host. busy_cores: cores that were busy, beyond one for each GPU at
    work, whose driver waits on a core. idle_gpus: GPUs that never worked while others did.
    """

    points: int
    start_s: float | None
    seconds: float
    cpu: float | None
    gpu: float | None
    gpu_p5: float | None
    gpu_p95: float | None
    memory: float | None
    gpu_memory: float | None
    io_wait: float | None
    cores: int | None
    gpus: int | None
    busy_cores: float | None
    idle_gpus: int
    interval_s: float
    is_fine: bool

    @property
    def is_gpu_unused(self) -> bool:
        """Whether the GPU was measured and did nothing."""
        return self.gpu_p95 is not None and self.gpu_p95 < UNUSED_GPU


def steady_use(uses: Sequence[HostUse], times: JobTimes) -> Steady:
    """Return what the hosts did in the training of all attempts."""
    starts, found = [], []
    for use in uses:
        trainings, start_s = _after_start(use, times)
        starts.append(start_s)

        def values(series: Series | None, use: HostUse = use, spans: Spans = trainings) -> list[float]:
            if series is None:
                return []
            return [value for _, value in times.in_training(series, lasts_s=use.interval_s, trainings=spans)]

        found.append((use, values))
    gpu = [value for use, values in found for value in values(use.gpu)]
    cpu = mean([value for use, values in found for value in values(use.cpu)])
    known = [one for one in starts if one is not None]
    first = uses[0]
    start_s = max(known) if known else None
    busy_gpu = mean(gpu) or 0.0
    counts = [len(values(use.cpu)) or len(values(use.gpu)) for use, values in found]
    return Steady(
        points=min(counts),
        start_s=start_s,
        seconds=max(0.0, times.training_s - (start_s or 0.0)),
        cpu=cpu,
        gpu=mean(gpu),
        gpu_p5=percentile(gpu, 0.05) if gpu else None,
        gpu_p95=percentile(gpu, 0.95) if gpu else None,
        memory=mean([value for use, values in found for value in values(use.memory)]),
        gpu_memory=mean([value for use, values in found for value in values(use.gpu_memory)]),
        io_wait=mean([value for use, values in found for value in values(use.io_wait)]),
        cores=first.cores,
        gpus=first.gpus,
        busy_cores=None if cpu is None or not first.cores else max(0.0, cpu * first.cores - busy_gpu * (first.gpus or 0)),
        idle_gpus=_idle_gpus(uses),
        interval_s=mean_of_known(use.interval_s for use in uses) or 60.0,
        is_fine=all(use.is_fine for use in uses),
    )


def _after_start(use: HostUse, times: JobTimes) -> tuple[Spans, float | None]:
    """Return the trainings from the GPU's first work on, and the seconds before; the whole trainings where no GPU tells."""
    series = times.in_training(use.gpu, lasts_s=use.interval_s) if use.gpu else ()
    if not series:
        return times.trainings, None
    level = max(ACTIVE_LEAST, ACTIVE_PART * percentile([value for _, value in series], 0.9))
    spans, start_s = [], 0.0
    for begin, end in times.trainings:
        points = series[bisect_left(series, (begin,)) : bisect_left(series, (end,))]
        first = next((at for at in range(len(points)) if _works(points[at : at + SUSTAINED_POINTS], level)), None)
        if first is None:  # an attempt that was taken before its first step, or a GPU that did nothing at all
            start_s += end - begin if level > ACTIVE_LEAST else 0.0
            spans += [] if level > ACTIVE_LEAST else [(begin, end)]
            continue
        # The first whole point may begin up to an interval after the status did.
        moment = begin if first == 0 else points[first][0]
        start_s += moment - begin
        spans.append((moment, end))
    return tuple(spans), start_s


def _works(points: Sequence[tuple[float, float]], level: float) -> bool:
    return points[0][1] >= level and 2 * sum(value >= level for _, value in points) >= len(points)


def _idle_gpus(uses: Sequence[HostUse]) -> int:
    """Return how many GPUs never worked on hosts on which another did."""
    found = 0
    for use in uses:
        most = [percentile([value for _, value in series], 0.95) for series in use.gpu_rows.values() if series]
        if most and max(most) >= 0.1:
            found += sum(one < UNUSED_GPU for one in most)
    return found
