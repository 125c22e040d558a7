"""The rules for the machine: CPU quota, other programs, a throttled GPU, too many threads, memory growth."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.measure import Copying, Rank, has_native_threads
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.stats import median
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.contention import thread_contention
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import INPUT_SHARE, NEXT_KINDS, input_wait_s, unseen_input_kind, workers_are_needed
from headrace.system.text.sizes import count_text, number_text, percent_text, size_text

__all__ = [
    "cpu_oversubscribed",
    "cpu_quota",
    "external_cpu",
    "hours_until_full",
    "memory_growth",
    "own_share_of_waits",
    "queueing_in_input_s",
    "thermal_throttle",
]

FOREIGN_SHARE = 0.20
"""Report other programs when they use at least this share of the cores and delay the step (`LEAST_FOREIGN_DELAY`)."""

LEAST_FOREIGN_DELAY = 0.02
"""Ignore other programs when queueing for a core takes less than this share of the step."""

CROWDED_SHARE = 0.2
"""Say that the job's own threads delay one another when they cause at least this share of the waits for a core."""

MOSTLY_OWN = 0.5
"""Where the job's own threads cause more than this share of the waits for a core, count only the rest for other programs."""

NAMED_SHARE = 0.5
"""Say that more programs run unseen when the named ones use less than this share of what other programs use."""

QUOTA_SHARE = 0.05
"""Report the CPU quota when it stops the job for at least this share of the time and of the step."""

THROTTLE_SHARE = 0.20
"""Report throttling when at least this share of the GPU samples shows a reason for it."""

SLOWER_RATIO = 1.15
"""Report a slow-down during the run when compute takes more than this many times as long from some step to the end."""

OVERSUBSCRIBED_SHARE = 0.18
"""Report too many threads when the training thread waits for a core for at least this share of the step.

One busy worker beside two compute threads on two cores costs about 0.1, which is no fault."""

GROWTH_HOURS = 12.0
"""Report memory growth when it fills the free memory within this time."""

MIXED_GROWTH = 0.15
"""Name workers and training process both when each holds more than this share of the growth."""

LEAST_SHARED_BYTES_S = 1e6
"""Ignore slower growth in /dev/shm, which other programs use as well."""

LEAST_GROWTH_BYTES_S = 1e5
"""Ignore slower memory growth."""


def cpu_quota(job: MeasuredJob, share: float) -> Finding | None:
    """Report that the CPU quota of the container stops the job.

    share: of the step, the parts of the bar in which it does.
    """
    stopped = job.machine.stopped_share
    if stopped < QUOTA_SHARE or share < QUOTA_SHARE:
        return None
    quota = job.machine.quota_cores
    limit = (
        f"the limit is {number_text(quota, digits=2)} core{'' if quota == 1 else 's'}"
        if quota
        else "the cgroup has a CPU limit"
    )
    words = f"the kernel stopped the job's threads for {percent_text(stopped)} of the time in which they could run; {limit}"
    return make_finding("CPU_QUOTA", share, words)


def thermal_throttle(job: MeasuredJob) -> Finding | None:
    """Report that the GPU lowers its clock because of heat or power."""
    machine = job.machine
    if not machine.gpu_throttle_share or machine.gpu_throttle_share < THROTTLE_SHARE:
        return None
    slower = _slow_down_share(job.rank)
    clock = machine.gpu_clock_share
    share = max(1 - clock if clock is not None else 0.0, slower or 0.0, 0.1)
    words = [f"{percent_text(machine.gpu_throttle_share)} of the GPU samples were throttled: {', '.join(machine.gpu_throttle)}"]
    if clock is not None:
        words.append(f"the clock was at {percent_text(clock)} of its maximum")
    change = _change_point(job.rank)
    if slower and change is not None:
        words.append(f"from step {change} on, compute takes longer, by {percent_text(slower)} of its time there")
    return make_finding("THERMAL_THROTTLE", share, *words)


def _change_point(rank: Rank) -> int | None:
    """Return the step from which compute is slower to the end of the run, or None: the best single split into two means."""
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
            if right > SLOWER_RATIO * left and gain > best:
                best, found = gain, index
    return None if found is None else found + len(rank.all_steps) - len(values)


def _slow_down_share(rank: Rank) -> float | None:
    """Return how much of a late step is slow-down, 0 to 1; None without a change during the run."""
    change = _change_point(rank)
    if change is None:
        return None
    index = change - (len(rank.all_steps) - len(rank.steps))
    early = median([step.compute_s for step in rank.steps[:index]]) or 0.0
    late = median([step.compute_s for step in rank.steps[index:]]) or 0.0
    return max(0.0, late - early) / late if late > 0 else None


def external_cpu(job: MeasuredJob) -> Finding | None:
    """Report that other programs take the CPU and thereby delay the step."""
    foreign = job.machine.foreign_share
    if foreign is None or foreign < FOREIGN_SHARE:
        return None
    delayed = _queueing_s(job)
    if delayed is None:
        return None
    delayed *= 1 - (job.machine.quota_share_of_waits or 0.0)
    whole_s, delayed = delayed, delayed * (1 - own_share_of_waits(job))
    share = job.share(delayed)
    if share < LEAST_FOREIGN_DELAY:
        return None  # other programs run, but do not delay the job
    queued = job.machine.queue_share
    words = [f"other programs use {job.machine.foreign_cores:.1f} of {job.machine.cores:g} cores"]
    words.append(_program_words(job))
    if job.machine.niceness > 0:
        words.append(f"the job runs at nice {job.machine.niceness}: the kernel serves programs at nice 0 first")
    if queued is not None:
        words.append(f"the job's threads wait for a core {percent_text(queued)} of the time in which they could run")
    if job.machine.crowded_share < CROWDED_SHARE:
        words.append(f"other programs delay each step by about {duration(delayed)}")
    else:
        wanted = f"{number_text(job.machine.wanted_cores or 0.0, digits=2)} of {job.machine.cores:g} cores"
        words.append(f"the job's own threads want {wanted}: they delay one another too")
        part = "a part" if delayed == whole_s else duration(delayed)
        words.append(f"the waits for a core delay each step by {duration(whole_s)}; other programs cause {part} of that")
    return make_finding("EXTERNAL_CPU", share, *words)


def own_share_of_waits(job: MeasuredJob) -> float:
    """Return the share of the waits for a core that the job's own threads cause, where that is most of them; else 0."""
    crowded = job.machine.crowded_share
    return crowded if crowded > MOSTLY_OWN else 0.0


def _program_words(job: MeasuredJob) -> str:
    """Return the names of the largest other programs, and whether more of them run where names cannot be seen."""
    programs, used = job.machine.foreign_programs, job.machine.foreign_cores or 0.0
    if programs is None:
        return "the names of these programs were not measured"
    words = ", ".join(f"{program.name} (pid {program.pid}) {program.cores:.1f} cores" for program in programs)
    more = job.machine.listed_count - len(programs)
    if more > 0:
        smaller = max(0.0, job.machine.listed_cores - sum(program.cores for program in programs))
        words += f", and {count_text(more, 'smaller program')} with {smaller:.1f} cores together"
    if job.machine.listed_cores >= NAMED_SHARE * used:
        return f"the largest: {words}"
    rest = "short programs, or programs in another container or on the host, whose names cannot be seen from here"
    return f"the largest: {words}; the rest are {rest}" if words else f"they are {rest}"


def _queueing_s(job: MeasuredJob) -> float | None:
    """Return the seconds per step lost to waiting for a core: by the training process outside pauses, and by late batches."""
    rank = job.rank
    if rank.main_queue_s is None and (rank.batch_cost is None or rank.batch_cost.queue_s is None):
        return None
    return max(0.0, rank.core_wait_s - rank.pause_queue_s) + _late_by_queueing_s(job)


def _late_by_queueing_s(job: MeasuredJob) -> float:
    """Return the seconds per step that batches are late because their worker waits for a core."""
    rank, cost = job.rank, job.rank.batch_cost
    if cost is None and rank.loader.family == "tensorflow" and not KINDS[unseen_input_kind(job)[0]].is_blocked:
        return job.late_s * (job.machine.queue_share or 0.0)  # as in the bar of the step
    if cost is None or cost.queue_s is None or cost.wall_s <= 0 or (rank.makes_batches and rank.exposed_queue_s):
        return 0.0
    return job.late_s * cost.queue_s / cost.wall_s


def queueing_in_input_s(job: MeasuredJob, kind: str) -> float:
    """Return the seconds of waiting for a core that a finding of the input and EXTERNAL_CPU or CPU_QUOTA count, per step.

    Workers that wait for a core make batches late; `next()` itself takes no longer.
    """
    rank, of_next = job.rank, kind in NEXT_KINDS
    if rank.makes_batches and rank.exposed_queue_s:
        of_next_s = rank.exposed_queue_s * rank.next_queue_s / (rank.wait_s - rank.net_wait_s)
        return of_next_s if of_next else rank.exposed_queue_s - of_next_s
    if of_next:
        return 0.0
    return _late_by_queueing_s(job) + (rank.core_wait_s if workers_are_needed(job) else 0.0)


def cpu_oversubscribed(job: MeasuredJob) -> Finding | None:
    """Report that the threads of a process contend, or that the training process waits because of too many busy threads."""
    contention = thread_contention(job)
    if contention is not None:
        return contention
    rank, machine = job.rank, job.machine
    foreign = machine.foreign_share
    if rank.main_queue_s is None or foreign is None or not machine.cores:
        return None
    own = 1.0 if foreign < FOREIGN_SHARE else own_share_of_waits(job)
    queued_s = own * rank.main_queue_s * (1 - (machine.quota_share_of_waits or 0.0))
    share = job.share(queued_s)
    # Threads of headrace's own loader rest while batches are ready; where they are needed, `slow_input` reports.
    workers = [one for one in job.session.processes if one.role == "worker" and one.parent_pid == rank.process.pid]
    each = max((one.torch_threads or 1 for one in workers), default=1)
    threads = (0 if has_native_threads(rank.loader) else rank.workers * each) + (rank.process.torch_threads or 1)
    if share < OVERSUBSCRIBED_SHARE or threads <= machine.cores:
        return None
    if job.share(input_wait_s(job)) >= INPUT_SHARE and workers_are_needed(job):
        return None  # this is a cost of making batches, which `slow_input` reports
    return make_finding(
        "CPU_OVERSUBSCRIBED",
        share,
        f"the training thread waits {duration(queued_s)} per step for a core",
        f"{count_text(rank.workers, 'worker')}{f' of {each} threads' if each > 1 else ''} and "
        f"{count_text(rank.process.torch_threads or 1, 'compute thread')} share {count_text(round(machine.cores), 'core')}",
        *(("PyTorch gives a worker one thread; more come from the script (torch.set_num_threads)",) if each > 1 else ()),
    )


def memory_growth(job: MeasuredJob) -> Finding | None:
    """Report that the memory of the job grows steadily, in which processes, and when it is full."""
    growth, hours = job.machine.memory_growth_bytes_s or 0.0, hours_until_full(job)
    words = []
    if growth >= LEAST_GROWTH_BYTES_S and hours is not None and hours <= GROWTH_HOURS:
        per_step, left_s = growth * job.rank.step_s, hours * 3600
        words += [
            f"memory grows by {growth / 1e6:.1f} MB/s ({per_step / 1e6:.2f} MB per step); full in {left_s / 60:.0f} min",
            _growing_words(job, growth),
        ]
    shared = job.machine.shared_growth_bytes_s
    if shared >= LEAST_SHARED_BYTES_S and job.rank.workers and hours is not None and hours <= GROWTH_HOURS:
        words += [
            f"what lies in /dev/shm grows by {shared / 1e6:.1f} MB/s; full in {hours * 60:.0f} min",
            "workers send batches there: tensors of past batches that the script keeps stay there",
        ]
    copying = job.machine.copying
    if copying is None:
        return make_finding("MEMORY_GROWTH", None, *words) if words else None
    found = make_finding("MEMORY_GROWTH", None, *_copying_words(job, copying), *words)
    which = "the loader's worker copies" if copying.workers == 1 else f"{copying.workers} loader workers copy"
    rate = f"memory grows by {copying.bytes_s / 1e6:.1f} MB/s"
    return replace(found, summary=f"{which} Python objects that the fork shares: {rate} (keep labels in an array)")


def _growing_words(job: MeasuredJob, growth: float) -> str:
    """Return which processes take the memory that the samples show."""
    workers = min(1.0, max(0.0, job.machine.workers_growth_bytes_s / growth))
    if MIXED_GROWTH < workers < 1 - MIXED_GROWTH:
        return f"{percent_text(workers)} of that are in the loader's workers, the rest in the training process"
    return "the loader's workers grow" if workers > 0.5 else "the training process grows, not the loader's workers"


def _copying_words(job: MeasuredJob, copying: Copying) -> tuple[str, ...]:
    """Return how fast workers copy pages, why, what helps, and whether there is room for the rest."""
    each, left = copying.bytes_s / copying.workers, job.machine.memory_left_bytes
    end = f"they may copy {size_text(copying.left_bytes)} more"
    if left is not None:
        hours = hours_until_full(job)
        full = f": full in {60 * hours:.0f} min" if hours is not None else ", which has room"
        end += f"; {size_text(left)} of memory are left{full}"
    return (
        f"{count_text(copying.workers, 'worker')} each make {each / 1e6:.1f} MB/s of memory their own that the fork shared",
        "reading a Python object writes its reference count, so its page is copied: keep labels and paths in an array (NumPy)",
        end,
    )


def hours_until_full(job: MeasuredJob) -> float | None:
    """Return the hours until memory is full at the present growth; None when it does not grow or was not measured.

    Workers that copy what the fork shares stop when all is copied.
    """
    machine = job.machine
    growth, left, copying = machine.memory_growth_bytes_s or 0.0, machine.memory_left_bytes, machine.copying
    if copying is not None and left is not None and copying.left_bytes > left:
        growth += copying.bytes_s
    own_h = left / growth / 3600 if growth and left is not None else None
    shared = machine.shared_growth_bytes_s
    room = [free for free in (left, machine.shared_left_bytes) if free is not None]
    shared_h = min(room) / shared / 3600 if room and shared >= LEAST_SHARED_BYTES_S and job.rank.workers else None
    return min((hours for hours in (own_h, shared_h) if hours is not None), default=None)
