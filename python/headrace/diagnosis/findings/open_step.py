"""Count the step that never came: in the bar and the percentiles, and of a job that hangs in the rate and as the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.diagnosis.measure.enough_steps import PROVISIONAL_CONFIDENCE
from headrace.diagnosis.measure.series import percentiles
from headrace.diagnosis.measure.stats import percentile
from headrace.diagnosis.result.model import Diagnosis, Finding, Note, Percentiles
from headrace.diagnosis.rules.standstill import OpenStandstill, hang
from headrace.session.model import Step

__all__ = ["with_open_step"]


def with_open_step(found: Diagnosis, standstill: OpenStandstill | None, steps: Sequence[Step]) -> Diagnosis:
    """Return the diagnosis with the standstill in which the session ended. steps: those that the means were taken over.

    Where it is no hang, the rate stays that of the steps, as those that are predicted for the fixes are.
    """
    if standstill is None:
        return found
    whole_s = sum(step.step_s for step in steps) + standstill.age_s
    share = standstill.age_s / whole_s
    kept = 1.0 - share
    scaled = tuple(_scaled(finding, kept) for finding in found.findings)
    counted = replace(
        found,
        share_of_step={name: part * kept for name, part in found.share_of_step.items()} | {"standstill": share},
        img_s=found.img_s * kept if found.img_s is not None and standstill.hangs else found.img_s,
        step_s=whole_s / (len(steps) + 1) if steps else None,
        step_p95_s=percentile([*(step.step_s for step in steps), standstill.age_s], 0.95) if steps else None,
        wait_share=None if found.wait_share is None else found.wait_share * kept,
        percentiles=_percentiles(found.percentiles, standstill, steps),
    )
    if not standstill.hangs:
        text = f"{standstill.words} (when the session ended; it may be no fault; rates are those of the steps before)"
        note = Note("standstill", text, standstill.evidence)
        largest = max((finding.share or 0.0 for finding in scaled), default=0.0)
        confidence = min(found.confidence, PROVISIONAL_CONFIDENCE) if share > largest else found.confidence
        return replace(counted, findings=scaled, notes=(note, *found.notes), confidence=confidence)
    return _as_verdict(counted, standstill, share, scaled if steps else ())


def _as_verdict(found: Diagnosis, standstill: OpenStandstill, share: float, rest: Sequence[Finding]) -> Diagnosis:
    """Return the diagnosis with the verdict HANG. Nothing is predicted: no fix of the steps before makes the next one come."""
    return replace(
        found,
        verdict="HANG",
        confidence=standstill.confidence,
        provisional=False,
        summary=standstill.words,
        findings=(hang(standstill, share), *(replace(finding, fixes=(), confidence=None) for finding in rest)),
        configuration=tuple(replace(finding, fixes=()) for finding in found.configuration),
        ceiling_img_s=None,
        reachable_img_s=None,
        reachable_fix=None,
        recoverable_gpu_hours_per_100=None,
        fix_order_established=None,
        wasted_gpu_hours_per_100=round(100 * share, 1),
    )


def _scaled(finding: Finding, kept: float) -> Finding:
    """Return a finding with its share of all steps, the open one included."""
    if finding.share is None or finding.share_of != "step":
        return finding
    return replace(finding, share=round(finding.share * kept, 4))


def _percentiles(rows: Sequence[Percentiles], standstill: OpenStandstill, steps: Sequence[Step]) -> tuple[Percentiles, ...]:
    """Return the percentiles of the steps with the open one."""
    if not steps:
        return tuple(rows)
    open_in = "wait for input" if standstill.in_next else "compute"
    series = {
        "step": [step.step_s for step in steps],
        "wait for input": [step.wait_s for step in steps],
        "compute": [step.compute_s for step in steps],
    }
    found = []
    for row in rows:
        again = percentiles(row.name, row.unit, [*series[row.name], standstill.age_s]) if row.name in ("step", open_in) else row
        found.append(again or row)
    return tuple(found)
