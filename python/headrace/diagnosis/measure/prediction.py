"""Predict the rate after a fix, with an interval, from the step model.

A prediction is relative: measured rate × modelled step now / modelled step after. What the model leaves out on both sides
cancels. `_bound` holds each prediction below what arithmetic allows. A fix that cannot help is predicted with a gain of
1.0, and its text begins with "≈ 0".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.step_model import TERM_WORDS, StepModel
from headrace.diagnosis.result.model import Fix

__all__ = ["NO_HELP", "ceiling_img_s", "predict_gain", "predicted_fix", "round_rate"]

BASE_ERROR = 0.08
"""Half-width of an 80 % interval when the model fits exactly: repeated runs of one job differ by this share."""

CPU_ERROR = 0.15
"""Widen the interval by this share when cores bind: how the kernel shares them out cannot be predicted."""

FULL_SHARE = 0.85
"""Count the cores as shared with other programs from this mean use on."""

NO_HELP = 1.03
"""Call a predicted gain "≈ 0" below this ratio."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted effect of a change: images/s with an 80 % interval, ratio to the present rate, and the next limit."""

    img_s: float
    interval: tuple[float, float]
    gain: float
    next_bottleneck: str


def ceiling_img_s(job: MeasuredJob) -> float | None:
    """Return the images per second of this rank if no batch were late: items / (the rest of the step + hand-over)."""
    rank = job.rank
    floor_s = _training_floor_s(job, rank.handover_s)
    return rank.items / floor_s if rank.items is not None and floor_s > 0 else None


def _training_floor_s(job: MeasuredJob, handover_s: float, *, next_left: float = 0.0) -> float:
    """Return the seconds that a step takes if no batch is late: what passes outside the wait for input, and the hand-over.

    next_left: share of the present work of `next()` itself that remains.

    Of several ranks, the one with the longest own part counts, and the wait for gradients that all of them have.
    """
    rest_s = job.rank.step_s - job.rank.exposed_wait_s
    waits_s = [rank.collective_s for rank in job.ranks if rank.collective_s is not None]
    if len(waits_s) == len(job.ranks) > 1:
        own_s = [rank.step_s - rank.exposed_wait_s - (rank.collective_s or 0.0) for rank in job.ranks]
        rest_s = max(rest_s, max(own_s) + min(waits_s))
    return rest_s + job.rank.exposed_of_handover_s(handover_s) + min(1.0, next_left) * job.exposed_next_s


def _bound(job: MeasuredJob, now: StepModel, after: StepModel, scale: float, *, waits_s: float = 0.0) -> tuple[float, str]:
    """Return the images per second that no change from `now` to `after` exceeds, and the term that sets this bound.

    waits_s: seconds per step that the training process takes besides.

    The training process keeps its measured time, less the share that the change takes off its computing: each part is taken
    off once, with its waits for a core, however the model counts it. And a step is as long as the largest of the terms that
    remain. A term that is larger than the step was measured with the same work is a fault of the model; the present rate is
    possible in any case.
    """
    rank, items = job.rank, job.rank.items or 0.0
    next_left = after.next_s / now.next_s if now.next_s else 0.0
    rest_s = _training_floor_s(job, after.handover_s, next_left=next_left)
    if after.compute_s >= now.compute_s:
        training_s = rest_s + after.compute_s - now.compute_s
    else:
        training_s = rest_s * after.compute_s / now.compute_s
    by_training = scale * items / max(training_s + waits_s, 1e-9)
    term, others_s = max(((name, value) for name, value in after.terms_s.items() if name != "compute"), key=lambda one: one[1])
    by_others = max(scale * items / max(others_s, 1e-9), items / rank.step_s)
    return (by_training, "compute") if by_training <= by_others else (by_others, term)


def _shared_cores(job: MeasuredJob, now: StepModel, after: StepModel) -> float:
    """Return the cores that the job gets with more workers if the kernel gives each thread that wants a core the same share.

    The other programs' threads have the share of a core that the job's own have now.
    """
    machine = job.machine
    own, wanted, cores = machine.own_cores, machine.wanted_cores, machine.cores
    if not own or not wanted or not cores or own + (machine.foreign_cores or 0.0) < FULL_SHARE * cores:
        return after.cores
    more = wanted * (after.workers + 1) / (now.workers + 1)
    foreign = (machine.foreign_cores or 0.0) * wanted / own
    return max(after.cores, cores * more / (more + foreign))


def predict_gain(
    job: MeasuredJob, after: StepModel, *, error: float = 0.0, scale: float = 1.0, before: StepModel | None = None
) -> Prediction | None:
    """Return the predicted rate after a change, or None without a step model or a count of images.

    after: the step model after the change.
    error: half-width to add to the interval, for the uncertainty of this change.
    scale: images per step after the change over images per step now.
    before: the step model before the change; by default the job's.
    """
    now, rank = before or job.model, job.rank
    if now is None or rank.items is None or rank.step_s <= 0:
        return None
    gain = scale * now.step_s / max(1e-9, after.step_s)
    mismatch = abs(math.log(rank.step_s / max(1e-9, now.step_s)))
    noise = 0.5 * (job.machine.foreign_share or 0.0)
    spread = BASE_ERROR + error + 0.5 * min(0.6, mismatch) + noise
    if after.binding == "cpu" or after.terms_s["cpu"] > 0.85 * after.step_s:
        spread += CPU_ERROR
    present = rank.items / rank.step_s
    img_s = present * max(gain, 1e-3)
    low, high = img_s * math.exp(-spread), img_s * math.exp(spread)
    bound, _ = _bound(job, now, after, scale)
    # Beside workers, the training thread may wait for a core in next() as it does now, or not if no batch is late any more.
    waits_s = rank.exposed_wait_s - rank.exposed_net_wait_s if rank.workers else 0.0
    likely, bounding = _bound(job, now, after, scale, waits_s=waits_s)
    binding = bounding if likely < img_s else after.binding
    img_s, high = min(img_s, likely), min(high, math.exp(BASE_ERROR + noise) * bound)
    if after.workers > now.workers and noise:  # of cores that all share, more threads get more
        shared = after.changed(cores=_shared_cores(job, now, after))
        most = min(present * scale * now.step_s / max(1e-9, shared.step_s), _bound(job, now, shared, scale)[0])
        high = max(high, math.exp(BASE_ERROR + noise) * most)
    low = min(low, math.exp(-BASE_ERROR - noise) * img_s)
    return Prediction(img_s, (low, high), img_s / present, TERM_WORDS[binding])


def predicted_fix(
    job: MeasuredJob,
    name: str,
    change: str,
    after: StepModel | None,
    command: str | None,
    *,
    basis: str = "closed form",
    effort: str | None = None,
    error: float = 0.0,
    scale: float = 1.0,
    before: StepModel | None = None,
) -> Fix:
    """Return a fix with the gain predicted from `after`, the step model with the fix applied; None: no prediction.

    name: the fix id. change: what is changed, in words. command: what to type, if one line says it. basis: what the
    prediction rests on. effort: how much the user has to edit. The other arguments are those of `predict_gain`.
    """
    found = predict_gain(job, after, error=error, scale=scale, before=before) if after is not None else None
    if found is None:
        return Fix(name, change, command=command, basis="not predicted: " + basis, effort=effort)
    words = change if found.gain >= NO_HELP else f"≈ 0: {change}; {found.next_bottleneck} would still set the pace"
    return Fix(
        id=name,
        change=words,
        predicted_img_s=round_rate(found.img_s),
        interval=(round_rate(found.interval[0]), round_rate(found.interval[1])),
        command=command,
        gain=round(found.gain, 3),
        next_bottleneck=found.next_bottleneck,
        basis=basis,
        effort=effort,
    )


def round_rate(value: float) -> float:
    """Return a rate rounded to four significant digits."""
    return float(f"{value:.4g}")
