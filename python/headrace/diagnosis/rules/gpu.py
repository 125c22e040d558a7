"""The rules for the training process and its device: copies, waits for the device, Python overhead, computation."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.measure.hot_functions import hot_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding
from headrace.diagnosis.rules.curves import GPU_BUSY
from headrace.diagnosis.rules.finding import duration, make_finding
from headrace.diagnosis.rules.input import is_small_handover
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["compute_bound", "h2d_bound", "overhead_bound", "sync_bound"]

H2D_SHARE = 0.12
"""Report copies to the GPU when they take at least this share of the step."""

SYNC_SHARE = 0.10
"""Report waits for the device when they cost at least this share of the step."""

OVERHEAD_SHARE = 0.40
"""Report Python overhead when it takes at least this share of the step."""

BUSY_THREAD = 0.6
"""Without a GPU, look for overhead only when the training thread is on a core for at least this share of the compute time."""

MANY_TIMES = 3.0
"""Say from this share on how many times as fast the input could be, in place of per cent."""

LITTLE_HEADROOM = 0.3
"""Warn that the input is the next limit when it could be faster by less than this share."""


def h2d_bound(job: MeasuredJob) -> Finding | None:
    """Report that copying batches to the GPU takes the time."""
    copied = job.rank.h2d_s
    if copied is None or job.share(copied) < H2D_SHARE:
        return None
    pinned = "pinned" if job.rank.loader.pin_memory else "not pinned (pin_memory=False)"
    return make_finding(
        "H2D_BOUND", job.share(copied), f"copying to the GPU takes {duration(copied)} per step; batches are {pinned}"
    )


def sync_bound(job: MeasuredJob) -> Finding | None:
    """Report that the script waits for the device, once or several times per step, and that the device idles in between."""
    rank, share = job.rank, job.share(job.sync_idle_s)
    if share < SYNC_SHARE:
        return None
    count = round(rank.sync_count or 0)
    times = f"{count} times" if count > 1 else "once"
    return make_finding(
        "SYNC_BOUND",
        share,
        f"the script waits for the device {times} per step, {duration(rank.sync_s or 0.0)} in all",
        f"without these waits {duration(job.sync_idle_s)} of each step would run beside the device's work",
    )


def overhead_bound(job: MeasuredJob) -> Finding | None:
    """Report that the training thread is always busy, but little of its time goes into operators or GPU kernels."""
    rank, machine = job.rank, job.machine
    size = f"the batch has {count_text(round(rank.items), 'image')}" if rank.items else "the batch is small"
    if machine.gpu_busy is not None and rank.gpu_step_s is not None:
        # The GPU idles while the thread waits for input, copies, or waits in .item(). The rest of its idle time is overhead.
        taken_s = rank.exposed_wait_s + (rank.h2d_s or 0.0) + (rank.sync_s or 0.0) + job.script.seconds
        idle = max(0.0, 1 - machine.gpu_busy - taken_s / rank.step_s)
        if idle < OVERHEAD_SHARE or not job.is_drained:
            return None
        words = (
            f"the GPU runs kernels {percent_text(machine.gpu_busy)} of the time and has finished before the next step starts"
        )
        return make_finding("OVERHEAD_BOUND", idle, words, size, *hot_words(job.session, "step"))
    queued_s = rank.compute_queue_s or 0.0  # other programs' share, which a busy machine only lengthens
    work_s = max(0.0, rank.typical_compute_s - queued_s)
    if rank.main_cpu_s is None or rank.main_cpu_s < BUSY_THREAD * work_s:
        return None
    operators = job.operator_share
    if operators is None:
        return None
    handover_s = rank.handover_s if is_small_handover(rank) else 0.0
    overhead_s = max(0.0, (1 - operators) * work_s - job.script.seconds) + handover_s
    if overhead_s < OVERHEAD_SHARE * (rank.step_s - rank.core_wait_s):
        return None
    share = job.share(overhead_s)
    return make_finding(
        "OVERHEAD_BOUND",
        share,
        f"only {percent_text(operators)} of the step's compute is in PyTorch operators, the rest in Python",
        size,
        *hot_words(job.session, "step"),
    )


def compute_bound(job: MeasuredJob, computing: float, *, beside: tuple[Finding, ...] = ()) -> Finding:
    """Report that computation sets the pace, and how much faster the input could go.

    computing: share of the step that is computing. beside: the causes with smaller shares.
    """
    rank = job.rank
    evidence = [f"{duration(computing * rank.step_s)} of each {duration(rank.step_s)} step is computation"]
    if job.machine.gpu_busy is not None:
        evidence.append(f"the GPU runs kernels {percent_text(job.machine.gpu_busy)} of the time")
    room = _input_headroom(job)
    if room is not None:
        evidence.append(
            f"the input could be {_faster_words(room)} the model takes it"
            + ("; a model that is faster by more than that makes the input the limit" if room < LITTLE_HEADROOM else "")
        )
    busy = job.machine.gpu_busy
    if busy is not None and computing - busy > 1 - GPU_BUSY:
        words = f"the GPU runs kernels {percent_text(busy)} of the time; what it waits for in the rest was not seen"
        return replace(make_finding("COMPUTE_BOUND", computing, *evidence), summary=words, cause_seen=False)
    found = make_finding("COMPUTE_BOUND", computing, *evidence)
    late = [one for one in beside if KINDS[one.kind].is_input and one.share]
    return replace(found, summary="the model's own computation takes the largest part of the step") if late else found


def _faster_words(room: float) -> str:
    return f"{percent_text(room)} faster than" if room < MANY_TIMES else f"{room + 1:.0f} times as fast as"


def _input_headroom(job: MeasuredJob) -> float | None:
    """Return how much faster than the step the input could go (0.1 is 10 %); None where that was not measured."""
    if job.model is None or not job.model.workers:
        return None
    terms = job.model.terms_s
    supply_s = max(terms["workers"], terms["storage"])
    return max(0.0, job.rank.step_s / supply_s - 1) if supply_s > 0 else None
