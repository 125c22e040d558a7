"""The use of a job's machines over time, in shares: from the Debugger's files where there are any, else from CloudWatch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cost.market.prices import PREFIX, Instance, PriceTable
from headrace.diagnosis.measure.stats import mean, median
from headrace.errors import UsageError
from headrace.launch.finished_job.documents import JobDocuments, Series, host_names
from headrace.launch.finished_job.times import JobTimes
from headrace.session.model import MOST_CORES
from headrace.system.text.sizes import percent_text

__all__ = ["HostUse", "instance_types", "known_until", "uses_of"]

_SIZE = re.compile(r"[mcrt]\d\w*\.(\d*)(x?)large")
"""AWS's general types: `large` has 2 cores, `xlarge` 4, `Nxlarge` 4 × N, and none has a GPU."""

ABOVE_FULL = 1.1
"""Take a sum over cores for wrong if it exceeds what the instance type can give by this factor."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """One host. Series are shares, 0 to 1; None: not measured.

    cores, gpus: of its instance type, None where that is not known. cpu: mean over cores; gpu, gpu_memory: mean over GPUs.
    core_rows, gpu_rows: each core and GPU, from the Debugger only. interval_s: time between two points.
    """

    name: str
    instance: str
    cores: int | None
    gpus: int | None
    cpu: Series | None = None
    gpu: Series | None = None
    memory: Series | None = None
    gpu_memory: Series | None = None
    disk: Series | None = None
    io_wait: Series | None = None
    core_rows: Mapping[int, Series] = field(default_factory=dict)
    gpu_rows: Mapping[int, Series] = field(default_factory=dict)
    interval_s: float = 60.0
    problems: tuple[str, ...] = ()


def instance_types(documents: JobDocuments) -> dict[str, str]:
    """Return the instance type of each host, without `ml.`; hosts are numbered over the instance groups in order."""
    resources = documents.description.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or [resources]
    hosts = host_names(documents.description)  # raises for a count that would fill the memory
    types = [str(group.get("InstanceType") or "") for group in groups for _ in range(int(group.get("InstanceCount") or 1))]
    return {host: kind.removeprefix(PREFIX) for host, kind in zip(hosts, types, strict=True)}


def known_until(documents: JobDocuments) -> float:
    """Return the Unix time at which the last curve of any host ends; 0 without curves."""
    rows = itertools.chain.from_iterable(one.values() for one in (*documents.cores.values(), *documents.gpus.values()))
    curves = itertools.chain(rows, *(one.values() for one in documents.metrics.values()))
    return max((series[-1][0] + _interval_s(series) for series in curves if series), default=0.0)


def uses_of(documents: JobDocuments, table: PriceTable, times: JobTimes) -> list[HostUse]:
    """Return the use of each host that something is known of, all hosts in order if nothing is known of any."""
    types = instance_types(documents)
    seen = {*documents.metrics, *documents.cores, *documents.gpus}
    hosts = [host for host in types if host in seen] or list(types)
    return [_use(documents, host, types[host], table, times) for host in hosts]


def _use(documents: JobDocuments, host: str, kind: str, table: PriceTable, times: JobTimes) -> HostUse:
    instance = _instance(table, kind)
    size = _SIZE.fullmatch(kind)
    cores = instance.vcpus if instance else None
    gpus = instance.gpus if instance else None
    if instance is None and size is not None:
        cores, gpus = 4 * int(size[1] or 1) if size[2] else 2, 0
    problems: list[str] = []
    if cores is None:
        problems.append(f"{kind or 'the instance type'} is not in the table: its cores and GPUs are not known")
    metrics = documents.metrics.get(host, {})
    core_rows, gpu_rows = documents.cores.get(host, {}), documents.gpus.get(host, {})
    if max(len(core_rows), len(gpu_rows)) > MOST_CORES:
        raise ValueError(f"more than {MOST_CORES:,} cores or GPUs of {host}")
    interval_s = _interval_s(next(iter((core_rows or gpu_rows).values()), metrics.get("CPUUtilization") or ()))

    def from_cloudwatch(name: str, parts: int | None) -> Series | None:
        series = metrics.get(name)
        if not series or not parts:
            return None
        if (most := max(value for _, value in series)) > 100 * parts * ABOVE_FULL:
            problems.append(f"{name} reaches {most:,.0f} %, more than {parts} × 100 %: it is left out")
            return None
        return tuple((time, min(1.0, value / (100 * parts))) for time, value in series)

    return HostUse(
        host,
        kind,
        len(core_rows) or cores,
        len(gpu_rows) or gpus,
        cpu=_mean_row(core_rows, interval_s) or from_cloudwatch("CPUUtilization", cores),
        gpu=_mean_row(gpu_rows, interval_s) or from_cloudwatch("GPUUtilization", gpus),
        memory=from_cloudwatch("MemoryUtilization", 1),
        gpu_memory=_mean_row(documents.gpu_memory.get(host, {}), interval_s) or from_cloudwatch("GPUMemoryUtilization", gpus),
        disk=from_cloudwatch("DiskUtilization", 1),
        io_wait=documents.io_wait.get(host),
        core_rows=core_rows,
        gpu_rows=gpu_rows,
        interval_s=interval_s,
        problems=(*problems, *_gaps(metrics.get("CPUUtilization"), times)),
    )


def _instance(table: PriceTable, kind: str) -> Instance | None:
    try:
        return table.instance(kind)
    except UsageError:
        return None


def _interval_s(series: Series) -> float:
    """Return the usual time between two points; a minute, CloudWatch's, where there are fewer than two."""
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(series) if after[0] > before[0]]
    return median(gaps) or 60.0


def _mean_row(rows: Mapping[int, Series], interval_s: float) -> Series | None:
    """Return the mean of several series, whose points need not fall on the same moment."""
    cells: dict[int, list[float]] = {}
    for series in rows.values():
        for time, value in series:
            cells.setdefault(math.floor(time / interval_s), []).append(value)
    means = ((cell * interval_s, mean(values)) for cell, values in sorted(cells.items()))
    return tuple((time, value) for time, value in means if value is not None) or None


def _gaps(series: Series | None, times: JobTimes) -> tuple[str, ...]:
    """Say so where CloudWatch has points for less than two thirds of the training."""
    if not series or not times.training_s:
        return ()
    interval_s = _interval_s(series)
    covered = len(times.in_training(series, lasts_s=0.0)) * interval_s / times.training_s
    if covered >= 2 / 3 or times.training_s < 3 * interval_s:
        return ()
    return (f"CloudWatch has points for {percent_text(covered)} of the training only",)
