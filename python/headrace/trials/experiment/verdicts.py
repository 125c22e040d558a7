"""The diagnosis of one cell: its verdict, the next fix with its predicted rate, and the percentiles of the machine's use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.diagnosis.diagnose import diagnose
from headrace.errors import HeadraceError
from headrace.profiling.finish import finish
from headrace.session.model import Session

__all__ = ["QUANTILES", "Verdict", "judge", "percentile"]

QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Verdict:
    """kind: the diagnosis's verdict; None where nothing could be said. confidence: 0 to 1. report: path of its page, if any.
    communication_share: part of the step in which ranks exchange gradients (0 to 1).

    fix, fix_words, fix_img_s: the best fix: id, in words, and the predicted images/s. cpu_percent: p50, p90, p95, p99 of the
    use of all cores. gpu_percent: of the real GPU. foreign_cores: mean cores of other programs. cores_busy: core → use over
    time (0 to 1), for the heat map. interval_s: seconds between its columns.
    """

    kind: str | None = None
    confidence: float | None = None
    communication_share: float | None = None
    report: str | None = None
    fix: str | None = None
    fix_words: str | None = None
    fix_img_s: float | None = None
    cpu_percent: tuple[float, ...] | None = None
    gpu_percent: tuple[float, ...] | None = None
    foreign_cores: float | None = None
    cores_busy: tuple[tuple[float, ...], ...] = ()
    interval_s: float = 0.5


def judge(folder: Path, *, full: bool) -> Verdict:
    """Diagnose the session in `folder` and return the verdict.

    full: also measure its images, which predicts more fixes, and write a page.
    """
    try:
        if full:
            session, diagnosis = finish(folder, log=lambda line: None)
        else:
            session = Session.load(folder)
            diagnosis = replace(diagnose(session), session=str(folder))
    except HeadraceError:
        return Verdict()
    fix = next((fix for fix in diagnosis.fixes if fix.predicted_img_s and (fix.gain or 0) > 1), None)
    samples = [sample for sample in session.samples if sample.core_busy]
    foreign = [sample.foreign_cores for sample in samples if sample.foreign_cores is not None]
    return Verdict(
        kind=diagnosis.verdict,
        confidence=diagnosis.confidence,
        communication_share=diagnosis.share_of_step.get("communication"),
        report=diagnosis.report,
        fix=fix.id if fix else None,
        fix_words=fix.change if fix else None,
        fix_img_s=fix.predicted_img_s if fix else None,
        cpu_percent=_percentiles([sum(sample.core_busy) / len(sample.core_busy) for sample in samples]),
        gpu_percent=_gpu(session),
        foreign_cores=sum(foreign) / len(foreign) if foreign else None,
        cores_busy=tuple(zip(*(sample.core_busy for sample in samples), strict=False)),
        interval_s=samples[0].interval_s if samples else 0.5,
    )


def _gpu(session: Session) -> tuple[float, ...] | None:
    busy = [gpu.busy for sample in session.samples for gpu in sample.gpus if gpu.busy is not None]
    return _percentiles(busy)


def _percentiles(shares: Sequence[float]) -> tuple[float, ...] | None:
    return tuple(100 * percentile(shares, quantile) for quantile in QUANTILES) if shares else None


def percentile(values: Sequence[float], quantile: float) -> float:
    """Return a percentile (`quantile`: 0 to 100) by linear interpolation between the sorted values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * quantile / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
