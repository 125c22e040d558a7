"""The machine while the steps ran: cores, other programs, GPU, network, memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.attach.machine.foreign_programs import LEAST_FOREIGN_CORES
from headrace.diagnosis.measure.rank import Rank
from headrace.diagnosis.measure.stats import fit_line, mean, mean_of_known, median, required
from headrace.session.machine import ForeignProgram, Host, Sample
from headrace.session.model import Event, Session

__all__ = ["Copying", "Machine", "gpus_of_job", "host_while", "measure_machine"]

SETTLED_S = 120.0
"""Expect a job's memory to settle within this time: caches, allocators, pages that forked workers copy."""

FAST_GROWTH = 0.2
"""Before memory has settled, report growth only when it has added this share of the memory held."""

MOST_PROGRAMS = 3
"""Name at most this many other programs."""

LEAST_FIT = 0.9
"""Call growth steady when a straight line explains at least this share of its variance (r²)."""

WORKS = 0.02
"""Count a GPU as at work in a sample from this share of the time with a kernel on."""

LEAST_COPIED_BYTES = 32 << 20
"""Say that a worker copies pages when it has copied this much."""

LEAST_COPIED_SHARE = 0.03
"""Say that a worker copies pages when it has copied this share of what the fork shared with it."""

LEAST_COPIED_BYTES_S = 1e6
"""Ignore workers that copy more slowly together."""


GOES_ON = 0.2
"""Copying goes on where it has this share of its mean rate between two pairs of readings: a collection of garbage, which writes
to every object of the interpreter, copies some 100 MB once."""


@dataclass(frozen=True, slots=True)
class Copying:
    """Workers that copy pages which the fork shares with them, because they write to them.

    bytes_s: all workers together. left_bytes: what they still share, and may copy too. workers: how many copy.
    """

    bytes_s: float
    left_bytes: int
    workers: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Means over the samples taken while steps were running. Shares are 0 to 1; None means not measured.

    cores: cores that the job may use at once (online, affinity, quota).
    core_count: cores that the job may run on.
    core_busy: use of each of those cores, by anything.
    own_cores, foreign_cores: cores used by the job, and by other programs.
    queue_share: share of their runnable time in which the job's threads wait for a core.
    throttled_share: time in which the CPU quota stopped the job, over the time, added up over cores.
    gpu_busy: share of the time with a kernel running, the mean of the job's own GPUs (`gpus_of_job`), as the two below.
    gpu_throttle_share, gpu_throttle: share of the samples with a lowered clock, and the reasons.
    gpu_clock_share: median clock over the highest one.
    foreign_programs: the largest of the other programs, with their mean cores; None where they were not read.
    listed_count, listed_cores: number of all other programs whose names were seen, and the cores that they use together.
    memory_growth_bytes_s: steady growth of the job's own memory; 0 without.
    workers_growth_bytes_s: the workers' part of that.
    shared_growth_bytes_s: steady growth of what lies in /dev/shm; 0 without. shared_left_bytes: least that was free there.
    quota_cores: the CPU quota; None without. niceness: the greatest of the job's processes.
    copying: pages shared since the fork that the workers copy; None where they do not.
    memory_left_bytes: least memory that the job could still take, other programs and control groups considered.
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
    memory_left_bytes: int | None
    workers_growth_bytes_s: float = 0.0
    shared_growth_bytes_s: float = 0.0
    shared_left_bytes: int | None = None
    copying: Copying | None = None
    quota_cores: float | None = None
    niceness: int = 0
    foreign_programs: tuple[ForeignProgram, ...] | None = None
    listed_count: int = 0
    listed_cores: float = 0.0

    @property
    def busy_share(self) -> float | None:
        """Share of the usable cores in use by anything, 0 to 1. Under a quota: the share of the quota that the job uses."""
        if self.own_cores is not None and self.cores and self.core_count and self.cores < self.core_count:
            return min(1.0, self.own_cores / self.cores)
        return mean(self.core_busy)

    @property
    def wanted_cores(self) -> float | None:
        """Number of cores that the job would use if each of its threads had a core whenever it could run."""
        if self.own_cores is None or self.queue_share is None:
            return None
        left = (self.core_count or self.own_cores) - (self.foreign_cores or 0.0)  # the two are sampled at different moments
        return min(self.own_cores, max(0.0, left)) / max(0.01, 1 - self.queue_share)

    @property
    def crowded_share(self) -> float:
        """Share of the waits for a core that would remain without other programs: the job itself wants more cores than it has.

        0 where that was not measured. Threads that want more cores than there are wait 1 - cores / wanted_cores of the time.
        """
        if not self.wanted_cores or not self.queue_share or not self.cores:
            return 0.0
        return min(1.0, max(0.0, 1 - self.cores / self.wanted_cores) / self.queue_share)

    @property
    def stopped_share(self) -> float:
        """Share of the time in which the job's threads would run that the CPU quota stops them; 0 without a quota.

        The kernel adds up the stops of all cores: with one busy core that sum is the share of the time lost; with several
        it is related to the time that they would have run.
        """
        stopped = self.throttled_share or 0.0
        return stopped / max(1.0, stopped + (self.own_cores or 0.0))

    @property
    def quota_share_of_waits(self) -> float | None:
        """Share of the waits for a core that the CPU quota causes: a stopped thread waits for a core. None: not measured."""
        return None if self.queue_share is None else min(1.0, self.stopped_share / max(1e-9, self.queue_share))

    @property
    def foreign_share(self) -> float | None:
        """Share of the job's cores that other programs use, 0 to 1."""
        return None if self.foreign_cores is None or not self.core_count else min(1.0, self.foreign_cores / self.core_count)


def measure_machine(session: Session, ranks: Sequence[Rank]) -> Machine:
    """Return means over the samples from the time of the first rank's steady steps; without steps, over all samples."""
    samples = list(session.samples)
    if ranks:
        begin_s, end_s = ranks[0].steps[0].start_s, ranks[0].steps[-1].start_s + ranks[0].steps[-1].step_s
        samples = [sample for sample in samples if begin_s + 0.25 <= sample.time_s <= end_s + 0.25] or samples
    host = host_while(session, samples)
    mine = frozenset(host.affinity)
    core_rows = [
        tuple(busy for core, busy in enumerate(row) if core in mine) or row
        for row in (sample.core_busy for sample in samples if sample.core_busy)
    ]
    width = min((len(row) for row in core_rows), default=0)
    own_gpus = gpus_of_job(session, samples, count=_gpu_count(session, ranks))
    gpu_samples = [gpu for sample in samples for gpu in sample.gpus if gpu.index in own_gpus]
    reasons = [gpu.throttle for gpu in gpu_samples if gpu.throttle is not None]
    clocks = [gpu.sm_clock_mhz for gpu in gpu_samples if gpu.sm_clock_mhz is not None]
    highest = max((gpu.max_sm_clock_mhz or 0 for gpu in session.host.gpus if gpu.index in own_gpus), default=0)
    limits = [sample.memory_limit_bytes for sample in samples if sample.memory_limit_bytes]
    used = [sample.memory_used_bytes for sample in samples if sample.memory_used_bytes]
    limit = limits[-1] if limits else session.host.memory_limit_bytes or session.host.memory_bytes
    left = [sample.memory_left_bytes for sample in samples if sample.memory_left_bytes is not None]
    if not left and used and limit is not None:  # a session of an older headrace
        left = [max(0, limit - used[-1])]
    programs = _foreign_programs(samples)
    shared = [sample.shared_memory_free_bytes for sample in samples if sample.shared_memory_free_bytes is not None]
    return Machine(
        cores=host.cores,
        core_count=host.cores_affinity or host.cores_online,
        quota_cores=host.quota_cores,
        niceness=max((sample.niceness or 0 for sample in samples), default=0),
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
        memory_growth_bytes_s=_growth(session, "own_memory_bytes"),
        workers_growth_bytes_s=_growth(session, "workers_memory_bytes") or 0.0,
        shared_growth_bytes_s=_growth(session, "shared_memory_free_bytes", rises=False) or 0.0,
        shared_left_bytes=min(shared, default=None),
        copying=_copying(session),
        memory_used_bytes=used[-1] if used else None,
        foreign_programs=None if programs is None else tuple(programs[:MOST_PROGRAMS]),
        listed_count=len(programs or ()),
        listed_cores=sum(program.cores for program in programs or ()),
        memory_limit_bytes=limit,
        memory_left_bytes=min(left, default=None),
    )


def host_while(session: Session, samples: Sequence[Sample]) -> Host:
    """Return the host as it was during most of the samples: the script may have changed its cores, others its quota."""
    host = session.host
    if samples:
        affinity, _ = Counter(sample.affinity for sample in samples).most_common(1)[0]
        quota, _ = Counter(sample.quota_cores for sample in samples).most_common(1)[0]
        if affinity is not None:
            host = replace(host, affinity=affinity, cores_affinity=len(affinity))
        if quota is not None:
            host = replace(host, quota_cores=quota)
    return host


def gpus_of_job(session: Session, samples: Sequence[Sample], *, count: int | None = None) -> frozenset[int]:
    """Return the numbers of the GPUs that the job uses: others of the machine may work for somebody else, or for nobody.

    They are among those that `CUDA_VISIBLE_DEVICES` lets its processes see, where it names numbers that the samples have.

    count: how many the job uses, the busiest; by default all that work in some sample.
    """
    use: dict[int, list[float]] = {}
    for gpu in (gpu for sample in samples for gpu in sample.gpus):
        use.setdefault(gpu.index, []).append(gpu.busy or 0.0)
    seen = use.keys() & _visible_gpus(session) or use.keys()
    if count is None:
        return frozenset(index for index in seen if max(use[index]) >= WORKS)
    return frozenset(sorted(seen, key=lambda index: (-math.fsum(use[index]), index))[:count])


def _visible_gpus(session: Session) -> set[int]:
    """Return the numbers in `CUDA_VISIBLE_DEVICES` of all training processes that have it; empty where it has other names."""
    mains = [process.environment for process in session.processes if process.role == "main"]
    values = [variables["CUDA_VISIBLE_DEVICES"] for variables in mains if "CUDA_VISIBLE_DEVICES" in variables]
    names = [name.strip() for value in values for name in value.split(",")]
    return {int(name) for name in names} if all(name.isdecimal() for name in names) else set()


def _gpu_count(session: Session, ranks: Sequence[Rank]) -> int | None:
    """Return how many GPUs the job uses: one for each rank, or those of `nn.DataParallel`; None without ranks."""
    return max(len(ranks), (session.facts.get("configuration") or {}).get("data_parallel") or 0) or None


def _foreign_programs(samples: Sequence[Sample]) -> list[ForeignProgram] | None:
    """Return the programs in the samples, with their mean cores, the largest first; None when no sample lists programs.

    A sample in which other programs used too little to be listed counts as one without them, as it does in `foreign_cores`.
    """
    listed = [sample.foreign_programs for sample in samples if sample.foreign_programs is not None]
    if not listed:
        return None
    unlisted = (one.foreign_cores for one in samples if one.foreign_programs is None and one.foreign_cores is not None)
    count = len(listed) + sum(cores < LEAST_FOREIGN_CORES for cores in unlisted)
    cores: dict[tuple[int, str], float] = {}
    for program in (program for programs in listed for program in programs):
        cores[program.pid, program.name] = cores.get((program.pid, program.name), 0.0) + program.cores / count
    largest = sorted(cores.items(), key=lambda item: -item[1])
    return [ForeignProgram(pid, name, round(used, 2)) for (pid, name), used in largest]


def _copying(session: Session) -> Copying | None:
    """Return how fast workers copy pages that the fork shares, from three or more readings of each worker's memory.

    Of workers that are started again in each epoch, the last ones count.
    """
    numbers = {process.pid: (process.parent_pid, process.worker_id) for process in session.processes}
    readings: dict[object, list[Event]] = {}
    for event in session.events:
        if event.name == "worker_shared_memory":
            known = readings.setdefault(numbers.get(event.pid, event.pid), [])
            if known and known[0].pid != event.pid:
                known.clear()
            known.append(event)
    rate, left, workers = 0.0, 0, 0
    for found in readings.values():
        first, last = int(found[0].detail or 0), int(found[-1].detail or 0)
        passed_s = found[-1].start_s - found[0].start_s
        if passed_s > 0 and first - last >= max(LEAST_COPIED_BYTES, LEAST_COPIED_SHARE * first) and _goes_on(found):
            rate, left, workers = rate + (first - last) / passed_s, left + last, workers + 1
    return Copying(rate, left, workers) if rate >= LEAST_COPIED_BYTES_S else None


def _goes_on(readings: Sequence[Event]) -> bool:
    """Return whether what the fork shares falls from reading to reading, and not at once."""
    values = [(one.start_s, int(one.detail or 0)) for one in readings]
    mean_rate = (values[0][1] - values[-1][1]) / (values[-1][0] - values[0][0])
    falls = ((one[1] - later[1], later[0] - one[0]) for one, later in pairwise(values))
    return sum(fall >= GOES_ON * mean_rate * passed_s > 0 for fall, passed_s in falls) >= 2


def _growth(session: Session, name: str, *, rises: bool = True) -> float | None:
    """Return the steady growth of a memory of the samples in bytes per second; 0.0 without growth, None when not measured.

    Only samples with the same number of processes count, since new workers are no growth, and only those of the training:
    imports take memory steadily too. Growth that slows down ends by itself, so each third of the time must grow. rises: False
    for what is free, whose fall is the growth.
    """
    begin_s = session.steps[0].start_s if session.steps else 0.0
    samples = [one for one in session.samples if getattr(one, name) is not None and one.time_s >= begin_s]
    counts = Counter(sample.processes for sample in samples)
    if not counts:
        return None
    common, _ = counts.most_common(1)[0]
    begin, sign = (0.0, 1.0) if rises else (float(getattr(samples[0], name)), -1.0)
    points = [(one.time_s, begin + sign * float(getattr(one, name))) for one in samples if one.processes == common]
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
    steady = fit > LEAST_FIT and slope > 0 and slowest > 0.4 * slope
    return slope if steady and (settled or added > FAST_GROWTH * points[0][1]) else 0.0
