"""Series that a report draws, computed from a session: cores over time, the timeline of steps, stages of the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.diagnosis.measure.stats import mean, percentile
from headrace.diagnosis.result.model import HeatMap, Percentiles, StageRow, Timeline, TimelineEvent
from headrace.session.machine import Sample
from headrace.session.model import Batch, Process, Session, Step, owners

__all__ = ["heat_map", "percentiles", "stages", "timeline"]

MAX_TIMELINE = 2000
"""Average neighbouring steps so that a timeline has at most this many entries."""

MAX_HEAT_COLUMNS = 600
"""Average neighbouring samples so that a heat map has at most this many columns."""

NOT_ON_TIMELINE = ("probe", "tcp_connections", "operators", "imports", "download", "iterated_elsewhere", "new_weights")
"""Events that are no pause."""


def percentiles(name: str, unit: str, values: Sequence[float]) -> Percentiles | None:
    """Return the percentiles of one series; None of an empty series."""
    if not values:
        return None
    points = [percentile(values, share) for share in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)]
    return Percentiles(name, unit, len(values), *points)


def heat_map(session: Session) -> HeatMap | None:
    """Return the use of cores and GPUs over time, in at most `MAX_HEAT_COLUMNS` columns; None without samples."""
    samples = [sample for sample in session.samples if sample.core_busy]
    if not samples:
        return None
    group = math.ceil(len(samples) / MAX_HEAT_COLUMNS)
    columns = [samples[start : start + group] for start in range(0, len(samples), group)]
    return HeatMap(
        time_s=tuple(column[-1].time_s for column in columns),
        cores=_means(columns, lambda sample: sample.core_busy),
        gpus=_means(columns, lambda sample: [gpu.busy for gpu in sample.gpus]),
        gpu_names=tuple(gpu.name for gpu in session.host.gpus),
    )


def _means(
    columns: Sequence[Sequence[Sample]], values_of: Callable[[Sample], Sequence[float | None]]
) -> tuple[tuple[float | None, ...], ...]:
    """Return for each core or GPU its mean in each column. Each value is looked at once: samples may differ in length."""
    cells: list[dict[int, list[float]]] = [{} for _ in columns]
    count = 0
    for cell, column in zip(cells, columns, strict=True):
        for values in map(values_of, column):
            count = max(count, len(values))
            for number, value in enumerate(values):
                if value is not None:
                    cell.setdefault(number, []).append(value)
    return tuple(tuple(mean(cell.get(number, ())) for cell in cells) for number in range(count))


def timeline(session: Session, steps: Sequence[Step]) -> Timeline | None:
    """Return the steps in order, in at most `MAX_TIMELINE` entries, with the pauses of their process; None without steps."""
    if not steps:
        return None
    stride = math.ceil(len(steps) / MAX_TIMELINE)
    groups = [steps[start : start + stride] for start in range(0, len(steps), stride)]
    events = tuple(
        TimelineEvent(event.name, event.start_s, event.duration_s)
        for event in session.events
        if event.pid == steps[0].pid and event.name not in NOT_ON_TIMELINE
    )
    return Timeline(
        start_s=tuple(group[0].start_s for group in groups),
        wait_s=tuple(math.fsum(step.wait_s for step in group) / len(group) for group in groups),
        compute_s=tuple(math.fsum(step.compute_s for step in group) / len(group) for group in groups),
        events=events,
        stride=stride,
    )


def stages(batches: Sequence[Batch], processes: Sequence[Process] = ()) -> tuple[StageRow, ...]:
    """Return one row per worker of each rank: mean seconds per batch, by what they were spent on.

    The processes of a worker that is started in every epoch count as one worker; `pid` is its first process.
    """
    parents = owners(processes)
    ranks = {process.pid: process.rank for process in processes if process.role == "main"}
    by_worker: dict[tuple[int, int], list[Batch]] = {}
    for batch in batches:
        owner = parents.get(batch.pid, batch.pid)
        by_worker.setdefault((ranks.get(owner, 0), batch.worker), []).append(batch)
    several = len({rank for rank, _ in by_worker}) > 1
    return tuple(
        _stage(f"rank {rank}, " if several else "", worker, made) for (rank, worker), made in sorted(by_worker.items())
    )


def _stage(rank: str, worker: int, made: list[Batch]) -> StageRow:
    def average(name: str) -> float | None:
        known = [value for value in (getattr(batch, name) for batch in made) if value is not None]
        return mean(known)

    items = [batch.items for batch in made if batch.items is not None]
    wall_s = math.fsum(batch.wall_s for batch in made)
    return StageRow(
        name=rank + (f"worker {worker}" if worker >= 0 else "main process"),
        pid=made[0].pid,
        batches=len(made),
        wall_s=wall_s / len(made),
        cpu_s=average("cpu_s"),
        queue_s=average("queue_s"),
        blocked_s=average("blocked_s"),
        collate_s=average("collate_s"),
        idle_s=average("idle_s"),
        bytes_per_batch=average("read_bytes"),
        items_per_s=sum(items) / wall_s if items and wall_s > 0 else None,
    )
