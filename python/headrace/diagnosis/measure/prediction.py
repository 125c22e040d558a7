"""Predict the rate after a fix, with an interval, from the step model.

A prediction is relative: measured rate × modelled step now / modelled step after. What the model leaves out on both sides
cancels. The result never exceeds the second largest term of the model. A fix that cannot help is predicted with a gain of
1.0, and its text begins with "≈ 0".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.diagnosis.measure import Rank
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.measure.step_model import TERM_WORDS, StepModel
from headrace.diagnosis.result.model import Fix

__all__ = ["NO_HELP", "ceiling_img_s", "predict_gain", "predicted_fix", "round_rate"]

BASE_ERROR = 0.08
"""Half-width of an 80 % interval when the model fits exactly: repeated runs of one job differ by this share."""

CPU_ERROR = 0.15
"""Widen the interval by this share when cores bind: how the kernel shares them out cannot be predicted."""

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
    """Return the images per second of this rank if no batch were late: items / (compute + hand-over)."""
    return _ceiling_with(job.rank, job.rank.handover_s, 0.0)


def _ceiling_with(rank: Rank, handover_s: float, next_s: float) -> float | None:
    if rank.items is None:
        return None
    floor_s = rank.compute_s + (min(handover_s, rank.net_wait_s) if rank.workers else 0.0) + min(next_s, rank.net_wait_s)
    return rank.items / floor_s if floor_s > 0 else None


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
    spread = BASE_ERROR + error + 0.5 * min(0.6, mismatch) + 0.5 * (job.machine.foreign_share or 0.0)
    if after.binding == "cpu" or after.terms_s["cpu"] > 0.85 * after.step_s:
        spread += CPU_ERROR
    present = rank.items / rank.step_s
    img_s = present * max(gain, 1e-3)
    low, high = img_s * math.exp(-spread), img_s * math.exp(spread)
    ceiling = _ceiling_with(rank, after.handover_s, after.next_s)
    if ceiling is not None and scale == 1.0 and after.compute_s >= now.compute_s:
        img_s, high = min(img_s, ceiling), min(high, math.exp(BASE_ERROR) * ceiling)
        low = min(low, math.exp(-BASE_ERROR) * img_s)
    return Prediction(img_s, (low, high), img_s / present, TERM_WORDS[after.binding])


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
