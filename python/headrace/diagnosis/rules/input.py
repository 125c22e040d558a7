"""The rules for the input: whether training waits for batches, and which resource limits their making.

`inside_next` and `new_iterators` report what the training process itself does for a batch. All other kinds share one rule,
`slow_input`. `input_kind` decides among them: NO_OVERLAP, COLLATE_IPC, then storage
(STORAGE_LATENCY, STORAGE_BANDWIDTH, NETWORK) or CPU (CPU_PREP, CPU_SATURATED, CPU_UNEVEN, CPU_OVERSUBSCRIBED).
"""

from __future__ import annotations

import math
from dataclasses import replace

from headrace.diagnosis.measure import BatchCost, Rank, has_native_threads
from headrace.diagnosis.measure.hot_functions import hot_words, late_resize_words, lock_words, work_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.stats import mean
from headrace.diagnosis.result.kinds import KINDS, verdict_kind
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.session.inside_next import OWN_PARTS
from headrace.session.stacks import StackFrame
from headrace.system.text.sizes import count_text, number_text, percent_text

__all__ = [
    "INPUT_SHARE",
    "NEXT_KINDS",
    "SMALL_BATCH_BYTES",
    "input_kind",
    "input_wait_s",
    "inside_next",
    "is_cause_unseen",
    "is_small_handover",
    "new_iterators",
    "refusal_words",
    "slow_input",
    "unseen_input_kind",
    "workers_are_needed",
    "workers_that_fit",
]

INPUT_SHARE = 0.07
"""Report input as a cause when waiting for it takes at least this share of the step (XProf: 5 % moderate, 20 % high)."""

NEXT_KINDS = ("NEW_ITERATORS", "IN_NEXT", "GIL_HELD")
"""Kinds of what `next()` itself takes in the training process. The other kinds of input are about batches made late."""

SMALL_BATCH_BYTES = 1_000_000
"""Count a batch as small below this size: its hand-over then costs calls and wake-ups, not copying."""

LEAST_IMAGE_BYTES = 1000.0
"""Assume that the images do not come by `read()` when fewer bytes per image were read."""

QUEUE_SHARE = 0.30
"""Blame queueing when workers wait for a core for more than this share of the time that a batch takes."""

NEEDED_RATIO = 1.1
"""Keep the workers if removing them makes the modelled step more than this many times as long as the measured step."""

BUSY_SHARE = 0.85
"""Count the CPU as full from this mean use of the cores: samples of half a second hide short idle times."""

TRANSPORT_SHARE = 0.5
"""Blame collating and hand-over when they take more than this share of a batch's cost per worker."""

SHORTER_ALONE_RATIO = 1.2
"""Report that a batch made alone is blocked for less time if the blocked times differ by at least this factor."""

SOCKET_SHARE = 0.1
"""Take sockets as a cause of a blocked batch when reads from them take at least this share of the blocked time."""

READY_SHARE = 0.9
"""Count the input as in time when more than this share of the batches was ready."""

HANDOVER_SHARE = 0.6
"""Blame the hand-over of small, ready batches when it takes more than this share of the wait."""

OWN_WORK_SHARE = 0.5
"""Say that the training thread makes its batches when it is on a core for more than this share of the wait."""

OWN_CORES_SHARE = 0.5
"""Count full cores as the job's doing when the job itself uses at least this share of them."""

BUSY_PROCESS_CORES = 0.5
"""Blame the CPU for batches made by unseen code when the training process uses, or queues for, more than this many cores."""

MOST_QUEUE_SHARE = 0.95
"""Cap the share of queueing at this: the threads are then taken to want at most twenty times the cores that they use."""

WANTED_RATIO = 1.2
"""Say how many cores the threads could use when that is more than this many times what they use."""

SPLIT_SHARE = 0.01
"""Name a part of a batch's cost in the evidence when it takes at least this share."""

LEAST_READ_BYTES = 1e5
"""State the share of bytes from a disk when a batch reads more than this."""

BLOCKED_SHARE = 0.5
"""Without workers, count a batch as mostly blocked when it is blocked for more than this share of its time."""

NETWORK_SOCKET_SHARE = 0.5
"""Blame the network when reads from sockets take more than this share of the blocked time."""

LEAST_NETWORK_BYTES_S = 1e6
"""Ignore slower network traffic: it does not feed a training."""

NETWORK_BYTES_SHARE = 0.5
"""Blame the network when traffic brings more than this share of the bytes that a batch reads."""

BANDWIDTH_SHARE = 0.5
"""Blame the bandwidth of storage when a batch read alone is blocked 1 + this × (n - 1) times shorter than among n workers."""

UNEVEN_BUSY_SHARE = 0.7
"""Count cores as idle beside queueing workers when their mean use is below this share."""

BUSY_MAIN_CORES = 0.35
"""Blame too many threads when workers queue and the training process uses more than this many cores."""

CPU_TERM_SHARE = 0.9
"""Count the CPU as full when its term of the step model reaches this share of the largest other term."""

CPU_TERM_BUSY_SHARE = 0.75
"""Believe the CPU term of the step model when the cores are busier than this share."""


def slow_input(job: MeasuredJob) -> Finding | None:
    """Report that training waits for its batches, with the kind of resource that limits their making."""
    rank, cost = job.rank, job.rank.batch_cost
    if is_small_handover(rank):
        return None
    share = job.share(input_wait_s(job))
    if not _is_reported(job, share):
        return None
    beside: tuple[str, ...] = ()
    if workers_are_needed(job):  # the cores that they take from the training thread are a cost of the input as well
        share = min(1.0, share + job.share(rank.core_wait_s))
        if job.share(rank.core_wait_s) >= INPUT_SHARE:
            beside = (f"beside the busy workers the training thread waits {duration(rank.core_wait_s)} per step for a core",)
    kind, evidence = input_kind(job, cost) if cost is not None else unseen_input_kind(job)
    ready = f"; {percent_text(rank.at_once_share)} of the batches came at once" if rank.workers else ""
    what = "what comes before the forward pass" if rank.loader.family == "none" else "next()"
    waits = f"{what} takes {duration(_common_wait_s(job))} of each {duration(rank.step_s)} step{ready}"
    hot = (hot_words(job.session, "collate") if kind == "COLLATE_IPC" else ()) or hot_words(job.session, "batch")
    hot = (*hot, *work_words(job.session), *late_resize_words(job.session, rank.loader.transform))
    found = make_finding(kind, share, waits, *beside, *evidence, *hot)
    if not is_cause_unseen(job, kind):
        return found
    if cost is not None:
        found = replace(found, evidence=(*found.evidence, f"{duration(cost.off_core_s)} of a batch are blocked, {UNSEEN}"))
    return replace(found, cause_seen=False, summary=verdict_kind(kind, cause_seen=False).summary)


def _is_reported(job: MeasuredJob, share: float) -> bool:
    """Return whether a part of the wait for input is worth a finding: by itself, or as the larger part of a wait that is."""
    whole = job.share(input_wait_s(job) + job.exposed_next_s)
    return share >= INPUT_SHARE or 2 * share >= whole >= INPUT_SHARE


PART_ADVICE = {
    "sampler": "no worker shortens this part; draw the indices of many batches at once, or once an epoch",
    "pinning": "one thread copies every tensor of a batch: fewer tensors, or smaller ones (uint8), take less time",
    "script": "no worker shortens this part; move this work into the dataset or the collate function, which workers run",
}
"""What to do about each part of `next()` that the training process runs itself (`headrace.session.inside_next.OWN_PARTS`)."""


def inside_next(job: MeasuredJob) -> Finding | None:
    """Report that `next()` takes long in the training process itself: IN_NEXT, or GIL_HELD where another thread delays it."""
    rank, inside = job.rank, job.rank.inside_next
    share = job.share(min(each.exposed_next_s for each in job.ranks))
    if rank.loader.passes or not _is_reported(job, share):
        return None
    if inside is None or not (inside.shares or inside.holder):
        return _unnamed_next(job, share)
    takes = f"next() takes {duration(rank.exposed_wait_s)} of each {duration(rank.step_s)} step"
    if inside.holder is not None and 2 * rank.held_s >= rank.next_s:
        name = _function_words(job, inside.holder)
        held_s = rank.exposed_next_s * rank.held_s / rank.next_s
        found = make_finding(
            "GIL_HELD",
            share,
            f"{takes}; {duration(held_s)} of that the training thread waits for Python's lock (GIL)",
            f"the lock came over 2 ms late in {percent_text(inside.held_share)} of {inside.samples} samples, with a core free; "
            f"meanwhile another thread ran {name}",
        )
        return replace(found, summary=f"another thread holds Python's lock (GIL) while next() needs it: {name}")
    part = max(inside.shares, key=lambda name: inside.shares[name])
    name, part_s = _function_words(job, inside.places[part]), inside.shares[part] * rank.exposed_wait_s
    found = make_finding(
        "IN_NEXT",
        share,
        f"{takes}; {duration(part_s)} of that is {OWN_PARTS[part]}: {name}, by {inside.samples} sampled stacks",
        PART_ADVICE[part],
    )
    what = {"sampler": "the sampler", "pinning": "pinning memory"}.get(part, "code of the script")
    taken = f"{duration(part_s)} of the {duration(rank.exposed_wait_s)} in next()"
    return replace(found, summary=f"{what} takes {taken}, in the training process: {name}")


def _unnamed_next(job: MeasuredJob, share: float) -> Finding:
    """Report that `next()` itself takes long, where too few stacks were sampled to say what it does there.

    A thread that holds the interpreter while the steps run holds it in `next()` as well.
    """
    rank = job.rank
    seen = rank.inside_next.samples if rank.inside_next is not None else 0
    made = f" ({duration(rank.batch_cost.wall_s)})" if rank.batch_cost is not None else ""
    words = (
        f"next() takes {duration(rank.exposed_wait_s)} of each {duration(rank.step_s)} step; making a batch{made} and handing "
        f"it over do not explain {duration(rank.exposed_next_s)} of that"
    )
    if job.held_step is not None:
        name = _function_words(job, job.held_step[1])
        found = make_finding("GIL_HELD", share, words, f"while steps run, another thread holds Python's lock (GIL): {name}")
        return replace(found, summary=f"another thread holds Python's lock (GIL) while next() needs it: {name}")
    few = f"{count_text(seen, 'stack')} of next() were sampled, too few to name it"
    found = make_finding("IN_NEXT", share, words, f"{few}: the sampler, pinning, or code of the script in next()")
    return replace(
        found, cause_seen=False, summary="next() takes long in the training process itself; what it does was not seen"
    )


def _function_words(job: MeasuredJob, frame: StackFrame) -> str:
    """Return "FUNCTION (FILE:LINE)" of a sampled function, with the file relative to the command's folder."""
    folder = job.session.cwd.rstrip("/") + "/"
    return f"{frame.function} ({frame.file.removeprefix(folder)}:{frame.line})"


def new_iterators(job: MeasuredJob) -> Finding | None:
    """Report that the script makes a new iterator for each batch, or for a few: its workers start and end each time."""
    rank, model, loader = job.rank, job.model, job.rank.loader
    if not loader.passes or model is None:
        return None
    share = job.share(job.exposed_next_s)
    if not _is_reported(job, share):
        return None
    each = len(rank.all_steps) / loader.passes
    batches = "one batch" if each < 1.5 else f"{each:.0f} batches"
    waits = f"waiting takes {duration(rank.wait_s)} of each {duration(rank.step_s)} step"
    words = [f"{count_text(loader.passes, 'iterator')} gave {batches} each; {waits}"]
    if rank.workers:
        ahead = rank.workers * (loader.prefetch_factor or 2)
        words.append(
            f"starting {count_text(rank.workers, 'worker')} takes {duration(loader.pass_start_s)} and ending them "
            f"{duration(loader.pass_stop_s)}, each time; they begin {ahead} batches ahead, and the rest is thrown away"
        )
    elif rank.inside_next is not None and "sampler" in rank.inside_next.places:
        words.append(f"each draws a new order: {_function_words(job, rank.inside_next.places['sampler'])}")
    found = make_finding("NEW_ITERATORS", share, *words, "each begins anew: no epoch is ever gone through to its end")
    often = "each batch" if each < 1.5 else f"every {batches}"
    workers = f", and {count_text(rank.workers, 'worker')} with it" if rank.workers and loader.pass_stop_s else ""
    return replace(found, summary=f"the script makes a new iterator for {often} (next(iter(loader))){workers}")


UNSEEN = "cause not seen: no file or socket was read meanwhile (a lock, a sleep, another process?)"


def is_cause_unseen(job: MeasuredJob, kind: str) -> bool:
    """Return whether the input of this kind is blocked, and nothing was seen that blocks it.

    A wait for storage without a timed batch is only concluded from idle threads. Bytes that were not measured prove nothing.
    """
    cost, is_blocked = job.rank.batch_cost, KINDS[kind].is_blocked and kind != "NETWORK"
    if cost is None:
        return is_blocked
    parts = cost.parts_s
    blocked_s = parts["blocked"]
    if not is_blocked and not (kind == "NO_OVERLAP" and blocked_s > BLOCKED_SHARE * cost.wall_s):
        return False
    if cost.read_bytes is None or cost.is_refused:
        return False
    least_bytes = LEAST_IMAGE_BYTES * (job.rank.items or 1.0)
    # What a tf.data pipeline reads from the page cache blocks nobody; a worker of PyTorch may read from a mounted bucket.
    read_bytes = 0.0 if job.rank.loader.family == "tensorflow" else cost.read_bytes
    is_read = read_bytes >= least_bytes or (cost.disk_bytes or 0.0) >= least_bytes
    return not is_read and cost.socket_s < SOCKET_SHARE * blocked_s


def _common_wait_s(job: MeasuredJob) -> float:
    """Return the seconds per step that every rank waits for input. What one rank waits longer is the straggler's finding."""
    return min(rank.exposed_wait_s for rank in job.ranks)


def input_wait_s(job: MeasuredJob) -> float:
    """Return the seconds per step that training waits for input, without the hand-over of ready batches when that is short,
    and without what the training process does in `next()` itself (`inside_next`).

    The time in which the training thread queues for a core inside `next()` counts when that thread makes the batches. Beside
    workers, such queueing delays a batch that may be ready, so it is no proof of slow input.
    """
    rank = job.rank
    if rank.makes_batches:
        return max(0.0, _common_wait_s(job) - job.exposed_next_s)
    net_s = min(rank.exposed_net_wait_s for rank in job.ranks)
    return max(0.0, net_s - job.exposed_next_s - (rank.exposed_handover_s if _handover_is_small(rank) else 0.0))


def _handover_is_small(rank: Rank) -> bool:
    """Return whether the hand-over of a ready batch is short. A long hand-over is itself an input problem."""
    return rank.handover_s < INPUT_SHARE * rank.step_s


def is_small_handover(rank: Rank) -> bool:
    """Return whether the wait is the hand-over of small, ready batches: overhead of a short step, not slow input."""
    in_time = rank.ready_share is not None and rank.ready_share > READY_SHARE
    return in_time and rank.batch_bytes < SMALL_BATCH_BYTES and rank.handover_s > HANDOVER_SHARE * rank.net_wait_s


def workers_are_needed(job: MeasuredJob) -> bool:
    """Return whether fewer workers, which leave a core to the training thread, would make the step longer."""
    model, cores = job.model, job.machine.cores
    if model is None or not cores or model.workers < 2:
        return False
    return model.changed(workers=workers_that_fit(model.workers, cores)).step_s > NEEDED_RATIO * job.rank.step_s


def workers_that_fit(workers: int, cores: float) -> int:
    """Return how many workers leave one core to the training thread: at least one fewer than now, and at least one."""
    return max(1, min(workers - 1, int(cores) - 1))


def unseen_input_kind(job: MeasuredJob) -> tuple[str, tuple[str, ...]]:
    """Return kind and evidence when no hook sees the making of batches, from the CPU use of the training process."""
    rank, machine = job.rank, job.machine
    if rank.loader.family == "kineto":
        kind = "CPU_PREP" if rank.workers else "NO_OVERLAP"
        return kind, ("a trace does not show whether CPU or storage makes batches slow; headrace diagnose measures that",)
    made_s = mean([step.wait_cpu_s for step in rank.steps if step.wait_cpu_s is not None]) or 0.0
    if rank.loader.family == "none" and made_s > OWN_WORK_SHARE * rank.net_wait_s:
        words = f"the training thread itself works for {duration(made_s)} of that: it makes the batch, or does other work there"
        return "NO_OVERLAP", (words,)
    used = (rank.process_cpu_s or 0.0) / rank.step_s
    wanted = used / (1 - min(machine.queue_share or 0.0, MOST_QUEUE_SHARE))  # a thread that queues for a core is not blocked
    makers = "the script's own code makes" if rank.loader.family == "none" else "the loader's own threads make"
    words = f"{makers} the batches; the training process uses {used:.1f} cores"
    if wanted > WANTED_RATIO * used:
        words += f", and its threads are ready to run on {wanted:.1f}"
    ours = machine.own_cores is None or machine.own_cores >= OWN_CORES_SHARE * (machine.cores or 1.0)
    if machine.busy_share is not None and machine.busy_share >= BUSY_SHARE and ours:
        return "CPU_SATURATED", (words, f"the cores are {percent_text(machine.busy_share)} busy")
    if wanted > BUSY_PROCESS_CORES or machine.busy_share is None:
        return "CPU_PREP", (words,)
    return "STORAGE_LATENCY", (f"{words}, so the threads are blocked, cause not seen",)


def input_kind(job: MeasuredJob, cost: BatchCost) -> tuple[str, tuple[str, ...]]:
    """Return kind and evidence of a slow input, from the mean cost of a batch. The first condition that holds decides:

    - NO_OVERLAP: there are no workers.
    - COLLATE_IPC: collating and hand-over take more than `TRANSPORT_SHARE` of a batch's cost per worker.
    - STORAGE_LATENCY, STORAGE_BANDWIDTH, NETWORK: making a batch is blocked for at least as long as it runs on a core, and at
      least as long as it queues for one (`_storage_kind` decides which).
    - CPU_PREP, CPU_SATURATED, CPU_UNEVEN, CPU_OVERSUBSCRIBED: otherwise (`_cpu_kind` decides which).
    """
    rank = job.rank
    parts = cost.parts_s
    split = ", ".join(f"{duration(seconds)} {name}" for name, seconds in parts.items() if seconds >= SPLIT_SHARE * cost.wall_s)
    made = f"making a batch takes {duration(cost.wall_s)}: {split}"
    if rank.workers == 0:
        own = [f"the collate function ({_collate_name(rank)}) takes most of that"] if cost.collate_s > 0.5 * cost.wall_s else []
        refusals = refusal_words(job, cost) if cost.is_refused else ()
        return "NO_OVERLAP", (made, *own, "num_workers=0: the device idles while a batch is made", *refusals)
    # Without the waits for a core, which the hand-over does not contain either.
    transport_s = rank.handover_s + (parts["collating"] + cost.other_cpu_s) / rank.workers
    made_s = cost.wall_s - parts["queueing for a core"] + cost.other_cpu_s
    if transport_s > TRANSPORT_SHARE * (rank.handover_s + made_s / rank.workers):
        size = f"; a batch has {rank.batch_bytes / 1e6:.0f} MB" if rank.batch_bytes >= SMALL_BATCH_BYTES else ""
        words = (
            f"the collate function ({_collate_name(rank)}) takes {duration(cost.collate_s)} of a batch, sending it "
            f"{duration(cost.other_cpu_s)} in the worker, and taking it over {duration(rank.handover_s)} in next(){size}"
        )
        return "COLLATE_IPC", (made, words)
    if parts["blocked"] >= max(parts["queueing for a core"], parts["on a core"]):
        return _storage_kind(job, cost, made)
    return _cpu_kind(job, cost, made)


def _collate_name(rank: Rank) -> str:
    """Return the name of the loader's collate function, without the function in which it was made."""
    return (rank.loader.collate or "unknown").rpartition("<locals>.")[2]


def _storage_kind(job: MeasuredJob, cost: BatchCost, made: str) -> tuple[str, tuple[str, ...]]:
    """Return kind and evidence of a batch that is mostly blocked. The first condition that holds decides:

    - STORAGE_BANDWIDTH: the store refuses requests, or its client waits before it asks again (`BatchCost.is_refused`).
    - LOCK_WAIT: by sampled stacks, workers wait for a lock that they share.
    - NETWORK: reads from sockets take more than `NETWORK_SOCKET_SHARE` of the blocked time, or the network brings more bytes
      per step than `_network_bytes_expected`.
    - STORAGE_BANDWIDTH: a batch that is made while no other worker reads is blocked much shorter (`BANDWIDTH_SHARE`).
    - STORAGE_LATENCY: otherwise. Each reader waits by itself, so more workers help.
    """
    rank = job.rank
    evidence = [made]
    blocked_s = cost.blocked_s or 0.0
    if cost.read_bytes and cost.disk_bytes is not None and cost.read_bytes > LEAST_READ_BYTES:
        evidence.append(
            f"{percent_text(min(1.0, cost.disk_bytes / cost.read_bytes))} of the bytes came from a disk, not the page cache"
        )
    if cost.alone_ratio is not None:
        others = "another" if rank.workers == 2 else f"{rank.workers - 1} others"
        if cost.alone_ratio >= SHORTER_ALONE_RATIO:
            evidence.append(f"alone, a batch is blocked {cost.alone_ratio:.1f} times shorter than beside {others}")
        else:
            evidence.append(f"a batch is blocked as long alone as beside {others}")
    if cost.is_refused:
        return "STORAGE_BANDWIDTH", (*evidence, *refusal_words(job, cost))
    lock = lock_words(job.session)
    if lock is not None:
        return "LOCK_WAIT", (*evidence, lock)
    evidence += _read_sweep_words(job)
    if cost.socket_s > NETWORK_SOCKET_SHARE * blocked_s:
        return "NETWORK", (*evidence, f"reads from sockets take {duration(cost.socket_s)} of a batch")
    network = job.machine.network_bytes_s
    is_used = network is not None and network > LEAST_NETWORK_BYTES_S
    if network is not None and is_used and network * rank.step_s > _network_bytes_expected(job, cost):
        return "NETWORK", (*evidence, f"{network / 1e6:.0f} MB/s arrive over the network while the workers are blocked")
    if cost.alone_ratio is not None and cost.alone_ratio > 1 + BANDWIDTH_SHARE * (rank.workers - 1):
        rate = (cost.read_bytes or 0.0) * rank.workers / cost.wall_s
        return "STORAGE_BANDWIDTH", (*evidence, f"all {rank.worker_word}s together read {rate / 1e6:.0f} MB/s")
    return "STORAGE_LATENCY", tuple(evidence)


def refusal_words(job: MeasuredJob, cost: BatchCost) -> list[str]:
    """Return what shows that the store refuses requests, and at which rate it serves them."""
    words = []
    if cost.refused:
        words.append(f"the store refuses {number_text(cost.refused)} requests a batch (HTTP 429 or 503)")
    if cost.backoff is not None:
        share = percent_text(cost.backoff_share)
        place = f"{cost.backoff.function} ({cost.backoff.file}:{cost.backoff.line})"
        words.append(f"waiting before a request is repeated takes {share} of making a batch: {place}")
    if job.rank.items:
        rate = number_text(job.rank.items * len(job.ranks) / job.rank.step_s)
        words.append(f"the store serves {rate} images a second, and more workers would only be refused more often")
    return words


def _read_sweep_words(job: MeasuredJob) -> list[str]:
    """Return the rates of the read sweep over the job's own files: of one reader, and of the best number of readers."""
    rates: dict[str, float] = job.session.facts.get("read_sweep") or {}
    if "1" not in rates:
        return []
    readers = max(rates, key=lambda count: rates[count])
    one, most = rates["1"] / 1e6, rates[readers] / 1e6
    if readers == "1":
        return [f"one reader gets {one:,.0f} MB/s of the job's files, read cold, and more readers get no more"]
    return [f"one reader gets {one:,.0f} MB/s of the job's files, read cold; {readers} readers get the most, {most:,.0f} MB/s"]


def _network_bytes_expected(job: MeasuredJob, cost: BatchCost) -> float:
    """Return how many bytes must arrive per step before workers count as waiting for the network.

    The kernel does not count what a library reads from a connection, so one small image per record is enough. A process
    without connections can only read from a network file system, and the kernel counts those reads; where none is mounted, all
    traffic is other programs'.
    """
    images = job.rank.items or 1.0
    read = cost.read_bytes or 0.0
    known = [int(event.detail or 0) for event in job.session.events if event.name == "tcp_connections"]
    if len(job.ranks) > 1 and not any(known):
        return math.inf  # the traffic may be gradients
    if known and not any(known) and job.session.host.remote_mounts == 0:
        return math.inf
    if known and not any(known):
        return NETWORK_BYTES_SHARE * read if read > LEAST_IMAGE_BYTES * images else math.inf
    return max(NETWORK_BYTES_SHARE * read, LEAST_IMAGE_BYTES * images)


def _cpu_kind(job: MeasuredJob, cost: BatchCost, made: str) -> tuple[str, tuple[str, ...]]:
    """Return kind and evidence of a batch that mostly runs on a core or queues for one. The first condition that holds decides:

    - Workers queue for a core for more than `QUEUE_SHARE` of the batch's time, without the stops by a quota. CPU_UNEVEN: some
      cores idle meanwhile. CPU_OVERSUBSCRIBED: workers and training process are more than the cores, and the training
      process is busy (`BUSY_MAIN_CORES`). CPU_SATURATED: neither.
    - CPU_SATURATED: the cores are full (`BUSY_SHARE`), or the CPU is nearly the largest term of the step model.
    - CPU_PREP: otherwise. Making the batch needs CPU time, and cores are free.
    """
    rank, machine = job.rank, job.machine
    cores = machine.cores or 1.0
    busy = machine.busy_share
    full = f"; the cores are {percent_text(busy)} busy" if busy is not None else ""
    stopped_s = cost.parts_s["queueing for a core"] * (machine.quota_share_of_waits or 0.0)
    queue_s = cost.parts_s["queueing for a core"] - stopped_s
    if queue_s > QUEUE_SHARE * (cost.wall_s - stopped_s):
        # Under a quota, cores may idle that the job must not use; `busy` is then the used share of the quota.
        if busy is not None and busy < UNEVEN_BUSY_SHARE and len(machine.core_busy) >= rank.workers:
            rows = sorted(machine.core_busy)
            return "CPU_UNEVEN", (
                made,
                f"{rank.worker_word}s queue although cores idle: the fullest is {percent_text(rows[-1])} busy, "
                f"the emptiest {percent_text(rows[0])}",
            )
        threads = rank.process.torch_threads or 1
        main_cores = (rank.process_cpu_s or 0.0) / rank.step_s
        if rank.workers + 1 > cores and main_cores > BUSY_MAIN_CORES and not has_native_threads(rank.loader):
            return "CPU_OVERSUBSCRIBED", (
                made,
                f"{rank.workers} workers and {threads} compute threads want {cores:g} cores; "
                f"workers wait {queue_s / max(1e-9, cost.cpu_s or 0.0):.1f} times as long for a core as they run",
            )
        return "CPU_SATURATED", (made, f"{count_text(rank.workers, rank.worker_word)} on {cores:g} cores{full}")
    terms = job.model.terms_s if job.model is not None else {}
    saturated = busy is not None and busy >= BUSY_SHARE
    if terms and not saturated:
        saturated = terms["cpu"] >= CPU_TERM_SHARE * max(terms["workers"], terms["compute"])
        saturated = saturated and (busy is None or busy > CPU_TERM_BUSY_SHARE)
    if saturated:
        return "CPU_SATURATED", (
            made,
            f"the job needs {terms.get('cpu', 0.0) * cores / max(1e-9, rank.step_s):.1f} of {cores:g} cores{full}",
        )
    return "CPU_PREP", (made, f"{count_text(rank.workers, rank.worker_word)} on {cores:g} cores{full}")
