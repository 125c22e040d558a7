"""The fixes of the batch itself: its size, its number format, pinned memory, and what `next()` does in the training process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.diagnosis.fixes.fix_kind import FixKind, Rerun
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.prediction import predicted_fix, round_rate
from headrace.diagnosis.measure.stats import mean_of_known
from headrace.diagnosis.measure.step_model import kept_iterator
from headrace.diagnosis.result.model import Fix
from headrace.diagnosis.rules.input import SMALL_BATCH_BYTES
from headrace.session.model import ObservedLoader

__all__ = ["BATCH_SIZE", "KEEP_ITERATOR", "OWN_PROCESS", "PIN_MEMORY", "SHORTER_NEXT", "UINT8_BATCHES"]

TIMES_LARGER = 4
"""Propose a batch this many times as large."""

COPIED_BYTES_S = 1e9
"""Expect a collate function to copy a batch into new shared memory at least this fast; what it takes longer is other work."""

VALUE_BYTES: Mapping[str, int] = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
"""Bytes of one number in a batch, by dtype. Other dtypes count as float32."""

HIDDEN_COPY = 0.8
"""Assume that this share of the copies runs beside the computation once batches are pinned."""


def _batch_size(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose a larger batch. Of a step `a + c·b`, the fixed cost `a` is then paid once per larger batch."""
    model, rank = job.model, job.rank
    if rank.items is None:
        return None
    share, times = _fixed_share(job), _times_larger(job)
    if times < 2:
        return None
    size = int(rank.items * times)
    name, command = f"batch_size={size}", _batch_size_command(rank.loader, size)
    change = f"batch size {size} instead of {rank.items:.0f}: Python's cost is paid once per batch"
    change += f"; {times} times fewer steps per epoch, so the learning rate must grow (see the note)"
    if command is None:
        change += f"; the {'batch sampler' if rank.loader.batched_by == 'sampler' else 'dataset'} of the script sets it"
    if model is None or share is None:
        return predicted_fix(job, name, change, None, command, basis="the cost per image was not measured")
    fixed_s = share * rank.typical_compute_s
    after = model.changed(
        compute_s=fixed_s + times * (model.compute_s - fixed_s),
        cpu_s=times * model.cpu_s,
        blocked_s=times * model.blocked_s,
        send_s=times * model.send_s,
        serial_s=times * model.serial_s,
        main_cpu_s=fixed_s + times * max(0.0, model.main_cpu_s - fixed_s),
        batches=None if model.batches is None else max(1, model.batches // times),
    )
    basis = "a + c·b from a replayed batch" if job.replay_s else "a + c·b from the operators' share"
    fix = predicted_fix(job, name, change, after, command, basis=basis, scale=float(times), error=0.08)
    if not job.replay_s and fix.interval is not None:
        # Operators have a fixed cost per call, too. At best, the whole step is a fixed cost.
        highest = max(fix.interval[1], round_rate(times * rank.items / rank.step_s))
        return replace(fix, interval=(fix.interval[0], highest))
    return fix


def _times_larger(job: MeasuredJob) -> int:
    """Return how many times as large a batch to propose: at most one that the rank's part of the dataset fills."""
    length, items = job.rank.loader.dataset_length, job.rank.items or 1.0
    if length is None or job.rank.loader.batched_by == "dataset":  # the dataset then counts batches
        return TIMES_LARGER
    return min(TIMES_LARGER, int(length / len(job.ranks) / items))


def _batch_size_command(loader: ObservedLoader, size: int) -> str | None:
    """Return the argument that sets the batch size. None: DataLoader refuses `batch_size`, or it would nest batches."""
    return None if loader.batched_by in ("sampler", "dataset") else f"DataLoader(..., batch_size={size})"


def _set_batch_size(number: int | None, loader: ObservedLoader) -> Rerun | None:
    if number is None or _batch_size_command(loader, number) is None:
        return None
    return Rerun(loader_arguments={"batch_size": number})


def _fixed_share(job: MeasuredJob) -> float | None:
    """Return the share a / (a + c·b) of the compute time, which does not grow with the batch.

    From a replayed batch of three sizes, else from the share of PyTorch operators; None when neither was measured.
    """
    seconds = job.replay_s
    if {"half", "base", "double"} <= seconds.keys():
        per_batch_s = (seconds["double"] - seconds["half"]) / 1.5
        return min(1.0, max(0.0, 1 - per_batch_s / seconds["base"]))
    return None if job.operator_share is None else 1 - job.operator_share


BATCH_SIZE = FixKind(
    "batch_size",
    _batch_size,
    rerun=_set_batch_size,
    is_replayed=True,
)


def _uint8_batches(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose one byte per value, normalised on the device, for large batches whose values have more bytes."""
    model, cost = job.model, job.rank.batch_cost
    value_bytes = VALUE_BYTES.get(job.rank.loader.batch_format or "float32", 4)
    if model is None or cost is None or job.rank.batch_bytes < SMALL_BATCH_BYTES or value_bytes == 1:
        return None
    left = 1 / value_bytes
    copying_s = cost.collate_cpu_s
    if job.rank.loader.collate not in (None, "default_collate"):  # a function of the script's own may do more than copy
        copying_s = min(copying_s, job.rank.batch_bytes / COPIED_BYTES_S)
    after = model.changed(
        handover_s=model.handover_s * left,
        compute_s=max(0.0, model.compute_s - (1 - left) * (job.rank.h2d_s or 0.0)),
        cpu_s=cost.prepare_cpu_s + cost.collate_cpu_s - copying_s * (1 - left),
        send_s=model.send_s * left,
        blocked_s=model.blocked_s,
    )
    part = {2: "half", 4: "a quarter", 8: "an eighth"}[value_bytes]
    change = f"batches of uint8, normalised on the device: {part} of the bytes to collate, send and copy"
    return predicted_fix(job, "uint8_batches", change, after, None, effort="a few lines", error=0.1)


UINT8_BATCHES = FixKind("uint8_batches", _uint8_batches)


def _pin_memory(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose pinned memory and asynchronous copies where copies to a GPU were measured."""
    copy_s = job.rank.h2d_s
    if job.model is None or copy_s is None or job.rank.loader.pin_memory:
        return None
    return predicted_fix(
        job,
        "pin_memory",
        "batches in pinned memory, copied with non_blocking=True while the GPU works",
        job.model.changed(compute_s=max(0.0, job.model.compute_s - HIDDEN_COPY * copy_s)),
        "DataLoader(..., pin_memory=True)",
        effort="one argument",
        error=0.1,
    )


PIN_MEMORY = FixKind("pin_memory", _pin_memory, rerun=lambda number, loader: Rerun(loader_arguments={"pin_memory": True}))


def _without_own_next(job: MeasuredJob, name: str, change: str, seconds: float, *, cpu_s: float = 0.0) -> Fix | None:
    """Return a fix that takes these seconds, and CPU time with them, off `next()` in the training process: an upper bound."""
    model = job.model
    if model is None:
        return None
    after = model.changed(next_s=max(0.0, model.next_s - seconds), main_cpu_s=max(0.0, model.main_cpu_s - cpu_s))
    return predicted_fix(job, name, change, after, None, basis="as if it took no time", effort="a few lines", error=0.1)


def _shorter_next(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose to end the largest part of `next()` that the training process runs itself."""
    rank, inside = job.rank, job.rank.inside_next
    if inside is None or not inside.shares:
        return None
    changes = {
        "sampler": "indices of many batches drawn at once: the sampler takes no time",
        "pinning": "fewer or smaller tensors to pin: pinning takes no time",
        "script": "this work done by the workers: next() only hands over",
    }
    part = max(inside.shares, key=lambda name: inside.shares[name])
    seconds = inside.shares[part] * rank.net_wait_s
    cpu_s = min(seconds, mean_of_known(step.wait_cpu_s for step in rank.steps) or 0.0)
    return _without_own_next(job, "shorter_next", changes[part], seconds, cpu_s=cpu_s)


SHORTER_NEXT = FixKind("shorter_next", _shorter_next)


def _own_process(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose a process of its own for the thread that holds the interpreter in `next()`, or in the step."""
    change, model = "the thread's work in a process of its own", job.model
    if kind != "GIL_IN_STEP":
        return _without_own_next(job, "own_process", change, job.rank.held_s or job.rank.next_s)
    if model is None or job.held_step is None:
        return None
    after = model.changed(compute_s=max(0.0, model.compute_s - job.held_step[0]))
    return predicted_fix(job, "own_process", change, after, None, basis="the time measured", effort="a few lines")


OWN_PROCESS = FixKind("own_process", _own_process)


def _keep_iterator(job: MeasuredJob, kind: str) -> Fix | None:
    """Propose one iterator for all batches of an epoch."""
    if job.model is None:
        return None
    ahead = ", whose workers make batches ahead" if job.rank.workers else ""
    return predicted_fix(
        job,
        "keep_iterator",
        f"one iterator for the whole epoch (for batch in loader){ahead}",
        kept_iterator(job.model),
        "batches = iter(loader) before the loop, and next(batches) in it",
        effort="a few lines",
        error=0.15,
    )


KEEP_ITERATOR = FixKind("keep_iterator", _keep_iterator)
