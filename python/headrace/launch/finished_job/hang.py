"""The end of a job that stood still: a hang that its curves show, and that a limit or somebody ended.

Two signs. Nothing works any more: no kernel, no core. Or all curves stay at one value to the digit: a collective that waits
for a rank (NCCL) keeps its GPU at 100 % and its core busy, always equally. A job that ended by itself did not hang.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.stats import mean_of_known
from headrace.launch.finished_job.documents import Series
from headrace.launch.finished_job.times import JobTimes
from headrace.launch.finished_job.use import HostUse
from headrace.launch.finished_job.work import ACTIVE_LEAST, work_level

__all__ = ["SuspectedHang", "find_hang"]

QUIET_S, SPIN_S = 600.0, 1200.0
"""Suspect a hang where nothing works for so long before the end; the second if curves stay constant, or no GPU had worked."""

LEAST_POINTS = 5
"""And for so many points."""

LONGER = 2.0
"""And this many times longer than ever before in the job."""

QUIET_CORES, QUIET_CPU, MOST_QUIET_CORES = 0.3, 0.015, 0.8
"""A host on which nothing works uses less than so many cores, or than this share of all, for agents and the kernel, and always
less than one core at work."""

CELL_S = 60.0
"""Average finer points over so many seconds: a moment of an agent is no work."""

SAME_GPU, SAME_SHARE, SAME_CORES, SAME_CPU = 1e-4, 2e-3, 0.03, 0.01
"""Points that differ by less are equal to the digit: GPU; memory and disk; cores, and share of the busy cores."""


@dataclass(frozen=True, slots=True)
class SuspectedHang:
    """A suspected hang at the end of a job.

    since_s: Unix time of its begin. seconds: until the end of the curves. spins: whether something kept running, equally.
    gpu, cores: use meanwhile, of a host. longest_before_s: the longest such time before. first: the host that stood first,
    where hosts differ. worked: whether a GPU had worked before, a core where there is no GPU.
    """

    since_s: float
    seconds: float
    spins: bool
    gpu: float | None
    cores: float | None
    longest_before_s: float
    first: str | None
    worked: bool


@dataclass(frozen=True, slots=True)
class _Point:
    """What a host did in one interval. stands: it did nothing, or what it did before, to the digit."""

    time_s: float
    gpu: float | None
    cores: float | None
    stands: bool
    is_quiet: bool

    @property
    def works(self) -> bool:
        """Whether a GPU worked, or a core where there is no GPU."""
        return not self.is_quiet if self.gpu is None else self.gpu >= ACTIVE_LEAST


def find_hang(uses: Sequence[HostUse], times: JobTimes, *, ended_by_itself: bool) -> SuspectedHang | None:
    """Return the hang at the end of the last attempt; None if there is none, or the curves cannot tell."""
    if ended_by_itself or not times.trainings:
        return None
    attempt = max(times.trainings, key=lambda span: span[1])
    hosts = {use.name: points for use in uses if (points := list(_points(use, times, attempt)))}
    if not hosts or len(hosts) < len(uses):
        return None
    interval_s = max(CELL_S, *(use.interval_s for use in uses))
    alive = {name: [one.time_s for one in points if not one.stands] for name, points in hosts.items()}
    moments = sorted(itertools.chain.from_iterable(alive.values()))
    end_s = min(points[-1].time_s for points in hosts.values()) + interval_s
    since_s = moments[-1] + interval_s if moments else attempt[0]
    tails = [[one for one in points if one.time_s >= since_s] for points in hosts.values()]
    spins = any(2 * sum(one.is_quiet for one in tail) < len(tail) for tail in tails)
    busiest = max(tails, key=lambda tail: sum((one.gpu or 0.0) for one in tail))
    gpu = mean_of_known([one.gpu for one in busiest])
    if spins and (gpu or 0.0) >= ACTIVE_LEAST and sum(use.gpus or 0 for use in uses) == 1:
        return None  # one GPU has no rank to wait for: its work may be as even as that
    worked_s = min((one.time_s for points in hosts.values() for one in points if one.works), default=None)
    earlier = [time for time in moments if worked_s is None or time >= worked_s]
    longest_s = max((after - before - interval_s for before, after in itertools.pairwise(earlier)), default=0.0)
    worked = worked_s is not None and worked_s < since_s
    needed_s = max(QUIET_S if worked and not spins else SPIN_S, LEAST_POINTS * interval_s, LONGER * longest_s)
    if end_s - since_s < needed_s or min(map(len, tails)) < LEAST_POINTS:
        return None
    last = {name: moved[-1] if moved else attempt[0] for name, moved in alive.items()}
    first = min(last, key=lambda name: last[name])
    return SuspectedHang(
        since_s,
        end_s - since_s,
        spins,
        gpu,
        mean_of_known([one.cores for one in busiest]),
        longest_s,
        first if len(last) > 1 and since_s - last[first] > LEAST_POINTS * interval_s else None,
        worked,
    )


def _points(use: HostUse, times: JobTimes, attempt: tuple[float, float]) -> Iterator[_Point]:
    """Yield what a host did in the last attempt. Nothing where its CPU, or the GPU it has, was not measured."""
    width_s = max(CELL_S, use.interval_s)
    if use.cpu is None or (use.gpu is None and use.gpus != 0):
        return
    cells: dict[int, dict[str, list[float]]] = {}
    for name in ("gpu", "cpu", "memory", "gpu_memory", "disk"):
        series: Series = getattr(use, name) or ()
        for time_s, value in times.in_training(series, lasts_s=use.interval_s, trainings=(attempt,)):
            cells.setdefault(math.floor(time_s / width_s), {}).setdefault(name, []).append(value)
    means = {place: {name: math.fsum(all_) / len(all_) for name, all_ in cell.items()} for place, cell in cells.items()}
    level = work_level([cell["gpu"] for cell in means.values() if "gpu" in cell]) or ACTIVE_LEAST
    quiet_cores = min(MOST_QUIET_CORES, max(QUIET_CORES, QUIET_CPU * (use.cores or 1)))
    needed = {"cpu"} if use.gpu is None else {"cpu", "gpu"}
    before: dict[str, float] = {}
    for place, cell in sorted(means.items()):
        if not needed <= cell.keys():  # what was not measured is not quiet
            continue
        gpu, cores = cell.get("gpu"), cell["cpu"] * (use.cores or 1)
        is_quiet = (gpu or 0.0) < level and cores < quiet_cores
        yield _Point(place * width_s, gpu, cores, is_quiet or _is_same(before, cell, use.cores or 1), is_quiet)
        before = cell


def _is_same(before: Mapping[str, float], after: Mapping[str, float], cores: int) -> bool:
    """Return whether every curve has the value of the point before, to the digit."""
    least = {"gpu": SAME_GPU, "cpu": max(SAME_CORES / cores, SAME_CPU * after.get("cpu", 0.0))}
    return before.keys() == after.keys() and all(
        abs(after[name] - before[name]) <= least.get(name, SAME_SHARE) for name in after
    )
