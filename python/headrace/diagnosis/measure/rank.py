"""One training process and its loader: mean times per steady step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.diagnosis.measure.batch_cost import BatchCost, Recorded, measure_batch_cost
from headrace.diagnosis.measure.enough_steps import TIMED_STEPS, has_rate
from headrace.diagnosis.measure.pauses import EpochGaps, Pauses, is_start_of, measure_epoch_gaps, measure_pauses, steps_by_epoch
from headrace.diagnosis.measure.stats import Spans, mean, mean_of_known, median, overlap_s, percentile, required
from headrace.session.inside_next import InsideNext, read_inside_next
from headrace.session.model import ObservedLoader, Process, Session, Step

__all__ = ["Rank", "exposed_waits_s", "has_native_threads", "measure_ranks"]

LEAST_TRACED_STEPS = 2
"""A profiler's trace needs only this many steps: they were recorded after a warm-up."""

HANDOVER_WAKE_S = 0.0005
"""Allow this time for waking up during a hand-over. The rest of a hand-over is CPU time."""

HANDED_S, HANDED_TIMES, HANDED_BYTES_S = 0.005, 3.0, 0.2e9
"""A hand-over takes at most the first, this many times the CPU time of sending, and the bytes at this rate, added up."""

AT_ONCE_S = 0.001
"""Count a batch as there at once when the wait is at most this time and twice the usual hand-over."""

TOGETHER_SHARE = 0.8
"""Treat two loaders as iterated together when at least this share of the steps takes a batch of both."""

MOST_SKIPPED = 3
"""Leave out at most one step in this many at the start of an epoch."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One training process and its loader. Times are means per steady step in seconds; None means not measured.

    elsewhere: whether another thread than the training thread iterates the loader.
    all_steps, steps: all steps, and the steady ones that the means are taken over.
    step_s = wait_s + compute_s: the time in `next()`, and the rest.
    exposed_wait_s: wait for input that delays the device: `wait_s`, or on the GPU's clock where that is less.
    net_wait_s: `wait_s` without queueing for a core.
    typical_compute_s: mean compute of the steps without a pause.
    handover_s: what `next()` takes when the batch is ready.
    inside_next: what the training thread does in `next()`, by its sampled stacks.
    next_s: the part of `wait_s` that neither the making of a batch nor its hand-over explains: the sampler, pinning, another
        thread with the interpreter, the start and the end of an iterator's workers.
    ready_share: share of the batches that were ready.
    items: images per batch.
    main_cpu_s, main_queue_s: training thread on a core, and waiting for one; `compute_queue_s` outside `next()` only.
    process_cpu_s: CPU time of the whole training process.
    sync_s, sync_count, h2d_s: waits for the device, their number, and copies to it.
    gpu_wait_s, gpu_step_s: GPU idle because of `next()`, and GPU time of a step, on the GPU's clock.
    drained_share: share of the steps before which the device had finished all work.
    after_s, after_cpu_s, after_queue_s: from the end of the optimizer's step to the end of the step, and the training thread
        on a core and waiting for one meanwhile. Steps without an optimizer's step count as 0; None where no optimizer was seen.
    own_s, collective_s: the step without waiting for other ranks, and that wait.
    forward_s, backward_s: phases of a step, with several ranks only.
    batch_cost: mean cost of making a batch.
    epoch_start_s, workers_start_s: summed over the run: starts of epochs beyond a usual wait, and starts of workers in them.
    loop_s: all steps of the run together.
    first_batch_s: when the first batch arrived, seconds since the command was started.
    """

    process: Process
    loader: ObservedLoader
    elsewhere: bool
    all_steps: tuple[Step, ...]
    steps: tuple[Step, ...]
    step_s: float
    wait_s: float
    exposed_wait_s: float
    net_wait_s: float
    compute_s: float
    typical_compute_s: float
    handover_s: float
    inside_next: InsideNext | None
    next_s: float
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
    after_s: float | None
    after_cpu_s: float | None
    after_queue_s: float | None
    forward_s: float | None
    backward_s: float | None
    batch_cost: BatchCost | None
    pauses: Pauses
    epoch_start_s: float
    workers_start_s: float
    epochs: int
    epoch_gaps: EpochGaps
    loop_s: float
    first_batch_s: float | None

    @property
    def at_once_share(self) -> float:
        """Share of the batches that came without a wait beyond the hand-over."""
        at_once_s = 2 * self.handover_s + AT_ONCE_S
        return sum(net_wait_s(step) <= at_once_s for step in self.steps) / len(self.steps)

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch as the training process receives it; 0 where unknown."""
        return next((step.batch_bytes for step in self.steps if step.batch_bytes), 0)

    @property
    def host_work_s(self) -> float:
        """Compute time of a step in which the script does not wait for the device."""
        return max(0.0, self.typical_compute_s - (self.sync_s or 0.0))

    @property
    def workers(self) -> int:
        """Number of worker processes of the training loader; of headrace's own loader the number of its threads."""
        return self.loader.num_workers

    @property
    def worker_word(self) -> str:
        """What makes the batches: "loader thread" or "worker"."""
        return "loader thread" if has_native_threads(self.loader) else "worker"

    @property
    def exposed_net_wait_s(self) -> float:
        """Seconds per step that input delays the device, without the time in which the training thread queued for a core."""
        return min(self.net_wait_s, self.exposed_wait_s)

    @property
    def exposed_next_s(self) -> float:
        """The part of `next_s` that delays the device; with queueing for a core where that is a cost of the input.

        What a GPU hides of `next()` it hides of each part alike.
        """
        if self.makes_batches:
            whole_s, exposed_s = self.wait_s, self.exposed_wait_s
        else:
            whole_s, exposed_s = self.net_wait_s, self.exposed_net_wait_s
        return min(exposed_s, (self.next_s + self.next_queue_s) * exposed_s / whole_s) if whole_s else 0.0

    @property
    def exposed_handover_s(self) -> float:
        """The part of `handover_s` that delays the device; 0 without workers."""
        return self.exposed_of_handover_s(self.handover_s)

    def exposed_of_handover_s(self, handover_s: float) -> float:
        """Return how many seconds of a hand-over delay the device; 0 without workers."""
        if not self.workers or not self.net_wait_s:
            return 0.0
        return min(handover_s, self.net_wait_s) * self.exposed_net_wait_s / self.net_wait_s

    @property
    def next_queue_s(self) -> float:
        """The time for which the training thread waits for a core beside `next_s`, where it makes the batches itself.

        What a batch waits for a core is known where its cost was measured; the rest is at most in proportion to `next_s`.
        """
        if not self.makes_batches or not self.net_wait_s:
            return 0.0
        queued_s = self.wait_s - self.net_wait_s
        of_batch_s = (self.batch_cost.queue_s if self.batch_cost is not None else None) or 0.0
        return min(queued_s * self.next_s / self.net_wait_s, max(0.0, queued_s - of_batch_s))

    @property
    def exposed_queue_s(self) -> float:
        """Seconds per step that the training thread waits for a core in `next()`, as far as that delays the device."""
        if self.makes_batches:
            return (self.wait_s - self.net_wait_s) * self.exposed_wait_s / self.wait_s if self.wait_s else 0.0
        return self.exposed_wait_s - self.exposed_net_wait_s

    @property
    def core_wait_s(self) -> float:
        """Seconds per step for which the device waits because the training thread waits for a core, as far as measured."""
        return (self.compute_queue_s or 0.0) + self.exposed_queue_s

    @property
    def held_s(self) -> float:
        """The part of `next_s` in which another thread kept the training thread from the interpreter."""
        inside = self.inside_next
        if inside is None or not inside.is_held or (self.loader.passes and self.workers):
            return 0.0
        return max(0.0, self.next_s - inside.own_share * self.net_wait_s)

    @property
    def pause_queue_s(self) -> float:
        """Seconds per step in which the training thread waits for a core inside a pause: they lie in pauses as in the rest."""
        paused = (self.pauses.gc_s + self.pauses.periodic_s) / self.compute_s if self.compute_s > 0 else 0.0
        return (self.compute_queue_s or 0.0) * min(1.0, paused)

    @property
    def makes_batches(self) -> bool:
        """Whether the training thread itself makes the batches, so that its queueing inside `next()` is a cost of the input."""
        return not self.workers and (
            self.loader.family == "none" or (self.loader.family == "torch" and self.batch_cost is not None)
        )


def has_native_threads(loader: ObservedLoader) -> bool:
    """Return whether threads of the training process make the batches: `headrace.Loader`."""
    return loader.family == "headrace"


def measure_ranks(session: Session) -> tuple[Rank, ...]:
    """Return one `Rank` per training process of the job, in order of rank number.

    A process needs enough steady steps for a rate; if none has, all processes with timed steps count. A process that trains
    before or after the longest one is left out.
    """
    processes = {process.pid: process for process in session.processes}
    loaders = {(loader.pid, loader.loader): loader for loader in session.loaders}
    of_process: dict[int, dict[int, list[Step]]] = {}
    for step in session.steps:
        of_process.setdefault(step.pid, {}).setdefault(step.loader, []).append(step)
    ranks, recorded = [], Recorded(session)
    for pid, groups in of_process.items():
        number = _training_loader(groups)
        if (pid, number) in loaders:
            process = processes.get(pid, Process(pid, 0, "main", 0.0))
            rank = _measure(recorded, process, loaders[pid, number], groups[number], groups)
            if rank is not None:
                ranks.append(rank)
    measured = [rank for rank in ranks if has_rate(len(rank.steps))]  # beside these, a process of a few steps is no rank
    return tuple(sorted(_of_one_job(measured or ranks), key=lambda rank: rank.process.rank))


def _of_one_job(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks that train at the same time as the longest one. A process before or after it is another job."""
    if not ranks:
        return []
    longest = max(ranks, key=lambda rank: rank.loop_s)
    begin_s, end_s = _span(longest)

    def beside(rank: Rank) -> bool:
        first_s, last_s = _span(rank)
        return overlap_s(begin_s, end_s, first_s, last_s) > 0.5 * min(last_s - first_s, end_s - begin_s)

    return [rank for rank in ranks if beside(rank)]


def _span(rank: Rank) -> tuple[float, float]:
    return rank.all_steps[0].start_s, rank.all_steps[-1].start_s + rank.all_steps[-1].step_s


def _training_loader(groups: Mapping[int, list[Step]]) -> int:
    """Return the loader whose steps an optimizer takes; without an optimizer, the loader with most time in its steps.

    groups: the steps of each loader of a process, by its number.

    A loader with too few steps for a verdict comes last, so that a verdict does not vanish when another loader starts.
    When each step takes a batch from several loaders, return the loader with the longest waits.
    """

    def weight(number: int) -> tuple[bool, bool, float]:
        steps = groups[number]
        return len(steps) >= TIMED_STEPS, any(step.optimizer_steps for step in steps), math.fsum(step.step_s for step in steps)

    trained = max(groups, key=weight)
    beside = [number for number in groups if number != trained and _iterated_with(groups[number], groups[trained])]
    return max([trained, *beside], key=lambda number: math.fsum(step.wait_s for step in groups[number]))


def _iterated_with(others: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Return whether nearly every step takes a batch of another loader as well, as `zip(one, other)` does."""
    if len(others) < TOGETHER_SHARE * len(steps):  # steps follow one another: each batch comes in one
        return False
    starts = sorted(step.start_s for step in others)
    both = sum(bisect_right(starts, step.start_s + step.step_s) > bisect_right(starts, step.start_s) for step in steps)
    return both >= TOGETHER_SHARE * len(steps)


def steady_steps(steps: Sequence[Step], loader: ObservedLoader) -> list[Step]:
    """Return the steps without those at the start of each epoch, while the queue of batches fills.

    The first `num_workers · prefetch_factor` batches are made before or during the first step, so they arrive at another
    pace than the rest. At most a third of an epoch is left out.
    """
    steady: list[Step] = []
    for number, (_, members) in enumerate(sorted(steps_by_epoch(steps).items())):
        filling = loader.num_workers * (loader.prefetch_factor or 1) + (3 if number == 0 else 1)
        refills = number == 0 or not loader.persistent_workers
        skipped = min(filling if refills else 1, max(1, len(members) // MOST_SKIPPED))
        steady += members[skipped:]
    return steady


def _measure(
    recorded: Recorded,
    process: Process,
    loader: ObservedLoader,
    steps: list[Step],
    groups: Mapping[int, list[Step]],
) -> Rank | None:
    traced = recorded.facts.get("source") == "kineto"
    if len(steps) < (LEAST_TRACED_STEPS if traced else TIMED_STEPS):
        return None
    events = recorded.events.get(process.pid, [])
    steady = steps if traced else _measured_steps(steps, loader, recorded.probes)
    others = [step for group in groups.values() if group is not steps for step in group]
    numbers = {id(step): number for number, step in enumerate(steps)}
    pauses, typical_s = measure_pauses(steady, events, others, [numbers[id(step)] for step in steady])
    starts_s = math.fsum(event.duration_s for event in events if is_start_of(event, loader))
    usual_wait_s = required(median([step.wait_s for step in steady]))
    first = [min(group, key=lambda step: step.start_s) for group in steps_by_epoch(steps).values()]
    cost = measure_batch_cost(recorded, process, loader, steady)
    inside = read_inside_next(recorded.stacks.get(process.pid, ()), process.pid, loader)
    ends_s = recorded.ends_of(loader.loader)
    next_s = _next_s(steady, ends_s, loader, cost, inside, len(steps))
    return Rank(
        process=process,
        loader=loader,
        elsewhere=any(event.name == "iterated_elsewhere" and event.detail == f"loader {loader.loader}" for event in events),
        all_steps=tuple(steps),
        steps=tuple(steady),
        step_s=required(mean([step.step_s for step in steady])),
        wait_s=required(mean([step.wait_s for step in steady])),
        exposed_wait_s=required(mean([wait_s for wait_s, _ in exposed_waits_s(steady)])),
        net_wait_s=required(mean([net_wait_s(step) for step in steady])),
        compute_s=required(mean([step.compute_s for step in steady])),
        typical_compute_s=typical_s,
        handover_s=_handover_s(steady, ends_s, loader, next_s),
        inside_next=inside,
        next_s=next_s,
        ready_share=mean_of_known(step.ready for step in steady),
        items=mean_of_known(step.items for step in steady),
        main_cpu_s=mean_of_known(step.cpu_s for step in steady),
        main_queue_s=mean_of_known(_queued_s(step) for step in steady),
        compute_queue_s=mean_of_known(step.queue_s for step in steady),
        process_cpu_s=_process_cpu_s(steady, recorded, process, loader),
        drained_share=mean_of_known(step.drained for step in steady),
        own_s=mean_of_known(None if step.collective_s is None else step.step_s - step.collective_s for step in steady),
        **{name: _mean_after_s(steady, name) for name in AFTER},
        **{name: mean_of_known(getattr(step, name) for step in steady) for name in MEANS},
        batch_cost=cost,
        pauses=pauses,
        epoch_start_s=math.fsum(max(0.0, step.wait_s - usual_wait_s) for step in first) + starts_s,
        workers_start_s=starts_s,
        epochs=len(first),
        epoch_gaps=measure_epoch_gaps(steps, events, others, loader),
        loop_s=math.fsum(step.step_s for step in steps),
        first_batch_s=first[0].start_s + first[0].wait_s if first else None,
    )


MEANS = ("sync_s", "sync_count", "h2d_s", "gpu_wait_s", "gpu_step_s", "collective_s", "forward_s", "backward_s")
"""Fields of a step whose mean is the same field of a rank."""

AFTER = ("after_s", "after_cpu_s", "after_queue_s")
"""What is measured after the optimizer's step: fields of a step and of a rank."""


def _mean_after_s(steps: Sequence[Step], name: str) -> float | None:
    values = [getattr(step, name) for step in steps]
    return None if all(value is None for value in values) else mean([value or 0.0 for value in values])


def _measured_steps(steps: list[Step], loader: ObservedLoader, probes: Spans) -> list[Step]:
    """Return the steady steps that headrace's own experiment did not disturb; of a short session, the steps there are."""
    steady = steady_steps(steps, loader)
    undisturbed = [step for step in steady if not probes.touches(step.start_s, step.start_s + step.step_s)]
    return next(found for found in (undisturbed, steady, steps[1:]) if len(found) >= TIMED_STEPS - 1)


def exposed_waits_s(steps: Sequence[Step]) -> list[tuple[float, float]]:
    """Return the wait for input that delays the device, and the rest of the step, in seconds of each step.

    On the GPU's clock, where that was measured: the GPU may still compute earlier steps while `next()` waits. Steps without
    that clock are then left out.
    """
    known = [step for step in steps if step.gpu_wait_s is not None]
    waits = [(step, step.wait_s if step.gpu_wait_s is None else min(step.wait_s, step.gpu_wait_s)) for step in known or steps]
    return [(wait_s, step.step_s - wait_s) for step, wait_s in waits]


def net_wait_s(step: Step) -> float:
    """Return the seconds in `next()` without those in which the training thread was ready to run but had no core."""
    return max(0.0, step.wait_s - (step.wait_queue_s or 0.0))


def _queued_s(step: Step) -> float | None:
    """Return the seconds of a step in which the training thread waits for a core."""
    return None if step.queue_s is None else step.queue_s + (step.wait_queue_s or 0.0)


def _handover_s(steps: Sequence[Step], ends_s: Sequence[float], loader: ObservedLoader, next_s: float) -> float:
    """Return the seconds that `next()` takes for a ready batch (unpickling, mapping shared memory, re-ordering), less `next_s`.

    Measured on ready batches. With fewer than five of them, measured from the end of a worker's batch to the return of the
    `next()` that waited for it, sending included. The shortest waits are an upper bound.
    """
    ready = [max(0.0, net_wait_s(step) - next_s) for step in steps if step.ready == 1]
    own = mean_of_known(step.wait_cpu_s for step in steps)
    if len(ready) >= 5:
        # A thread of the worker sends the batch. While the worker is busy in Python, that thread waits for the interpreter,
        # so the wait can be longer than the hand-over.
        limit_s = math.inf if own is None else HANDOVER_WAKE_S + 1.5 * own
        return min(limit_s, required(median(ready)))
    after_s = zip(steps, _after_made_s(steps, ends_s), strict=True)
    delays = [max(0.0, delay_s - next_s) for step, delay_s in after_s if delay_s < step.wait_s]
    shortest_s = max(0.0, percentile([net_wait_s(step) for step in steps], 0.02) - next_s)
    if has_native_threads(loader):  # nothing is copied or sent: the threads fill the batch in place
        return min(shortest_s, HANDOVER_WAKE_S + 1.5 * (own or 0.0))
    return min(shortest_s, required(median(delays))) if delays else shortest_s


def _after_made_s(steps: Sequence[Step], ends: Sequence[float]) -> list[float]:
    """Return the seconds of each wait after a worker has last finished a batch: the whole wait where none did meanwhile.

    ends: when the workers of the loader finished their batches, in order.
    """
    found = []
    for step in steps:
        returned_s = step.start_s + step.wait_s
        before = bisect_right(ends, returned_s)
        is_made = before > 0 and ends[before - 1] > step.start_s
        found.append(returned_s - ends[before - 1] if is_made else step.wait_s)
    return found


def _next_s(
    steps: Sequence[Step],
    ends_s: Sequence[float],
    loader: ObservedLoader,
    cost: BatchCost | None,
    inside: InsideNext | None,
    count: int,
) -> float:
    """Return the seconds in `next()` that neither the making of a batch nor its hand-over explains (`Rank.next_s`).

    count: all steps of the loader, the steady `steps` among them. A thread that holds the interpreter makes each step of the
    hand-over slow. Beside workers this time is what is left of the wait after a batch was made, less the training thread's own
    work; without workers, what a batch is blocked.
    """
    waits_s = required(mean([net_wait_s(step) for step in steps]))
    new_iterators_s = min(waits_s, loader.passes * (loader.pass_start_s + loader.pass_stop_s) / count)
    if inside is None or not (inside.shares or inside.is_held):
        return new_iterators_s + _unexplained_s(steps, ends_s, loader, cost)
    waits_s -= new_iterators_s
    own_s, held_s = inside.own_share * waits_s, 0.0
    if inside.is_held and loader.num_workers:
        after_s = zip(steps, _after_made_s(steps, ends_s), strict=True)
        late_s = required(mean([min(net_wait_s(step), delay_s) for step, delay_s in after_s]))
        held_s = late_s - own_s - (mean_of_known(step.wait_cpu_s for step in steps) or 0.0)
    elif inside.is_held and cost is not None:
        held_s = cost.off_core_s
    return new_iterators_s + min(waits_s, own_s + max(0.0, held_s))


def _unexplained_s(steps: Sequence[Step], ends_s: Sequence[float], loader: ObservedLoader, cost: BatchCost | None) -> float:
    """Return the seconds in `next()` beside workers that no batch and no hand-over explains, where stacks do not divide it.

    0 where that is the smaller part of the wait: a hand-over has no clock of its own.
    """
    if not loader.num_workers or has_native_threads(loader) or loader.passes or cost is None:
        return 0.0
    size = median([step.batch_bytes for step in steps if step.batch_bytes]) or 0.0
    handed_s = HANDED_S + HANDED_TIMES * cost.other_cpu_s + size / HANDED_BYTES_S
    after_s = zip(steps, _after_made_s(steps, ends_s), strict=True)
    rest_s = required(mean([max(0.0, min(net_wait_s(step), delay_s) - handed_s) for step, delay_s in after_s]))
    return rest_s if rest_s > 0.5 * required(mean([net_wait_s(step) for step in steps])) else 0.0


def _process_cpu_s(steps: Sequence[Step], recorded: Recorded, process: Process, loader: ObservedLoader) -> float | None:
    """Return the CPU seconds of the training process per step, without the batches that it makes itself or in its threads."""
    total_s = mean_of_known(step.process_cpu_s for step in steps)
    if total_s is None or (loader.num_workers and not has_native_threads(loader)):
        return total_s
    made = [batch.cpu_s for batch in recorded.made_by([process.pid], loader.loader)]
    return max(0.0, total_s - (mean_of_known(made) or 0.0))
