"""The confidence of a verdict, and the noise of the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.diagnosis.measure import Machine
from headrace.diagnosis.measure.enough_steps import SETTLED_STEPS, most_confidence
from headrace.diagnosis.measure.job import MeasuredJob
from headrace.diagnosis.result.kinds import KINDS
from headrace.diagnosis.result.model import Finding
from headrace.system.text.sizes import percent_text

__all__ = ["confidence_of", "noise_words"]

NOISE_LIMIT = 0.10
"""Lower the confidence when other programs use more than this share of the cores: every timing is then uncertain."""

CLOSE_SECOND = 0.7
"""Lower the confidence when the second finding's share exceeds this part of the first one's."""

FEW_STEPS, SOME_STEPS = SETTLED_STEPS, 50
"""Lower the confidence much below the first number of steady steps, and a little below the second."""

LOSS_CONFIDENCE = 0.5
"""The confidence in a function of the script before the optimizer's step is at most this: it may be the loss."""

OWN_QUEUE_DOUBT = 0.5
"""Lower the confidence in EXTERNAL_CPU by this number times the share of waits for a core that the job's own threads cause."""

UNSEEN_CONFIDENCE = 0.5
"""The confidence of a blocked input is at most this when nothing was seen that blocks it."""


def confidence_of(job: MeasuredJob, findings: Sequence[Finding]) -> float:
    """Return the confidence of a verdict, 0.1 to 0.95.

    A provisional verdict has a low one. These lower it: few steps, a noisy machine, a close second cause, a step model that
    misses the measured step, and missing sources.
    """
    confidence = 0.95
    leading = KINDS[findings[0].kind]
    steps = len(job.rank.steps)
    confidence -= 0.25 if job.rank.elsewhere else 0.0
    confidence -= 0.25 if steps < FEW_STEPS else 0.1 if steps < SOME_STEPS else 0.0
    foreign = job.machine.foreign_share
    if leading.name != "EXTERNAL_CPU" and foreign is not None and foreign > NOISE_LIMIT:
        confidence -= min(0.3, foreign)
    if leading.name == "EXTERNAL_CPU":
        confidence -= OWN_QUEUE_DOUBT * job.machine.crowded_share
    if leading.name == "COMPUTE_BOUND" and not findings[0].cause_seen:  # the GPU idles, and it was not seen why
        confidence = min(confidence, UNSEEN_CONFIDENCE)
    shares = [found.share or 0.0 for found in findings]
    if len(shares) > 1 and shares[1] > CLOSE_SECOND * shares[0]:
        confidence -= 0.15
    if leading.name == "SCRIPT_BOUND" and job.script.is_before:
        confidence = min(confidence, LOSS_CONFIDENCE)
    if job.model is not None and leading.is_step_term:
        missed = abs(math.log(job.rank.step_s / max(1e-9, job.model.step_s)))
        confidence -= min(0.25, max(0.0, missed - 0.1))
    if job.rank.batch_cost is not None and job.rank.batch_cost.queue_s is None:
        confidence -= 0.15
    if job.rank.loader.family == "kineto" and (leading.is_step_term or leading.name == "NO_OVERLAP"):
        confidence -= 0.25  # a trace does not show which kind of input is slow
    if not findings[0].cause_seen and (leading.is_blocked or leading.name == "IN_NEXT"):
        confidence = min(confidence, UNSEEN_CONFIDENCE)
    return round(max(0.1, min(confidence, most_confidence(job.rank.steps))), 2)


def noise_words(machine: Machine) -> str | None:
    """Return how much CPU other programs used: low, medium or high, with the share; None when that was not measured."""
    foreign = machine.foreign_share
    if foreign is None:
        return None
    level = "low" if foreign <= NOISE_LIMIT else "medium" if foreign <= 2 * NOISE_LIMIT else "high"
    return f"{level}: other programs used {percent_text(foreign)} of the CPU"
