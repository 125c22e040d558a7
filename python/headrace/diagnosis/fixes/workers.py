"""The fixes of the loader's worker processes: their number, their start, the cores they run on."""

from __future__ import annotations

from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.fixes.worker_limits import WorkerLimit, worker_limits
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix, round_rate
from headrace.diagnosis.result.model import Fix
from headrace.diagnosis.rules.contention import measure_contention
from headrace.diagnosis.rules.input import workers_that_fit
from headrace.session.model import ObservedLoader
from headrace.system.text.sizes import count_text

__all__ = ["NUM_WORKERS", "PERSISTENT_WORKERS", "PREFETCH", "SPREAD_WORKERS"]

MOST_WORKERS = 32
"""Never propose more workers than this."""

AS_GOOD_RATIO = 1.03
"""Propose the fewest workers whose modelled step is at most this many times the step with `MOST_WORKERS`."""


def _num_workers(job: MeasuredJob, kind: str) -> Fix | None:
    return _fewer_workers(job) if kind == "CPU_OVERSUBSCRIBED" else _more_workers(job)


def _more_workers(job: MeasuredJob) -> Fix | None:
    """Propose the fewest workers that are as good as any number that memory and /dev/shm have room for.

    When the job has that many already, more are no advice: they are predicted, as an example, to say that they do not help.
    """
    model, cost = job.model, job.rank.batch_cost
    if model is None or (model.workers and cost is not None and cost.is_refused):
        return None
    if job.machine.copying is not None:
        return None  # each further worker would copy the same objects
    limits = worker_limits(job)
    most = min([MOST_WORKERS, *(limit.workers for limit in limits)])
    if most <= model.workers and limits and limits[0].workers <= model.workers:
        return None  # not one more fits
    best_s = model.changed(workers=MOST_WORKERS).step_s
    wanted = next(n for n in range(1, MOST_WORKERS + 1) if model.changed(workers=n).step_s <= AS_GOOD_RATIO * best_s)
    count = min(wanted, most)
    is_enough = count <= model.workers
    if is_enough:
        count = max(2 * model.workers, model.workers + 2)
        count = min([count, *(limit.workers for limit in limits)])
    change = f"{_workers(count)} instead of {model.workers or 'none'}" + _bound_words(job, count, wanted, limits)
    if is_enough:
        change = f"more than the {_workers(model.workers)} of now (for example {count})"
    if job.rank.loader.iterable and count > 1:
        change += "; the iterable dataset must give each worker its own part (get_worker_info), else samples come twice"
    contends = not model.workers and measure_contention(job) is not None
    return predicted_fix(
        job,
        f"num_workers={count}",
        change,
        None if contends else model.changed(workers=count),
        None if is_enough else f"DataLoader(..., num_workers={count})",
        basis="PyTorch gives a worker one thread, so the contention changes too" if contends else "closed form",
        effort="one argument",
    )


def _bound_words(job: MeasuredJob, count: int, wanted: int, limits: list[WorkerLimit]) -> str:
    """Return a clause on the limit of the number of workers (batches, memory, cores), or on its need of more than there are."""
    model, cores = job.model, job.machine.cores
    if limits and count == limits[0].workers and (count < wanted or not limits[0].each_bytes):
        return f", no more: {limits[0].bound}"
    words = ""
    if model is not None and model.changed(workers=count).binding == "cpu":
        words = f", no more: {cores or 1:g} cores bind"
    elif cores and count > cores:
        words = f", more than the {cores:g} cores: they mostly wait, not compute"
        words += f" ({MOST_WORKERS} is the most that is proposed)" if count == MOST_WORKERS else ""
    needs = [limit.needs(count) for limit in limits if limit.each_bytes]
    if count > (cores or count) and needs:
        words += "; they need about " + " and ".join(needs)
    return words


def _fewer_workers(job: MeasuredJob) -> Fix | None:
    """Propose as many workers as leave one core to the training process, so that no thread has to wait for a core."""
    model, cores = job.model, job.machine.cores
    if model is None or not cores or model.workers < 2:
        return None
    count = workers_that_fit(model.workers, cores)
    return predicted_fix(
        job,
        f"num_workers={count}",
        f"{_workers(count)} instead of {model.workers}, so that threads stop queueing for {count_text(round(cores), 'core')}",
        model.changed(workers=count),
        f"DataLoader(..., num_workers={count})",
        effort="one argument",
        error=0.15,
    )


def _workers(count: int) -> str:
    return "one loader worker" if count == 1 else f"{count} loader workers"


def _loader_argument(name: str, number: int | None) -> Rerun | None:
    return None if number is None else Rerun(loader_arguments={name: number})


NUM_WORKERS = FixKind("num_workers", _num_workers, rerun=lambda number, loader: _loader_argument("num_workers", number))


def _prefetch(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose nothing: a DataLoader's `prefetch_factor` sets no pace. `tensorflow` offers `prefetch=1`."""
    return None


PREFETCH = FixKind("prefetch", _prefetch, rerun=lambda number, loader: _loader_argument("prefetch_factor", number))


def _spread_workers(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to let workers run on all cores. The model before the fix counts their queueing as blocked time."""
    model, cost = job.model, job.rank.batch_cost
    if model is None or cost is None or not cost.queue_s:
        return None
    return predicted_fix(
        job,
        "spread_workers",
        f"workers free to run on all {job.machine.cores or 1:g} cores: nothing binds them to a few",
        model,
        "no os.sched_setaffinity, taskset, OMP_PROC_BIND or KMP_AFFINITY that workers inherit",
        effort="one line",
        error=0.05,
        before=model.changed(blocked_s=model.blocked_s + cost.queue_s),
    )


SPREAD_WORKERS = FixKind("spread_workers", _spread_workers)


def _persistent_workers(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to keep workers from epoch to epoch. The prediction removes all starts but the first from the run."""
    rank = job.rank
    is_persistent = rank.loader.persistent_workers and not rank.loader.remade
    if job.model is None or rank.items is None or is_persistent or not rank.workers or rank.epochs < 2:
        return None
    images = sum(step.items or 0 for step in rank.all_steps)
    loop_s, saved_s = rank.loop_s + rank.workers_start_s, rank.epoch_start_s * (rank.epochs - 1) / rank.epochs
    after = images / max(1e-9, loop_s - saved_s)
    change = "workers kept from epoch to epoch (persistent_workers=True)"
    if rank.loader.remade:
        change = "one DataLoader, made before the first epoch, that keeps its workers (persistent_workers=True)"
    return Fix(
        "persistent_workers",
        change,
        round_rate(after),
        (round_rate(0.9 * after), round_rate(1.05 * after)),
        command="DataLoader(..., persistent_workers=True)",
        gain=round(loop_s / max(1e-9, loop_s - saved_s), 3),
        basis="the starts measured",
        effort="one argument",
    )


def _keep_workers(number: int | None, loader: ObservedLoader) -> Rerun | None:
    """Return None for a loader that the script creates again in each epoch: the argument cannot keep its workers."""
    return None if loader.remade else Rerun(loader_arguments={"persistent_workers": True})


PERSISTENT_WORKERS = FixKind("persistent_workers", _persistent_workers, rerun=_keep_workers)
