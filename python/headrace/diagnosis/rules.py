"""The rules: from measured quantities to causes, each with its share of the step and the numbers that show it.

Every rule abstains when a signal it needs was not measured. The thresholds are constants at the top, with the reason
for each; a report prints them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.diagnosis.measure import Machine, Pauses, Rank, Work
from headrace.diagnosis.model import VERDICTS, Finding
from headrace.diagnosis.series import mean, median
from headrace.diagnosis.startup import START_WORDS, start_up
from headrace.diagnosis.step_model import StepModel
from headrace.session.model import Session

__all__ = ["Case", "causes", "unseen_input_kind"]

INPUT_SHARE = 0.07
"""Waiting for input below this share of the step is no finding (XProf: 5 % moderate, 20 % high)."""

PAUSE_SHARE = 0.04

BETWEEN_SHARE = 0.25
"""Of the training loop, spent between epochs: validation of a fifth of the images takes about a tenth."""

LONG_PAUSE_S = 0.25
"""Schedulers and disks delay single steps by less than this now and then."""

STARTUP_SHARE = 0.15

ORDINARY_START_S, LONG_START_S = 10.0, 15.0
"""Launching and importing PyTorch take 3 to 10 s on an ordinary machine; a start is long that takes so much beyond that."""

START_SHARE = 0.30
VERY_LONG_START_S = 60.0
"""Said of a job that is still running, or was cut short, too."""

H2D_SHARE = 0.12
COMMUNICATION_SHARE = 0.15
SYNC_SHARE = 0.10
OVERHEAD_SHARE = 0.40
SMALL_BATCH_BYTES = 1_000_000
"""Handing over less than this costs wake-ups and calls, not the moving of bytes."""

LEAST_IMAGE_BYTES = 1000.0
"""Less than this is no image: the bytes come another way."""

STRAGGLER_SHARE = 0.08
"""A rank's own time above the median of all ranks, over the step (TraceML warns at 10 %)."""

FOREIGN_SHARE = 0.20
"""Of the cores; with queueing that delays the step. Below it, other programs rarely matter."""

LEAST_FOREIGN_DELAY = 0.02
"""Of the step, lost to queueing beside other programs: below it they are noise, not a cause."""

QUEUE_SHARE = 0.30
"""Of a batch's making, spent waiting for a core: more threads want to run than there are cores."""

DISTORTING_SHARE = 0.10
"""A neighbour, a quota or a hot GPU goes before the causes inside the job from this share on, if it explains at least
half as much as the first of them: what they do to a job looks like a cause inside it."""

OVERSUBSCRIBED_SHARE = 0.18
"""Of the step, lost by the training thread to queueing. One busy worker beside two compute threads on two cores costs
about 0.1, which is no fault."""

NEEDED = 1.1
"""Times longer that a step takes with fewer workers, from which they are needed although they crowd the cores."""

QUOTA_SHARE = 0.05
THROTTLE_SHARE = 0.20
BUSY_SHARE = 0.85
"""Cores in use on average from which the CPU counts as full: samples of half a second hide short idle times."""

URGENT_HOURS = 1.0
"""Memory that is full this soon is the verdict, unless something slows the job down."""

GROWTH_HOURS = 12.0
"""Memory growth counts as a fault when it fills what is left within this time."""


@dataclass(frozen=True, slots=True)
class Case:
    """Everything the rules look at. `rank` is the one that sets the pace, normally rank 0."""

    session: Session
    ranks: tuple[Rank, ...]
    rank: Rank
    machine: Machine
    model: StepModel | None

    def share(self, seconds: float) -> float:
        """Of the step."""
        return max(0.0, min(1.0, seconds / self.rank.step_s)) if self.rank.step_s > 0 else 0.0


def causes(case: Case) -> list[Finding]:
    """All causes found, the one that sets the pace first. COMPUTE_BOUND when nothing else does."""
    distorting = [found for rule in (_quota, _thermal, _external) if (found := rule(case))]
    others = [
        found
        for rule in (
            _straggler,
            _gc,
            _pauses,
            _startup,
            _input,
            _h2d,
            _communication,
            _sync,
            _overhead,
            _oversubscribed,
        )
        if (found := rule(case))
    ]
    # What a neighbour, a quota or a hot GPU does to the job shows up as some other cause as well.
    others.sort(key=lambda found: -(found.share or 0.0))
    leading = others[0].share or 0.0 if others else 0.0
    first = [found for found in distorting if (found.share or 0.0) >= max(DISTORTING_SHARE, 0.5 * leading)]
    others = sorted([*others, *(found for found in distorting if found not in first)], key=lambda f: -(f.share or 0.0))
    growth = _growth(case)
    filling = _hours_to_full(case)
    compute = _compute(case, others)
    ordered = [*first, *others]
    if not any((found.share or 0.0) >= INPUT_SHARE for found in ordered):
        ordered = [compute, *ordered]
        if growth and filling is not None and filling < URGENT_HOURS:
            return [growth, *ordered]
    return [*ordered, *([growth] if growth else [])]


def finding(kind: str, share: float | None, *evidence: str) -> Finding:
    """A finding with the verdict's own words as its summary."""
    return Finding(kind, None if share is None else round(min(1.0, max(0.0, share)), 4), evidence, summary=VERDICTS[kind])


# Things outside the job.


def _quota(case: Case) -> Finding | None:
    throttled = case.machine.throttled_share
    if throttled is None:
        return None
    # The kernel counts each core's stop. One busy core loses that share of the time; of several, it is the share of what
    # they would have run.
    share = throttled / max(1.0, throttled + (case.machine.own_cores or 0.0))
    if share < QUOTA_SHARE:
        return None
    quota = case.session.host.quota_cores
    limit = f"the limit is {quota:.2g} cores" if quota else "the cgroup has a CPU limit"
    return finding("CPU_QUOTA", share, f"the kernel stopped the job for {share:.0%} of the time; {limit}")


def _thermal(case: Case) -> Finding | None:
    machine = case.machine
    if not machine.gpu_throttle_share or machine.gpu_throttle_share < THROTTLE_SHARE:
        return None
    slower = _slow_down(case.rank)
    clock = machine.gpu_clock_share
    share = max(1 - clock if clock is not None else 0.0, slower or 0.0, 0.1)
    words = [f"{machine.gpu_throttle_share:.0%} of the GPU samples were throttled: {', '.join(machine.gpu_throttle)}"]
    if clock is not None:
        words.append(f"the clock was at {clock:.0%} of its maximum")
    change = change_point(case.rank)
    if slower and change is not None:
        words.append(f"compute is {slower:.0%} of the step longer from step {change} on")
    return finding("THERMAL_THROTTLE", share, *words)


def change_point(rank: Rank) -> int | None:
    """The step from which compute takes at least 15 % longer to the end, or None: the best single split of means."""
    values = [step.compute_s for step in rank.steps]
    if len(values) < 20:
        return None
    best, found = 0.0, None
    total, before = sum(values), 0.0
    for index in range(1, len(values)):
        before += values[index - 1]
        if 5 <= index <= len(values) - 5:
            left, right = before / index, (total - before) / (len(values) - index)
            gain = (right - left) ** 2 * index * (len(values) - index)
            if right > 1.15 * left and gain > best:
                best, found = gain, index
    return None if found is None else found + len(rank.all_steps) - len(values)


def _slow_down(rank: Rank) -> float | None:
    change = change_point(rank)
    if change is None:
        return None
    index = change - (len(rank.all_steps) - len(rank.steps))
    early = median([step.compute_s for step in rank.steps[:index]]) or 0.0
    late = median([step.compute_s for step in rank.steps[index:]]) or 0.0
    return max(0.0, late - early) / late if late > 0 else None


def _external(case: Case) -> Finding | None:
    foreign = case.machine.foreign_share
    if foreign is None or foreign < FOREIGN_SHARE:
        return None
    delayed = _queueing_s(case)
    if delayed is None:
        return None
    share = case.share(delayed)
    if share < LEAST_FOREIGN_DELAY:
        return None  # they are there, and not in the way
    queued = case.machine.queue_share
    words = [f"other programs use {case.machine.foreign_cores:.1f} of {case.machine.cores:g} cores"]
    if queued is not None:
        words.append(f"the job's threads wait for a core {queued:.0%} of the time in which they could run")
    words.append(f"that delays each step by about {_ms(delayed)}")
    return finding("EXTERNAL_CPU", share, *words)


def _queueing_s(case: Case) -> float | None:
    """Seconds of the step lost to waiting for a core: in the training process, and through late batches."""
    rank = case.rank
    if rank.main_queue_s is None and (rank.work is None or rank.work.queue_s is None):
        return None
    lost = rank.main_queue_s or 0.0
    if rank.work is not None and rank.work.queue_s is not None and rank.work.wall_s > 0:
        lost += rank.exposed_wait_s * rank.work.queue_s / rank.work.wall_s
    return lost


# Ranks.


def _straggler(case: Case) -> Finding | None:
    """The rank whose own time (all but the wait for the others) is longest, and the phase it differs in."""
    known = [rank for rank in case.ranks if rank.own_s is not None]
    if len(known) < 2:
        return None
    slow = max(known, key=lambda rank: rank.own_s or 0.0)
    rest = [rank for rank in known if rank is not slow]
    usual_s = median([rank.own_s or 0.0 for rank in rest]) or 0.0
    extra_s = (slow.own_s or 0.0) - usual_s
    share = case.share(extra_s)
    if share < STRAGGLER_SHARE:
        return None
    phase, longer_s = slow_phase(slow, rest)
    late = straggler_input(case)
    return finding(
        "RANK_STRAGGLER",
        share,
        f"rank {slow.process.rank} needs {_ms(slow.own_s or 0.0)} per step for its own part, the others {_ms(usual_s)}",
        f"it is slow in {phase} ({_ms(longer_s)} longer)",
        f"the others wait {_ms(median([rank.collective_s or 0.0 for rank in rest]) or 0.0)} per step for its gradients",
        *(late[1] if late is not None else ()),
    )


def straggler_input(case: Case) -> tuple[str, tuple[str, ...]] | None:
    """What a rank waits for that is slow in its loader: the kind of cause, and what shows it. None for other stragglers."""
    rest = [rank for rank in case.ranks if rank is not case.rank]
    if case.rank.work is None or not rest or slow_phase(case.rank, rest)[0] != LOADER_PHASE:
        return None
    return _input_kind(case, case.rank.work)


LOADER_PHASE = "the loader"


def slow_phase(slow: Rank, rest: Sequence[Rank]) -> tuple[str, float]:
    """The phase in which `slow` differs most from the median of the rest, and by how many seconds."""

    def phases(rank: Rank) -> dict[str, float]:
        forward, backward = rank.forward_s or 0.0, rank.backward_s or 0.0
        other = max(0.0, rank.compute_s - forward - backward - (rank.collective_s or 0.0))
        return {LOADER_PHASE: rank.wait_s, "forward": forward, "backward": backward, "the rest of the step": other}

    usual = {name: median([phases(rank)[name] for rank in rest]) or 0.0 for name in phases(slow)}
    longer = {name: value - usual[name] for name, value in phases(slow).items()}
    name = max(longer, key=lambda phase: longer[phase])
    return name, longer[name]


def _communication(case: Case) -> Finding | None:
    if len(case.ranks) < 2:
        return None
    waits = [rank.collective_s for rank in case.ranks if rank.collective_s is not None]
    if len(waits) < len(case.ranks):
        return None
    common = min(waits)  # even the slowest rank waits this long: not a straggler, the exchange itself
    share = case.share(common)
    if share < COMMUNICATION_SHARE:
        return None
    return finding("COMMUNICATION", share, f"every rank waits at least {_ms(common)} per step for gradients to arrive")


# Pauses.


def _gc(case: Case) -> Finding | None:
    lost = case.rank.pauses.gc_s
    share = case.share(lost)
    if share < PAUSE_SHARE:
        return None
    longest = max(
        (event.duration_s for event in case.session.events if event.name == "gc" and event.pid == case.rank.process.pid),
        default=0.0,
    )
    return finding(
        "GC_PAUSE",
        share,
        f"garbage collection takes {_ms(lost)} per step in the mean; the longest stopped training for {_ms(longest)}",
    )


def _pauses(case: Case) -> Finding | None:
    """Of pauses in the steps and between the epochs, those that take the larger share."""
    found = [finding for rule in (_periodic, _between_epochs) if (finding := rule(case)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _periodic(case: Case) -> Finding | None:
    pauses = case.rank.pauses
    share = case.share(pauses.periodic_s)
    if share < PAUSE_SHARE or pauses.count < 2:
        return None
    parts = {
        "torch.save": pauses.save_s,
        "another loader (validation)": pauses.other_loader_s,
        "torch.compile, which compiles again": pauses.compile_s,
        "unknown": pauses.unknown_s,
    }
    cause = max(parts, key=lambda name: parts[name])
    if cause == "unknown" and pauses.period is None and not _few_and_long(pauses, case.rank.typical_compute_s):
        return None  # irregular and nameless: noise, not a stall
    every = f"every {pauses.period} steps" if pauses.period else f"{pauses.count} times"
    return finding(
        "PERIODIC_STALL",
        share,
        f"{every} a step takes up to {_ms(pauses.longest_s)} longer, {_ms(pauses.periodic_s)} per step in the mean",
        f"most of it is {cause}"
        if cause != "unknown"
        else "what happens there was not seen (no torch.save, gc or other loader)",
    )


def _between_epochs(case: Case) -> Finding | None:
    """Validation and checkpoints between the epochs are in no step; of the run they can be a large part."""
    rank, between = case.rank, case.rank.between
    share = between.all_s / max(1e-9, rank.loop_s + rank.workers_start_s + between.all_s)
    if rank.epochs < 2 or share < BETWEEN_SHARE:
        return None
    validation = "in the steps of another loader (validation)"
    if between.other_wait_s > INPUT_SHARE * between.other_loader_s:
        validation += f", {between.other_wait_s / between.other_loader_s:.0%} of them waiting for its input"
    parts = {validation: between.other_loader_s, "in torch.save": between.save_s}
    named = ", ".join(f"{_ms(seconds)} {words}" for words, seconds in parts.items() if seconds > 0.03 * between.all_s)
    found = finding(
        "PERIODIC_STALL",
        share,
        f"{share:.0%} of the time from the first step to the last passes between the {rank.epochs} epochs: "
        f"{_ms(between.all_s)} in all{f', of it {named}' if named else ''}",
    )
    return replace(found, share_of="run")


def _few_and_long(pauses: Pauses, typical_s: float) -> bool:
    """Two or three pauses, too few for a period to show, but each far longer than a step."""
    return pauses.count <= 3 and pauses.longest_s > max(LONG_PAUSE_S, 5 * typical_s)


def _startup(case: Case) -> Finding | None:
    """Of the beginning of the job and of its epochs, the one that takes the larger share."""
    found = [finding for rule in (_slow_start, _slow_epochs) if (finding := rule(case)) is not None]
    return max(found, key=lambda item: item.share or 0.0, default=None)


def _slow_start(case: Case) -> Finding | None:
    """The time until the first step is done, of a job that ran to its end; of one that was cut short it has no share."""
    parts = start_up(case.session, case.rank)
    start_s, whole_s = sum(parts.values()), case.session.duration_s
    ended = case.session.exit_code == 0 and whole_s is not None
    share = min(1.0, start_s / whole_s) if ended and whole_s else None
    beyond_s = start_s - min(ORDINARY_START_S, parts.get("launch", 0.0) + parts.get("imports", 0.0))
    if beyond_s < LONG_START_S or (share < START_SHARE if share is not None else start_s < VERY_LONG_START_S):
        return None
    longest = sorted(parts.items(), key=lambda item: -item[1])
    words = ", ".join(f"{_ms(seconds)} {START_WORDS[name]}" for name, seconds in longest if seconds >= 0.03 * start_s)
    of_run = f", {share:.0%} of the run" if share is not None else ""
    details = [
        f"{event.name}: {event.detail}"
        for event in case.session.events
        if event.pid == case.rank.process.pid and event.name in ("imports", "download") and event.detail
    ]
    found = finding("STARTUP", share, f"the first step is done after {_ms(start_s)}{of_run}: {words}", *details)
    return replace(found, share_of="run")


def _slow_epochs(case: Case) -> Finding | None:
    rank = case.rank
    if rank.epochs < 2:
        return None
    share = min(1.0, rank.epoch_start_s / max(1e-9, rank.loop_s + rank.workers_start_s))
    if share < STARTUP_SHARE:
        return None
    again = ""
    if rank.loader.remade:
        again = f"; the script made its DataLoader {rank.loader.remade + 1} times, and its workers with it"
    elif rank.workers and not rank.loader.persistent_workers:
        again = "; persistent_workers is off, so workers are started anew each time"
    found = finding(
        "STARTUP",
        share,
        f"each of {rank.epochs} epochs takes {rank.epoch_start_s / rank.epochs:.2g} s before its first step{again}",
    )
    return replace(found, share_of="run")


# Input.


def _input(case: Case) -> Finding | None:
    rank, work = case.rank, case.rank.work
    if _is_small_handover(rank):
        return None
    share = case.share(_input_wait_s(case))
    if share < INPUT_SHARE:
        return None
    if _workers_are_needed(case):  # what they take from the training thread is what making batches costs, too
        share = min(1.0, share + case.share(rank.main_queue_s or 0.0))
    kind, evidence = _input_kind(case, work) if work is not None else unseen_input_kind(case)
    ready = f"; {rank.at_once_share:.0%} of the batches came at once" if rank.workers else ""
    what = "what comes before the forward pass" if rank.loader.family == "none" else "next()"
    waits = f"{what} takes {_ms(_common_wait_s(case))} of each {_ms(rank.step_s)} step{ready}"
    return finding(kind, share, waits, *evidence)


def _common_wait_s(case: Case) -> float:
    """What every rank waits for input per step: those that have their batches wait for one that has not, a straggler."""
    return min(rank.exposed_wait_s for rank in case.ranks)


def _input_wait_s(case: Case) -> float:
    """The same, taking over ready batches left out where that is little."""
    rank = case.rank
    return max(0.0, _common_wait_s(case) - (rank.handover_s if _handover_is_small(rank) else 0.0))


def _workers_are_needed(case: Case) -> bool:
    """Whether as many as leave the training thread a core would be slower than today's: too much work, not too many threads."""
    model, cores = case.model, case.machine.cores
    if model is None or not cores or model.workers < 2:
        return False
    return model.changed(workers=fewer(model.workers, cores)).step_s > NEEDED * case.rank.step_s


def fewer(workers: int, cores: float) -> int:
    """Workers that leave a core to the training thread, one fewer at least."""
    return max(1, min(workers - 1, int(cores) - 1))


def _is_small_handover(rank: Rank) -> bool:
    """Whether all of the wait is taking over batches that are ready and small: overhead of a small step, not input."""
    size = next((step.batch_bytes for step in rank.steps if step.batch_bytes), 0)
    in_time = rank.ready_share is not None and rank.ready_share > 0.9
    return in_time and size < SMALL_BATCH_BYTES and rank.handover_s > 0.6 * rank.net_wait_s


def unseen_input_kind(case: Case) -> tuple[str, tuple[str, ...]]:
    """Batches made where no hook sees it, in native threads of the training process: its CPU use tells something."""
    rank, machine = case.rank, case.machine
    if rank.loader.family == "kineto":
        kind = "CPU_PREP" if rank.workers else "NO_OVERLAP"
        return kind, ("a trace does not show what makes batches slow, CPU or storage: run headrace diagnose to tell",)
    made_s = mean([step.wait_cpu_s for step in rank.steps if step.wait_cpu_s is not None]) or 0.0
    if rank.loader.family == "none" and made_s > 0.5 * rank.net_wait_s:
        words = f"the training thread itself works for {_ms(made_s)} of that: it makes the batch, or does what else is there"
        return "NO_OVERLAP", (words,)
    used = (rank.process_cpu_s or 0.0) / rank.step_s
    makers = "code of the script's own makes" if rank.loader.family == "none" else "the loader's own threads make"
    words = f"{makers} the batches; the training process uses {used:.1f} cores"
    ours = machine.own_cores is None or machine.own_cores >= 0.5 * (machine.cores or 1.0)
    if machine.busy_share is not None and machine.busy_share >= BUSY_SHARE and ours:
        return "CPU_SATURATED", (words, f"the cores are {machine.busy_share:.0%} busy")
    if used > 0.5 or machine.busy_share is None:
        return "CPU_PREP", (words,)
    return "STORAGE_LATENCY", (f"{words}, so the threads seem to wait for storage",)


def _handover_is_small(rank: Rank) -> bool:
    """Whether taking a ready batch over costs little; otherwise it is itself the input problem."""
    return rank.handover_s < INPUT_SHARE * rank.step_s


def _input_kind(case: Case, work: Work) -> tuple[str, tuple[str, ...]]:
    rank = case.rank
    parts = input_parts(work)
    split = ", ".join(f"{_ms(seconds)} {name}" for name, seconds in parts.items() if seconds >= 0.01 * work.wall_s)
    made = f"making a batch takes {_ms(work.wall_s)}: {split}"
    if rank.workers == 0:
        return "NO_OVERLAP", (made, "num_workers=0: the device idles while a batch is made")
    transport_s = rank.handover_s + (work.collate_s + work.other_cpu_s) / rank.workers
    if transport_s > 0.5 * (rank.handover_s + work.wall_s / rank.workers + work.other_cpu_s / rank.workers):
        size = next((step.batch_bytes for step in rank.steps if step.batch_bytes), None)
        words = f"; a batch has {size / 1e6:.0f} MB" if size else ""
        return "COLLATE_IPC", (made, f"collating and handing over take {_ms(transport_s)} per batch{words}")
    blocked_s, queue_s, cpu_s = parts["blocked"], parts["queueing for a core"], parts["on a core"]
    if blocked_s >= max(queue_s, cpu_s):
        return _storage_kind(case, work, made)
    return _cpu_kind(case, work, made, queue_s, cpu_s)


def input_parts(work: Work) -> dict[str, float]:
    """The wall time of a batch, seconds by what it went into; they sum to `wall_s`."""
    cpu_s = work.cpu_s if work.cpu_s is not None else work.wall_s
    prepare_s = max(0.0, cpu_s - work.collate_cpu_s)
    queue_s = work.queue_s or 0.0
    blocked_s = work.off_core_s
    rest_s = max(0.0, work.wall_s - prepare_s - queue_s - blocked_s)
    return {"on a core": prepare_s, "queueing for a core": queue_s, "blocked": blocked_s, "collating": rest_s}


def _storage_kind(case: Case, work: Work, made: str) -> tuple[str, tuple[str, ...]]:
    rank = case.rank
    evidence = [made]
    blocked_s = work.blocked_s or 0.0
    if work.read_bytes and work.disk_bytes is not None and work.read_bytes > 1e5:
        evidence.append(f"{min(1.0, work.disk_bytes / work.read_bytes):.0%} of the bytes came from a disk, not the page cache")
    if work.alone_ratio is not None:
        others = "another" if rank.workers == 2 else f"{rank.workers - 1} others"
        shorter = f"alone, a batch is blocked {work.alone_ratio:.1f} times shorter than beside {others}"
        evidence.append(shorter if work.alone_ratio >= 1.2 else f"a batch is blocked as long alone as beside {others}")
    evidence += _swept(case)
    if work.socket_s > 0.5 * blocked_s:
        return "NETWORK", (*evidence, f"{_ms(work.socket_s)} of it in reads from sockets")
    network = case.machine.network_bytes_s
    if network is not None and network > 1e6 and network * rank.step_s > _network_bytes_expected(case, work):
        return "NETWORK", (*evidence, f"{network / 1e6:.0f} MB/s arrive over the network while the workers are blocked")
    if work.alone_ratio is not None and work.alone_ratio > 1 + 0.5 * (rank.workers - 1):
        rate = (work.read_bytes or 0.0) * rank.workers / work.wall_s
        return "STORAGE_BANDWIDTH", (*evidence, f"all workers together read {rate / 1e6:.0f} MB/s")
    return "STORAGE_LATENCY", tuple(evidence)


def _swept(case: Case) -> list[str]:
    """What the job's own files, read cold, gave to one reader and to the number of readers that got most."""
    rates: dict[str, float] = case.session.facts.get("read_sweep") or {}
    if "1" not in rates:
        return []
    readers = max(rates, key=lambda count: rates[count])
    one, most = rates["1"] / 1e6, rates[readers] / 1e6
    if readers == "1":
        return [f"its files, read cold, come at {one:,.0f} MB/s to one reader, and no faster to more: concurrency is the limit"]
    return [f"its files, read cold, come at {one:,.0f} MB/s to one reader, at most at {most:,.0f} MB/s, to {readers}"]


def _network_bytes_expected(case: Case, work: Work) -> float:
    """Bytes per step that must arrive at least for the workers to be waiting for the network.

    What a library reads from a connection counts nowhere, so any traffic of some size will do. Without a connection only a
    network file system is left, whose reads do count.
    """
    images = case.rank.items or 1.0
    read = work.read_bytes or 0.0
    known = [int(event.detail or 0) for event in case.session.events if event.name == "tcp_connections"]
    if len(case.ranks) > 1 and not any(known):
        return math.inf  # the ranks' own gradients are traffic too
    if known and not any(known):
        return 0.5 * read if read > LEAST_IMAGE_BYTES * images else math.inf
    return max(0.5 * read, LEAST_IMAGE_BYTES * images)


def _cpu_kind(case: Case, work: Work, made: str, queue_s: float, cpu_s: float) -> tuple[str, tuple[str, ...]]:
    rank, machine = case.rank, case.machine
    cores = machine.cores or 1.0
    busy = machine.busy_share
    full = f"; the cores are {busy:.0%} busy" if busy is not None else ""
    if queue_s > QUEUE_SHARE * work.wall_s:
        # Under a quota cores may idle that the job is not allowed to use: `busy` then is of the quota.
        if busy is not None and busy < 0.7 and len(machine.core_busy) >= rank.workers:
            rows = sorted(machine.core_busy)
            return "CPU_UNEVEN", (
                made,
                f"workers queue although cores idle: the fullest is {rows[-1]:.0%} busy, the emptiest {rows[0]:.0%}",
            )
        threads = rank.process.torch_threads or 1
        main_cores = (rank.process_cpu_s or 0.0) / rank.step_s
        if rank.workers + 1 > cores and main_cores > 0.35:
            return "CPU_OVERSUBSCRIBED", (
                made,
                f"{rank.workers} workers and {threads} compute threads want {cores:g} cores; "
                f"workers wait {queue_s / max(1e-9, work.cpu_s or 0.0):.1f} times as long for a core as they run",
            )
        return "CPU_SATURATED", (made, f"{rank.workers} workers share {cores:g} cores{full}")
    terms = case.model.terms_s if case.model is not None else {}
    saturated = busy is not None and busy >= BUSY_SHARE
    if terms and not saturated:
        saturated = terms["cpu"] >= 0.9 * max(terms["workers"], terms["compute"]) and (busy is None or busy > 0.75)
    if saturated:
        return "CPU_SATURATED", (
            made,
            f"the job needs {terms.get('cpu', 0.0) * cores / max(1e-9, rank.step_s):.1f} of {cores:g} cores{full}",
        )
    return "CPU_PREP", (made, f"{rank.workers} worker{'s' if rank.workers != 1 else ''} on {cores:g} cores{full}")


# The device and the training process.


def _h2d(case: Case) -> Finding | None:
    copied = case.rank.h2d_s
    if copied is None or case.share(copied) < H2D_SHARE:
        return None
    pinned = "pinned" if case.rank.loader.pin_memory else "not pinned (pin_memory=False)"
    return finding("H2D_BOUND", case.share(copied), f"copying to the GPU takes {_ms(copied)} per step; batches are {pinned}")


def host_work_s(rank: Rank) -> float:
    """Compute time of the step in which the script did not wait for the device."""
    return max(0.0, rank.typical_compute_s - (rank.sync_s or 0.0))


def _sync(case: Case) -> Finding | None:
    """The script waits several times per step, and has work of its own in between, in which the device idles."""
    rank, machine = case.rank, case.machine
    if rank.sync_count is None or rank.sync_s is None or rank.sync_count < 2:
        return None
    idle_s = min(host_work_s(rank), rank.sync_s)  # what could overlap if nobody waited
    if machine.gpu_busy is not None:
        idle_s = min(idle_s, (1 - machine.gpu_busy) * rank.step_s)
    share = case.share(idle_s)
    if share < SYNC_SHARE:
        return None
    return finding(
        "SYNC_BOUND",
        share,
        f"the script waits for the device {rank.sync_count:.0f} times per step, {_ms(rank.sync_s)} in all",
        f"in between it works {_ms(host_work_s(rank))} per step while the device has nothing to do",
    )


def operator_share(session: Session, rank: Rank) -> float | None:
    """Share of the compute time spent in PyTorch operators, from the short profile of a few steps; None without one."""
    shares = [event.duration_s for event in session.events if event.name == "operators" and event.pid == rank.process.pid]
    return median(shares)


def _overhead(case: Case) -> Finding | None:
    """The training thread computes on its core all the time, but little of that is PyTorch's operators or the GPU's."""
    rank, machine = case.rank, case.machine
    size = f"the batch has {rank.items:.0f} images" if rank.items else "the batch is small"
    if machine.gpu_busy is not None and rank.gpu_step_s is not None:
        # On the GPU the training thread waits in copies and in .item(); what is left is Python and launches.
        taken_s = rank.exposed_wait_s + (rank.h2d_s or 0.0) + (rank.sync_s or 0.0)
        idle = max(0.0, 1 - machine.gpu_busy - taken_s / rank.step_s)
        drained = rank.drained_share is not None and rank.drained_share > 0.8
        if idle < OVERHEAD_SHARE or not drained:
            return None
        words = f"the GPU runs kernels {machine.gpu_busy:.0%} of the time and has always finished before the next step"
        return finding("OVERHEAD_BOUND", idle, words, size)
    if rank.main_cpu_s is None or rank.main_cpu_s < 0.6 * rank.typical_compute_s:
        return None
    operators = operator_share(case.session, rank)
    if operators is None:
        return None
    handover_s = rank.handover_s if _is_small_handover(rank) else 0.0
    share = case.share((1 - operators) * rank.typical_compute_s + handover_s)
    if share < OVERHEAD_SHARE:
        return None
    return finding(
        "OVERHEAD_BOUND",
        share,
        f"only {operators:.0%} of the step's compute is in PyTorch operators, the rest in Python",
        size,
    )


def _oversubscribed(case: Case) -> Finding | None:
    """The training process itself queues for cores that the job's own threads fill."""
    rank, machine = case.rank, case.machine
    foreign = machine.foreign_share
    if rank.main_queue_s is None or foreign is None or foreign >= FOREIGN_SHARE or not machine.cores:
        return None
    share = case.share(rank.main_queue_s)
    threads = rank.workers + (rank.process.torch_threads or 1)
    if share < OVERSUBSCRIBED_SHARE or threads <= machine.cores:
        return None
    if case.share(_input_wait_s(case)) >= INPUT_SHARE and _workers_are_needed(case):
        return None  # the cost of making batches, which the input's finding names
    return finding(
        "CPU_OVERSUBSCRIBED",
        share,
        f"the training thread waits {_ms(rank.main_queue_s)} per step for a core",
        f"{rank.workers} workers and {rank.process.torch_threads or 1} compute threads want {machine.cores:g} cores",
    )


def _growth(case: Case) -> Finding | None:
    growth, hours = case.machine.memory_growth_bytes_s, _hours_to_full(case)
    if not growth or hours is None or hours > GROWTH_HOURS or growth < 1e5:
        return None
    per_step = growth * case.rank.step_s
    left_s = hours * 3600
    return finding(
        "MEMORY_GROWTH",
        None,
        f"memory grows by {growth / 1e6:.1f} MB/s ({per_step / 1e6:.2f} MB per step); full in {left_s / 60:.0f} min",
    )


def _hours_to_full(case: Case) -> float | None:
    machine = case.machine
    growth, used, limit = machine.memory_growth_bytes_s, machine.memory_used_bytes, machine.memory_limit_bytes
    return max(0, limit - used) / growth / 3600 if growth and used is not None and limit is not None else None


def _compute(case: Case, others: Sequence[Finding]) -> Finding:
    rank = case.rank
    share = case.share(rank.compute_s)
    evidence = [f"{_ms(rank.compute_s)} of each {_ms(rank.step_s)} step is computation"]
    if case.machine.gpu_busy is not None:
        evidence.append(f"the GPU runs kernels {case.machine.gpu_busy:.0%} of the time")
    room = input_headroom(case)
    if room is not None:
        evidence.append(
            f"the input could be {room:.0%} faster than the model takes it"
            + (": anything that speeds the model up by more makes the input the limit" if room < 0.3 else "")
        )
    return finding("COMPUTE_BOUND", share, *evidence)


def input_headroom(case: Case) -> float | None:
    """How much faster than the step the input could go, 0.1 = 10 %; None where it was not measured."""
    if case.model is None or not case.model.workers:
        return None
    terms = case.model.terms_s
    supply_s = max(terms["workers"], terms["storage"])
    return max(0.0, case.rank.step_s / supply_s - 1) if supply_s > 0 else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
