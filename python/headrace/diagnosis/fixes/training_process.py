"""The fixes of the training process beside the model: its threads, waits for the device, checkpoints, garbage collection."""

from __future__ import annotations

import shlex
from dataclasses import replace

from headrace.attach.machine.thread_settings import THREAD_VARIABLES
from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.measure.hot_functions import place_words
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix, round_rate
from headrace.diagnosis.measure.step_model import without_share
from headrace.diagnosis.result.model import Fix
from headrace.diagnosis.rules.contention import Contention, measure_contention
from headrace.diagnosis.rules.pauses import PERIODIC_PART, gc_call_words
from headrace.session.model import ObservedLoader
from headrace.system.text.sizes import count_text

__all__ = ["ASYNC_CHECKPOINT", "GC_FREEZE", "LESS_OFTEN", "REMOVE_GC_COLLECT", "REMOVE_SYNC", "THREADS"]

WITHOUT_SPINNING = 0.8
"""Assumed CPU time of the training process with one compute thread, over the time with several on full cores."""

SETTERS = {"cv2": "setNumThreads", "numba": "set_num_threads"}
"""Functions that set the number of threads of libraries that do not always follow OMP_NUM_THREADS."""

VARIABLES = {"cv2": "OPENCV_FOR_THREADS_NUM", "numba": "NUMBA_NUM_THREADS"}
"""Environment variables from which these libraries read their number of threads when loaded; the others: OMP_NUM_THREADS."""


def _threads(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose as many threads as have cores: threads without a core make the others spin."""
    found = measure_contention(job)
    if found is not None:
        return _fewer_threads(job, found)
    threads = job.rank.process.torch_threads or 1
    if job.model is None or threads <= 1 or job.machine.gpu_busy is not None:
        return None
    queue_s = job.rank.main_queue_s or 0.0
    return predicted_fix(
        job,
        "threads=1",
        f"one compute thread instead of {threads} ({queue_s * 1e3:.3g} ms per step are lost to queueing now)",
        job.model.changed(main_cpu_s=job.model.main_cpu_s * WITHOUT_SPINNING),
        _with_threads(job, 1),
        effort="one variable",
        error=0.1,
    )


def _fewer_threads(job: MeasuredJob, found: Contention) -> Fix:
    """Predict the step with fewer threads from the useful CPU time, and from the waits for a core that may remain."""
    rank = job.rank
    name = "one thread" if found.proposed == 1 else f"{found.proposed} threads"
    command = _with_threads(job, found.proposed, VARIABLES.get(found.library, "OMP_NUM_THREADS"))
    change = f"{name} in each {found.where} instead of {found.threads}"
    if found.where == "training process":
        change = f"{name} in the training process instead of {found.threads}"
        if _set_by_script(job):
            change += f" (the script sets its own number: torch.set_num_threads({found.proposed}))"
    elif found.library in SETTERS:
        change += f" (or in worker_init_fn: {found.library}.{SETTERS[found.library]}({found.proposed}))"
    if rank.items is None:
        return Fix(f"threads={found.proposed}", change, command=command, basis="not predicted: no count of images")
    shortest_s, likely_s, longest_s = found.step_s
    return Fix(
        f"threads={found.proposed}",
        change,
        round_rate(rank.items / likely_s),
        (round_rate(0.9 * rank.items / longest_s), round_rate(1.1 * rank.items / shortest_s)),
        command=command,
        gain=round(rank.step_s / likely_s, 3),
        basis="the useful CPU time measured",
        effort="one variable",
    )


def _set_by_script(job: MeasuredJob) -> bool:
    """Return whether PyTorch has another number of threads than the variable in the environment says."""
    settings = job.rank.process.thread_settings
    return "OMP_NUM_THREADS" in settings and settings["OMP_NUM_THREADS"] != str(settings.get("torch"))


def _with_threads(job: MeasuredJob, threads: int, variable: str = "OMP_NUM_THREADS") -> str:
    """Return the command with fewer threads. A variable that is set already goes before the general one in its library."""
    given = [name for name in THREAD_VARIABLES if name in job.rank.process.thread_settings]
    names = dict.fromkeys((variable, *given))
    return " ".join((*(f"{name}={threads}" for name in names), shlex.join(job.session.command))).rstrip()


def _set_threads(number: int | None, loader: ObservedLoader) -> Rerun | None:
    if number is None:
        return None
    return Rerun(environment=dict.fromkeys(THREAD_VARIABLES, str(number)), threads=number)


THREADS = FixKind("threads", _threads, rerun=_set_threads)


def _remove_sync(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to wait for the device rarely. Script and device then work side by side."""
    rank, model, idle_s = job.rank, job.model, job.sync_idle_s
    if model is None or idle_s <= 0:
        return None
    waits = count_text(round(rank.sync_count or 0), "wait")
    fix = predicted_fix(
        job,
        "remove_sync",
        f"no .item(), .cpu() or print of tensors in every step ({waits} now), but every 50 steps",
        model.changed(compute_s=max(0.0, model.compute_s - idle_s)),
        None,
        basis="the device works while the script does",
        effort="a few lines",
    )
    if job.machine.gpu_busy is None and fix.interval is not None and rank.items is not None:
        # Whether the device idles between the waits was not measured, so the gain may be nothing.
        return replace(fix, interval=(min(fix.interval[0], round_rate(rank.items / rank.step_s)), fix.interval[1]))
    return fix


REMOVE_SYNC = FixKind("remove_sync", _remove_sync)


LESS_OFTEN_STEPS = 50
"""Propose to call a function of the script once in this many steps."""

LESS_OFTEN_TIMES = 10
"""Propose to call a function that already runs in some steps only this many times more rarely."""

IF_FREE = "unless the training needs it (an average of the weights)"


def _less_often(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to call the script's longest function after the optimizer's step more rarely; one before it may be the loss."""
    model, pauses = job.model, job.rank.pauses
    first = next((one for one in job.script.functions if one.after), None)
    if first is None or model is None or model.compute_s <= 0:
        return None
    what = f"{first.name} ({place_words(first.file, first.line, job.session.cwd)})"
    every, left = LESS_OFTEN_STEPS, 1 / LESS_OFTEN_STEPS
    if job.script_pause_s >= PERIODIC_PART * first.seconds:  # single long steps hold its time, so it may be rare already
        if pauses.period is None:
            change = f"{what} less often, or in a thread, {IF_FREE}"
            return Fix("less_often", change, basis="not predicted: it may take long in some steps only", effort="a few lines")
        every, left = LESS_OFTEN_TIMES * pauses.period, 1 / LESS_OFTEN_TIMES
    return predicted_fix(
        job,
        "less_often",
        f"{what} every {every} steps, or in a thread, {IF_FREE}",
        without_share(model, first.seconds * (1 - left) / model.compute_s),
        f"if step % {every} == 0: ...",
        basis="the time measured",
        effort="a few lines",
    )


LESS_OFTEN = FixKind("less_often", _less_often)


def _async_checkpoint(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to write checkpoints in a thread. Without a `torch.save` in the pauses, propose nothing."""
    lost_s = job.rank.pauses.save_s
    if job.model is None or lost_s <= 0:
        return None
    return predicted_fix(
        job,
        "async_checkpoint",
        "checkpoints written by a thread while training goes on",
        without_share(job.model, lost_s / max(lost_s, job.rank.compute_s)),
        None,
        basis="the time measured",
        effort="a few lines",
    )


ASYNC_CHECKPOINT = FixKind("async_checkpoint", _async_checkpoint)


def _gc_freeze(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to exempt the objects of the set-up from garbage collection, and to collect between epochs only."""
    lost_s = job.rank.pauses.gc_s
    if job.model is None or lost_s <= 0 or gc_call_words(job) is not None:
        return None
    return predicted_fix(
        job,
        "gc_freeze",
        "gc.freeze() after set-up, and collections only between epochs",
        without_share(job.model, lost_s / max(lost_s, job.rank.compute_s)),
        "gc.collect(); gc.freeze()",
        basis="the time measured",
        effort="a few lines",
    )


GC_FREEZE = FixKind("gc_freeze", _gc_freeze)


def _remove_gc_collect(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to leave out the script's own collections."""
    lost_s, called = job.rank.pauses.gc_s, gc_call_words(job)
    if job.model is None or lost_s <= 0 or called is None:
        return None
    return predicted_fix(
        job,
        "remove_gc_collect",
        f"no gc.collect() at {called}: Python collects by itself",
        without_share(job.model, lost_s / max(lost_s, job.rank.compute_s)),
        None,
        basis="the time measured",
        effort="one line",
    )


REMOVE_GC_COLLECT = FixKind("remove_gc_collect", _remove_gc_collect)
