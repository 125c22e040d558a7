"""Add to a diagnosis the rate with its best fix, and whether the order of its fixes is known."""

from __future__ import annotations

from dataclasses import replace

from headrace.diagnosis.measure.prediction import NO_HELP
from headrace.diagnosis.result.model import Diagnosis, Fix

__all__ = ["gain_of", "with_reachable"]


def gain_of(fix: Fix) -> float:
    """Return the gain of a fix as a ratio of rates: measured with `--verify`, else predicted; 1.0 when neither is known."""
    return fix.verified_change or fix.gain or 1.0


def with_reachable(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the rate of its best fix, the hours that fix saves, and whether the order of fixes is known.

    The best fix is the one with the largest gain, measured or else predicted, of those whose rate is known. Call this again
    when the fixes change.
    """
    rated = [fix for fix in diagnosis.fixes if fix.predicted_img_s is not None or fix.verified_change is not None]
    best = max(rated, key=gain_of, default=None)
    gain = gain_of(best) if best is not None else 1.0
    helps = diagnosis.img_s is not None and gain >= NO_HELP
    reached = None
    if helps and best is not None and diagnosis.img_s is not None:
        reached = best.predicted_img_s if best.verified_change is None else best.verified_img_s
    return replace(
        diagnosis,
        reachable_img_s=reached,
        reachable_fix=best.id if helps and best is not None else None,
        recoverable_gpu_hours_per_100=round(100 * (1 - 1 / gain), 1) if helps else None,
        fix_order_established=_is_order_established(diagnosis),
    )


def _is_order_established(diagnosis: Diagnosis) -> bool | None:
    """Return False when the intervals of all fixes that help have a common part; None with fewer than two such fixes."""
    helping = [fix for fix in diagnosis.fixes if fix.gain is not None and fix.gain >= NO_HELP and fix.interval is not None]
    measured = [fix for fix in helping if fix.verified_change is not None]
    if len(helping) < 2:
        return None
    if len(measured) == len(helping):
        return True
    intervals = [fix.interval for fix in helping if fix.interval is not None]
    return max(low for low, _ in intervals) > min(high for _, high in intervals)
