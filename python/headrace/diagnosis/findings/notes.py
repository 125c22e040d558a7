"""Notes on the training beside the findings: on the loss, and on what a larger batch asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from headrace.diagnosis.measure import Rank
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.stats import mean, median, required
from headrace.diagnosis.result.model import Finding, Fix, Note
from headrace.session.model import Loss, Session
from headrace.system.text.sizes import count_text, percent_text

__all__ = ["batch_size_notes", "changed_limits_notes", "finding_notes", "loss_notes"]

LEAST_VALUES = 24
"""Judge the trend of the loss from at least this many values."""

LEAST_STEPS = 50
"""Judge the trend of the loss from at least this many watched steps."""

STANDARD_ERRORS = 3.0
"""Call the loss moved when its first and last third differ by more than this many standard errors of that difference."""

LEAST_SHARE = 0.001
"""Call a change of the loss by less than this share no move, however certain it is."""

SEEN_SHARE = 0.04
"""Say nothing where the loss varies so much that a change by this share would not have been seen."""


def loss_notes(session: Session, rank: Rank) -> tuple[Note, ...]:
    """Return a note when the loss of a rank is not a number, or does not move over the watched steps; else nothing.

    The loss is that of the first `backward()` of a step (`headrace.attach.training.loss`). Where none was seen, there is no
    note. Only the steps of the last model are compared: of one that begins anew, as in each fold, no trend is older.
    """
    losses = [loss for loss in session.losses if loss.pid == rank.process.pid]
    broken = next((loss for loss in losses if not math.isfinite(loss.value)), None)
    if broken is not None:
        return (Note("loss_not_finite", _broken_words(broken, losses, rank)),)
    pid, steps = rank.process.pid, rank.all_steps
    begun_s = max((one.start_s for one in session.events if one.name == "new_weights" and one.pid == pid), default=0.0)
    values = [loss.value for loss in losses if loss.time_s >= begun_s]
    watched = sum(step.start_s + step.step_s >= begun_s for step in steps)
    if len(values) < LEAST_VALUES or watched < LEAST_STEPS or _has_trends(values):
        return ()
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    begin, end = required(mean(first)), required(mean(last))
    change, level = end - begin, required(median([abs(value) for value in values]))
    error = math.hypot(_standard_error(first), _standard_error(last))
    is_still = abs(change) <= STANDARD_ERRORS * error or abs(change) <= LEAST_SHARE * level
    if not is_still or STANDARD_ERRORS * error > SEEN_SHARE * level:
        return ()
    seen = percent_text(max(LEAST_SHARE, STANDARD_ERRORS * error / level))
    text = (
        f"the loss does not move over {count_text(watched, 'watched step')}: {begin:.4g} in the first third, {end:.4g} in the "
        f"last (a change of {seen} would show). Early in a training: headrace diagnose --find-learning-rate; check labels and "
        "frozen weights"
    )
    return (Note("loss_still", text),)


def _has_trends(values: Sequence[float]) -> bool:
    """Return whether neighbouring values are closer than by chance (von Neumann's ratio): the loss moves for a while.

    So it does where weights are set back in place, or a rate rises and falls, although first and last third are equal.
    """
    count, level = len(values), required(mean(values))
    squares = math.fsum((value - level) ** 2 for value in values)
    apart = math.fsum((later - earlier) ** 2 for earlier, later in pairwise(values))
    return apart < (2 - STANDARD_ERRORS * 2 * math.sqrt((count - 2) / (count * count - 1))) * squares


def _broken_words(broken: Loss, losses: Sequence[Loss], rank: Rank) -> str:
    """Return that the loss is not a number, and from which step on."""
    before = sum(step.start_s < broken.time_s for step in rank.all_steps)
    stays = all(not math.isfinite(loss.value) for loss in losses if loss.time_s >= broken.time_s)
    what = "NaN" if math.isnan(broken.value) else "infinite"
    since = f"from step {before:,} on" if stays else f"in step {before:,}"
    return f"the loss is {what} {since}: the weights learn nothing from such a step (a lower learning rate, gradient clipping)"


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of neighbouring values, from their differences: a slow trend adds nothing to it."""
    squares = [(later - earlier) ** 2 for earlier, later in pairwise(values)]
    return math.sqrt(math.fsum(squares) / (2 * len(squares)) / len(values)) if squares else math.inf


NOTED_KINDS = ("MEMORY_GROWTH", "SCRIPT_BOUND", "GIL_IN_STEP", "GROWING_STEP", "GC_PAUSE")
NOTED_SETTINGS = (
    "ANOMALY_MODE", "PROFILER_ON", "DENORMALS", "RECOMPILATION", "DETERMINISTIC", "FIND_UNUSED", "NO_LEARNING",
    "SLOW_FORMAT",
)  # fmt: skip
"""Findings to name on the first screen although another one is the verdict, and settings to name there."""

SQUARE_ROOT_OPTIMIZERS = ("Adam", "Lamb", "LAMB", "Adagrad", "RMSprop", "Lion", "Adan")
"""Optimizers with one of these in their name normalise the gradient: their rate grows with the square root of the batch."""


def batch_size_notes(job: MeasuredJob, fixes: Sequence[Fix]) -> tuple[Note, ...]:
    """Return notes on the steps of an epoch and the learning rate with the batch size that a fix proposes; () without one."""
    fix = next((fix for fix in fixes if fix.id.startswith("batch_size=")), None)
    rank = job.rank
    if fix is None or not rank.items:
        return ()
    size = int(fix.id.partition("=")[2])
    times, length = size / rank.items, rank.loader.dataset_length
    epoch = f"an epoch has {times:.3g} times fewer steps"
    if length and rank.loader.batched_by != "dataset":
        now, then = (math.ceil(length / len(job.ranks) / count) for count in (rank.items, size))
        epoch += f" ({then:,} instead of {now:,})"
    rate = _rate_words(times, job.settings.get("optimizer"))
    return (Note("larger_batch", f"{fix.id}: {epoch}, so each must move the weights further. {rate}"),)


def _rate_words(times: float, optimizer: str | None) -> str:
    """Return the rule for the learning rate of a batch that is `times` as large, for the optimizer of the job."""
    linear = f"{times:.3g} times the learning rate for SGD (linear scaling rule, Goyal et al. 2017)"
    root = f"{math.sqrt(times):.3g} times for Adam and its kin (square root)"
    warm = "with a warm-up over the first epochs. Check the accuracy: very large batches lose some"
    if optimizer is None:
        return f"Usual are {linear} or {root}, {warm}"
    is_adaptive = any(name.lower() in optimizer.lower() for name in SQUARE_ROOT_OPTIMIZERS)
    usual = f"{math.sqrt(times):.3g} times the learning rate (square root scaling)" if is_adaptive else linear
    return f"Usual for {optimizer} is {usual}, {warm}"


def changed_limits_notes(session: Session) -> tuple[Note, ...]:
    """Return a note for cores or a CPU quota that changed while the job ran."""
    notes = []
    changed = next((sample for sample in session.samples if sample.affinity is not None), None)
    if changed is not None and changed.affinity is not None:
        before = session.host.cores_affinity or session.host.cores_online or 0
        cores = count_text(len(changed.affinity), "core")
        words = f"from second {changed.time_s:.0f} on the job may use {cores} instead of {before} (its affinity was changed)"
        notes.append(Note("changed_limits", words))
    quota = next((sample for sample in session.samples if sample.quota_cores is not None), None)
    if quota is not None:
        words = f"from second {quota.time_s:.0f} on the CPU quota is {quota.quota_cores:g} cores (it was changed)"
        notes.append(Note("changed_limits", words))
    return tuple(notes)


def finding_notes(findings: Sequence[Finding], configuration: Sequence[Finding]) -> tuple[Note, ...]:
    """Return notes on findings behind the verdict that name a place or a process, and on settings that no fix's gain shows."""
    named = [Note("finding", f"{found.summary} ({found.kind})") for found in findings[1:] if found.kind in NOTED_KINDS]
    return (*named, *(Note("setting", found.evidence[0]) for found in configuration if found.kind in NOTED_SETTINGS))
