"""The quantities that decide a diagnosis, drawn from a session: one set per rank, means over steady steps.

The step is modelled as `max(G + M, (C + S + K) / n, p·(C + c) / P, p·x)`: compute G and hand-over M in the training
process, against n workers that need C seconds on a core, S blocked and K for collating and sending per batch, P cores
that also run the training process (c), and storage that serves one batch in x seconds however many ask.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.diagnosis.series import mean, median, percentile
from headrace.session.model import Batch, Event, ObservedLoader, Process, Session, Step

__all__ = ["Machine", "Pauses", "Rank", "Work", "measure_machine", "measure_ranks"]

LEAST_STEPS = 8
"""Steady steps below which nothing is said."""

HANDOVER_WAKE_S = 0.0005
"""Sleeping and waking between two processes while a batch is handed over; the rest of it is CPU time."""

AT_ONCE_S = 0.001
"""A batch that is there is handed over in this time and twice what that usually takes."""

PAUSE_FACTOR = 0.6
"""A step is a pause when its compute exceeds the median by this share of it and by six median deviations."""

TOGETHER = 0.8
"""Of the steps, that take a batch of another loader too, from which the two are iterated together; validation comes rarely."""

UNDISTURBED = 0.2
"""Of a batch made alone, for which another worker may have been at work all the same."""

AROUND, LEAST_AROUND = 20, 3
"""Batches nearest to the one made alone that it is set against, but for the two at its sides; fewer than three tell nothing."""

SETTLED_S = 120.0
FAST_GROWTH = 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """Making one batch, mean seconds in one worker: on a core, queueing for one, blocked, collating, other threads.

    `cpu_s` includes `collate_cpu_s`. `alone_ratio`: blocked time beside the other workers over blocked time alone
    (1: storage does not mind; the number of workers: it serves one at a time), None where that was not tried.
    """

    wall_s: float
    cpu_s: float | None
    queue_s: float | None
    blocked_s: float | None
    collate_s: float
    collate_cpu_s: float
    other_cpu_s: float
    socket_s: float
    read_bytes: float | None
    disk_bytes: float | None
    batches: int
    alone_ratio: float | None
    late_share: float | None

    @property
    def off_core_s(self) -> float:
        """Blocked; where queueing for a core was not measured, both together, as far as they can be told from collating."""
        if self.blocked_s is not None or self.cpu_s is None:
            return self.blocked_s or 0.0
        return max(0.0, self.wall_s - self.cpu_s - max(0.0, self.collate_s - self.collate_cpu_s))


@dataclass(frozen=True, slots=True)
class Pauses:
    """Time lost to single long steps, seconds per step in the mean, by cause; `period` in steps, where regular."""

    gc_s: float
    save_s: float
    other_loader_s: float
    unknown_s: float
    period: int | None
    count: int
    longest_s: float
    compile_s: float = 0.0

    @property
    def periodic_s(self) -> float:
        """All but garbage collection."""
        return self.save_s + self.other_loader_s + self.unknown_s + self.compile_s


@dataclass(frozen=True, slots=True)
class Between:
    """Seconds between epochs in all, starting workers excepted: in steps of other loaders, in torch.save, and altogether.

    `other_wait_s`: of the steps of other loaders, waiting for their input.
    """

    all_s: float
    other_loader_s: float
    other_wait_s: float
    save_s: float


@dataclass(frozen=True, slots=True)
class Rank:
    """One training process and its loader. Times are means per steady step unless their name says otherwise.

    `epoch_start_s`: of all epochs, starting the workers (`workers_start_s`) and waiting for the first batch beyond a usual
    wait; `between`: from an epoch's last step to the start of the next epoch; `loop_s`: all
    steps, those first waits included. `elsewhere`: another thread than the one that trains iterates the loader.
    """

    process: Process
    loader: ObservedLoader
    elsewhere: bool
    all_steps: tuple[Step, ...]
    steps: tuple[Step, ...]
    step_s: float
    wait_s: float
    net_wait_s: float
    compute_s: float
    typical_compute_s: float
    handover_s: float
    ready_share: float | None
    items: float | None
    main_cpu_s: float | None
    main_queue_s: float | None
    compute_queue_s: float | None
    process_cpu_s: float | None
    sync_s: float | None
    sync_count: float | None
    h2d_s: float | None
    gpu_wait_s: float | None
    gpu_step_s: float | None
    drained_share: float | None
    own_s: float | None
    collective_s: float | None
    forward_s: float | None
    backward_s: float | None
    work: Work | None
    pauses: Pauses
    epoch_start_s: float
    workers_start_s: float
    epochs: int
    between: Between
    loop_s: float
    first_batch_s: float | None

    @property
    def at_once_share(self) -> float:
        """Share of the batches that came without a wait worth the name."""
        at_once_s = 2 * self.handover_s + AT_ONCE_S
        return sum(net_wait_s(step) <= at_once_s for step in self.steps) / len(self.steps)

    @property
    def workers(self) -> int:
        """Worker processes of the training loader."""
        return self.loader.num_workers

    @property
    def exposed_wait_s(self) -> float:
        """Wait for input: what the device felt of it on its own clock, else `next()` without queueing for a core."""
        return min(self.net_wait_s, self.gpu_wait_s) if self.gpu_wait_s is not None else self.net_wait_s


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


def measure_ranks(session: Session) -> tuple[Rank, ...]:
    """One `Rank` per process that iterated a training loader and has enough steady steps, in order of rank."""
    processes = {process.pid: process for process in session.processes}
    loaders = {(loader.pid, loader.loader): loader for loader in session.loaders}
    groups: dict[tuple[int, int], list[Step]] = {}
    for step in session.steps:
        groups.setdefault((step.pid, step.loader), []).append(step)
    ranks = []
    for pid in dict.fromkeys(pid for pid, _ in groups):
        key = _training_loader(pid, groups)
        if key in loaders:
            process = processes.get(pid, Process(pid, 0, "main", 0.0))
            rank = _measure(session, process, loaders[key], groups[key], groups)
            if rank is not None:
                ranks.append(rank)
    return tuple(sorted(_together(ranks), key=lambda rank: rank.process.rank))


def _together(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks that train at the same time as the one with most steps' time; a process before or after it is another job."""
    if not ranks:
        return []
    longest = max(ranks, key=lambda rank: rank.loop_s)
    begin_s, end_s = _span(longest)

    def beside(rank: Rank) -> bool:
        first_s, last_s = _span(rank)
        return _overlap_s(begin_s, end_s, first_s, last_s) > 0.5 * min(last_s - first_s, end_s - begin_s)

    return [rank for rank in ranks if beside(rank)]


def _span(rank: Rank) -> tuple[float, float]:
    return rank.all_steps[0].start_s, rank.all_steps[-1].start_s + rank.all_steps[-1].step_s


def _training_loader(pid: int, groups: dict[tuple[int, int], list[Step]]) -> tuple[int, int]:
    """The loader whose steps the optimizer takes; without an optimizer, the one that most time goes into.

    Of loaders that each step takes a batch from, the one that is waited for longest.
    """

    def weight(key: tuple[int, int]) -> tuple[int, float]:
        steps = groups[key]
        return int(any(step.optimizer_steps for step in steps)), math.fsum(step.step_s for step in steps)

    trained = max((key for key in groups if key[0] == pid), key=weight)
    beside = [key for key in groups if key[0] == pid and key != trained and _iterated_with(groups[key], groups[trained])]
    return max([trained, *beside], key=lambda key: math.fsum(step.wait_s for step in groups[key]))


def _iterated_with(others: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Whether nearly each step takes a batch of another loader as well, as `zip(one, other)` does."""
    starts = sorted(step.start_s for step in others)
    both = sum(bisect_right(starts, step.start_s + step.step_s) > bisect_right(starts, step.start_s) for step in steps)
    return both >= TOGETHER * len(steps)


def steady_steps(steps: Sequence[Step], loader: ObservedLoader) -> list[Step]:
    """Without the steps that filling the queue distorts: the first batches of each epoch, when all workers start.

    The first `num_workers · prefetch_factor` batches are made before or while the first step runs, so they arrive at
    another pace than the rest. Short epochs keep most of their steps: at most a third is left out.
    """
    epochs: dict[int, list[Step]] = {}
    for step in steps:
        epochs.setdefault(step.epoch, []).append(step)
    kept: list[Step] = []
    for number, (_, members) in enumerate(sorted(epochs.items())):
        filling = loader.num_workers * (loader.prefetch_factor or 1) + (3 if number == 0 else 1)
        refills = number == 0 or not loader.persistent_workers
        skipped = min(filling if refills else 1, max(1, len(members) // 3))
        kept += members[skipped:]
    return kept


def _measure(
    session: Session,
    process: Process,
    loader: ObservedLoader,
    steps: list[Step],
    groups: dict[tuple[int, int], list[Step]],
) -> Rank | None:
    probes = [event for event in session.events if event.name == "probe"]
    traced = session.facts.get("source") == "kineto"  # a trace's few steps come after its own warm-up
    steady = steps if traced else [step for step in steady_steps(steps, loader) if not _overlaps_any(step, probes)]
    if len(steady) < (2 if traced else LEAST_STEPS):
        return None
    events = [event for event in session.events if event.pid == process.pid]
    others = [step for key, group in groups.items() if key[0] == process.pid and group is not steps for step in group]
    pauses, typical_s = _pauses(steady, events, others)
    starts_s = math.fsum(event.duration_s for event in events if _is_start_of(event, loader))
    usual_wait_s = _required(median([step.wait_s for step in steady]))
    first = [min(group, key=lambda step: step.start_s) for group in _by_epoch(steps).values()]
    return Rank(
        process=process,
        loader=loader,
        elsewhere=any(event.name == "iterated_elsewhere" and event.detail == f"loader {loader.loader}" for event in events),
        all_steps=tuple(steps),
        steps=tuple(steady),
        step_s=_required(mean([step.step_s for step in steady])),
        wait_s=_required(mean([step.wait_s for step in steady])),
        net_wait_s=_required(mean([net_wait_s(step) for step in steady])),
        compute_s=_required(mean([step.compute_s for step in steady])),
        typical_compute_s=typical_s,
        handover_s=_handover_s(steady, session.batches, loader),
        ready_share=_mean_known(step.ready for step in steady),
        items=_mean_known(step.items for step in steady),
        main_cpu_s=_mean_known(step.cpu_s for step in steady),
        main_queue_s=_mean_known(
            None if step.queue_s is None else step.queue_s + (step.wait_queue_s or 0.0) for step in steady
        ),
        compute_queue_s=_mean_known(step.queue_s for step in steady),
        process_cpu_s=_process_cpu_s(steady, session.batches, process, loader),
        sync_s=_mean_known(step.sync_s for step in steady),
        sync_count=_mean_known(step.sync_count for step in steady),
        h2d_s=_mean_known(step.h2d_s for step in steady),
        gpu_wait_s=_mean_known(step.gpu_wait_s for step in steady),
        gpu_step_s=_mean_known(step.gpu_step_s for step in steady),
        drained_share=_mean_known(step.drained for step in steady),
        own_s=_mean_known(None if step.collective_s is None else step.step_s - step.collective_s for step in steady),
        collective_s=_mean_known(step.collective_s for step in steady),
        forward_s=_mean_known(step.forward_s for step in steady),
        backward_s=_mean_known(step.backward_s for step in steady),
        work=_work(session.batches, process, loader, steady, session.processes),
        pauses=pauses,
        epoch_start_s=math.fsum(max(0.0, step.wait_s - usual_wait_s) for step in first) + starts_s,
        workers_start_s=starts_s,
        epochs=len(first),
        between=_between(steps, events, others, loader),
        loop_s=math.fsum(step.step_s for step in steps),
        first_batch_s=first[0].start_s + first[0].wait_s if first else None,
    )


def _is_start_of(event: Event, loader: ObservedLoader) -> bool:
    return event.name == "workers_start" and event.detail == f"loader {loader.loader}"


def _overlaps_any(step: Step, probes: list[Event]) -> bool:
    """Whether headrace's own experiment was under way; it also delays the few steps after it."""
    return any(
        step.start_s < event.start_s + 2 * event.duration_s + 0.05 and step.start_s + step.step_s > event.start_s
        for event in probes
    )


def _by_epoch(steps: Iterable[Step]) -> dict[int, list[Step]]:
    epochs: dict[int, list[Step]] = {}
    for step in steps:
        epochs.setdefault(step.epoch, []).append(step)
    return epochs


def _required(value: float | None) -> float:
    assert value is not None
    return value


def _mean_known(values: Iterable[float | None]) -> float | None:
    return mean([float(value) for value in values if value is not None])


def net_wait_s(step: Step) -> float:
    """Time in `next()` without the time in which the training thread could run but got no core."""
    return max(0.0, step.wait_s - (step.wait_queue_s or 0.0))


def _handover_s(steps: Sequence[Step], batches: Sequence[Batch], loader: ObservedLoader) -> float:
    """M: what `next()` takes when the batch is there already (unpickling, mapping, re-ordering).

    From the ready batches; with too few of them, from the time between the end of a worker's batch and the return of
    the `next()` that waited for it, sending included. The shortest waits are an upper bound.
    """
    ready = [net_wait_s(step) for step in steps if step.ready == 1]
    own = _mean_known(step.wait_cpu_s for step in steps)
    if len(ready) >= 5:
        # A ready batch is fetched through a thread of its worker: while that is busy in Python, this waits for it.
        limit_s = math.inf if own is None else HANDOVER_WAKE_S + 1.5 * own
        return min(limit_s, _required(median(ready)))
    ends = sorted(b.start_s + b.wall_s for b in batches if b.loader == loader.loader and b.worker >= 0)
    delays = []
    for step in steps:
        returned_s = step.start_s + step.wait_s
        before = bisect_right(ends, returned_s)
        if before and ends[before - 1] > step.start_s:
            delays.append(returned_s - ends[before - 1])
    shortest_s = percentile([net_wait_s(step) for step in steps], 0.02)
    return min(shortest_s, _required(median(delays))) if delays else shortest_s


def _process_cpu_s(steps: Sequence[Step], batches: Sequence[Batch], process: Process, loader: ObservedLoader) -> float | None:
    """CPU seconds of the training process per step, without the making of batches (`num_workers=0`)."""
    total_s = _mean_known(step.process_cpu_s for step in steps)
    if total_s is None or loader.num_workers:
        return total_s
    made = [batch.cpu_s for batch in batches if batch.pid == process.pid and batch.loader == loader.loader]
    return max(0.0, total_s - (_mean_known(made) or 0.0))


def _pauses(steps: Sequence[Step], events: Sequence[Event], others: Sequence[Step]) -> tuple[Pauses, float]:
    """Long steps, by cause, and the compute time of a step without them (a mean over the others)."""
    net = [max(0.0, step.compute_s - (step.queue_s or 0.0)) for step in steps]
    typical_s = _required(median(net))
    spread_s = _required(median([abs(value - typical_s) for value in net]))
    limit_s = typical_s + max(PAUSE_FACTOR * typical_s, 6 * spread_s, 0.004)
    lost = {"gc": 0.0, "save": 0.0, "compile": 0.0, "other": 0.0, "unknown": 0.0}
    long: list[int] = []
    longest_s = 0.0
    for number, (step, value) in enumerate(zip(steps, net, strict=True)):
        known = _named_pauses(step, events, others)
        excess_s = max(0.0, value - typical_s)
        if value > limit_s:
            long.append(number)
            longest_s = max(longest_s, excess_s)
            named_s = math.fsum(known.values())
            scale = min(1.0, excess_s / named_s) if named_s > 0 else 0.0
            for name, duration_s in known.items():
                lost[name] += duration_s * scale
            lost["unknown"] += max(0.0, excess_s - named_s)
        else:
            lost["gc"] += known["gc"]
    count = len(steps)
    ordinary = [step.compute_s for step, value in zip(steps, net, strict=True) if value <= limit_s]
    pauses = Pauses(
        gc_s=lost["gc"] / count,
        save_s=lost["save"] / count,
        other_loader_s=lost["other"] / count,
        unknown_s=lost["unknown"] / count,
        period=_period(long),
        count=len(long),
        longest_s=longest_s,
        compile_s=lost["compile"] / count,
    )
    return pauses, mean(ordinary) or typical_s


def _named_pauses(step: Step, events: Sequence[Event], others: Sequence[Step]) -> dict[str, float]:
    """Seconds of this step's compute within gc, torch.save and torch.compile, and within steps of another loader."""
    begin_s, end_s = step.start_s + step.wait_s, step.start_s + step.step_s
    known = {"gc": 0.0, "save": 0.0, "compile": 0.0, "other": 0.0}
    for event in events:
        if event.name in ("gc", "save", "compile"):
            known[event.name] += _overlap_s(begin_s, end_s, event.start_s, event.start_s + event.duration_s)
    for other in others:
        known["other"] += _overlap_s(begin_s, end_s, other.start_s, other.start_s + other.step_s)
    return known


def _between(steps: Sequence[Step], events: Sequence[Event], others: Sequence[Step], loader: ObservedLoader) -> Between:
    """What lies between the epochs of a loader: the end of one's last step, the start of the next one's first `next()`."""
    epochs = sorted(_by_epoch(steps).values(), key=lambda group: group[0].start_s)
    all_s = other_s = wait_s = save_s = 0.0
    for before, after in pairwise(epochs):
        begin_s, end_s = before[-1].start_s + before[-1].step_s, after[0].start_s
        for event in events:
            inside_s = _overlap_s(begin_s, end_s, event.start_s, event.start_s + event.duration_s)
            save_s += inside_s if event.name == "save" else 0.0
            all_s -= inside_s if _is_start_of(event, loader) else 0.0
        other_s += math.fsum(_overlap_s(begin_s, end_s, step.start_s, step.start_s + step.step_s) for step in others)
        wait_s += math.fsum(_overlap_s(begin_s, end_s, step.start_s, step.start_s + step.wait_s) for step in others)
        all_s += max(0.0, end_s - begin_s)
    return Between(max(0.0, all_s), other_s, wait_s, save_s)


def _overlap_s(begin_s: float, end_s: float, other_begin_s: float, other_end_s: float) -> float:
    return max(0.0, min(end_s, other_end_s) - max(begin_s, other_begin_s))


def _period(positions: Sequence[int]) -> int | None:
    """Steps between long steps, where the most common distance explains at least 60 % of at least two distances."""
    gaps = [after - before for before, after in pairwise(positions) if after - before > 1]
    if len(gaps) < 2:
        return None
    period, _ = Counter(gaps).most_common(1)[0]
    near = [gap for gap in gaps if abs(gap - period) <= max(1, 0.05 * period)]
    return period if len(near) >= 0.6 * len(gaps) else None


def _work(
    batches: Sequence[Batch], process: Process, loader: ObservedLoader, steps: Sequence[Step], processes: Sequence[Process]
) -> Work | None:
    """The mean batch made while the steady steps ran."""
    own = {item.pid for item in processes if item.role == "worker" and item.parent_pid == process.pid} | {process.pid}
    begin_s, end_s = steps[0].start_s, steps[-1].start_s + steps[-1].step_s
    mine = [batch for batch in batches if batch.pid in own and batch.loader == loader.loader]
    if not mine:  # spawned by a fork server: the parent is not the training process
        mine = [batch for batch in batches if batch.loader == loader.loader and batch.worker >= 0]
    made = [batch for batch in mine if begin_s <= batch.start_s <= end_s and not batch.alone] or mine
    if not made:
        return None
    late = [batch.idle_s for batch in made if batch.idle_s is not None]
    other = _mean_known(batch.other_cpu_s for batch in made)
    return Work(
        wall_s=_required(mean([batch.wall_s for batch in made])),
        cpu_s=_mean_known(batch.cpu_s for batch in made),
        queue_s=_mean_known(batch.queue_s for batch in made),
        blocked_s=_mean_known(batch.blocked_s for batch in made),
        collate_s=_mean_known(batch.collate_s for batch in made) or 0.0,
        collate_cpu_s=_mean_known(batch.collate_cpu_s for batch in made) or 0.0,
        other_cpu_s=other or 0.0,
        socket_s=_mean_known(batch.socket_s for batch in made) or 0.0,
        read_bytes=_mean_known(batch.read_bytes for batch in made),
        disk_bytes=_mean_known(batch.disk_bytes for batch in made),
        batches=len(made),
        alone_ratio=_alone_ratio(mine),
        late_share=mean([float(idle_s < 0.002) for idle_s in late]),
    )


def _alone_ratio(batches: Sequence[Batch]) -> float | None:
    """Blocked time of batches beside other workers' over that of one made alone, by the same worker and of the same kind.

    None where the other workers did not pause for it, or too few batches around it were read as it was (from a disk, or not).
    """
    for single in (batch for batch in reversed(batches) if batch.alone):
        begin_s, end_s = single.start_s, single.start_s + single.wall_s
        beside = [batch for batch in batches if batch.pid != single.pid]
        disturbed_s = math.fsum(_overlap_s(begin_s, end_s, batch.start_s, batch.start_s + batch.wall_s) for batch in beside)
        if not single.blocked_s or disturbed_s > UNDISTURBED * single.wall_s:
            continue
        own = [batch for batch in batches if batch.pid == single.pid and not batch.alone][1:]
        alike = [batch for batch in own if _is_cold(batch) == _is_cold(single) and batch.blocked_s is not None]
        near = sorted(alike, key=lambda batch: abs(batch.start_s - single.start_s))[2:AROUND]
        if len(near) >= LEAST_AROUND:
            return _required(median([batch.blocked_s or 0.0 for batch in near])) / single.blocked_s
    return None


def _is_cold(batch: Batch) -> bool:
    """Whether most of what it read came from a disk."""
    return bool(batch.read_bytes and batch.disk_bytes) and 2 * (batch.disk_bytes or 0) > (batch.read_bytes or 0)


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
        core_busy=tuple(_required(mean([row[core] for row in core_rows])) for core in range(width)),
        own_cores=_mean_known(sample.own_cores for sample in samples),
        foreign_cores=_mean_known(sample.foreign_cores for sample in samples),
        queue_share=_mean_known(sample.queue_share for sample in samples),
        throttled_share=_mean_known(sample.throttled_share for sample in samples),
        gpu_busy=_mean_known(gpu.busy for gpu in gpu_samples),
        gpu_throttle_share=mean([float(bool(reason)) for reason in reasons]),
        gpu_throttle=tuple(sorted({name for reason in reasons for name in reason})),
        gpu_clock_share=_required(median(clocks)) / highest if clocks and highest else None,
        network_bytes_s=_mean_known(
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
    slope, fit = _line(points)
    third = len(points) // 3
    slowest = min(_line(part)[0] for part in (points[:third], points[third : 2 * third], points[2 * third :]))
    settled = points[0][0] >= SETTLED_S
    added = points[-1][1] - points[0][1]
    steady = fit > 0.9 and slope > 0 and slowest > 0.4 * slope
    return slope if steady and (settled or added > FAST_GROWTH * points[0][1]) else 0.0


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the least-squares line, and r²."""
    count = len(points)
    mean_x = math.fsum(x for x, _ in points) / count
    mean_y = math.fsum(y for _, y in points) / count
    xx = math.fsum((x - mean_x) ** 2 for x, _ in points)
    yy = math.fsum((y - mean_y) ** 2 for _, y in points)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return (xy / xx, xy * xy / (xx * yy)) if xx > 0 and yy > 0 else (0.0, 0.0)
