"""The fixes of the training process beside the model: its threads, waits for the device, checkpoints, garbage collection."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.job import MeasuredJob
from headrace.diagnosis.model import Fix
from headrace.diagnosis.prediction import predicted_fix, round_rate
from headrace.session.model import ObservedLoader

__all__ = ["ASYNC_CHECKPOINT", "GC_FREEZE", "REMOVE_SYNC", "THREADS"]

WITHOUT_SPINNING = 0.8
"""Assumed CPU time of the training process with one compute thread, over the time with several on full cores."""


def _threads(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose one compute thread: several threads spin on full cores while they wait for one another."""
    threads = job.rank.process.torch_threads or 1
    if job.model is None or threads <= 1 or job.machine.gpu_busy is not None:
        return None
    queue_s = job.rank.main_queue_s or 0.0
    return predicted_fix(
        job,
        "threads=1",
        f"one compute thread instead of {threads} ({queue_s * 1e3:.3g} ms per step are lost to queueing now)",
        job.model.changed(main_cpu_s=job.model.main_cpu_s * WITHOUT_SPINNING),
        "OMP_NUM_THREADS=1",
        effort="one variable",
        error=0.1,
    )


def _set_threads(number: int | None, loader: ObservedLoader) -> Rerun | None:
    return None if number is None else Rerun(environment={"OMP_NUM_THREADS": str(number)})


THREADS = FixKind("threads", _threads, rerun=_set_threads)


def _remove_sync(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to wait for the device rarely. Script and device then work side by side; the longer of the two remains."""
    rank = job.rank
    if job.model is None or rank.sync_s is None:
        return None
    fix = predicted_fix(
        job,
        "remove_sync",
        f"no .item(), .cpu() or print of tensors in every step ({rank.sync_count:.0f} waits now), but every 50 steps",
        job.model.changed(compute_s=max(rank.host_work_s, rank.sync_s)),
        None,
        basis="the device works while the script does",
        effort="a few lines",
    )
    if job.machine.gpu_busy is None and fix.interval is not None and rank.items is not None:
        # Whether the device idles between the waits was not measured, so the gain may be nothing.
        return replace(fix, interval=(min(fix.interval[0], round_rate(rank.items / rank.step_s)), fix.interval[1]))
    return fix


REMOVE_SYNC = FixKind("remove_sync", _remove_sync)


def _async_checkpoint(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to write checkpoints in a thread. Without a `torch.save` in the pauses, propose nothing."""
    pauses = job.rank.pauses
    lost_s = pauses.save_s + pauses.unknown_s if pauses.save_s else 0.0
    if job.model is None or lost_s <= 0:
        return None
    return predicted_fix(
        job,
        "async_checkpoint",
        "checkpoints written by a thread while training goes on",
        job.model.changed(compute_s=max(0.0, job.model.compute_s - lost_s)),
        None,
        basis="the time measured",
        effort="a few lines",
    )


ASYNC_CHECKPOINT = FixKind("async_checkpoint", _async_checkpoint)


def _gc_freeze(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to exempt the objects of the set-up from garbage collection, and to collect between epochs only."""
    lost_s = job.rank.pauses.gc_s
    if job.model is None or lost_s <= 0:
        return None
    return predicted_fix(
        job,
        "gc_freeze",
        "gc.freeze() after set-up, and collections only between epochs",
        job.model.changed(
            compute_s=max(0.0, job.model.compute_s - lost_s),
            main_cpu_s=max(0.0, job.model.main_cpu_s - lost_s),
        ),
        "gc.collect(); gc.freeze()",
        basis="the time measured",
        effort="a few lines",
    )


GC_FREEZE = FixKind("gc_freeze", _gc_freeze)
