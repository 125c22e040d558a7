"""What each fix of a diagnosis saves in money, for an epoch and for the run, on the machine of the session.

A fix that was applied and measured again counts with its measured rate, others with the predicted rate and its interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cost.estimates.estimate import Estimate
from headrace.diagnosis.result.model import Diagnosis, Fix

__all__ = ["FixEffect", "WatchedCost", "watched_cost"]


@dataclass(frozen=True, slots=True)
class FixEffect:
    """The rate with one fix (`kind`: "measured" or "predicted"), and the USD that an epoch and the run then cost and save.

    `usd_low` and `usd_high` bound `usd_per_epoch`; both equal it for a measured rate.
    """

    id: str
    change: str
    kind: str
    img_s: float
    img_s_low: float
    img_s_high: float
    seconds_per_epoch: float
    usd_per_epoch: float
    usd_low: float
    usd_high: float
    usd_run: float
    saved_usd_per_epoch: float
    saved_usd_run: float
    command: str | None


@dataclass(frozen=True, slots=True)
class WatchedCost:
    """The cost of a watched job at its measured rate, and of its fixes, largest saving first. machine: the priced instance."""

    machine: str
    usd_per_hour: float
    img_s: float
    usd_per_epoch: float
    usd_run: float
    fixes: tuple[FixEffect, ...]

    def lines(self) -> list[str]:
        """Return one sentence on the present cost of the job, and one on the cost and saving with each fix."""
        now = (
            f"The watched job, {self.img_s:,.0f} img/s on {self.machine} at ${self.usd_per_hour:,.3f} an hour: "
            f"${self.usd_per_epoch:,.2f} an epoch, ${self.usd_run:,.2f} the run."
        )
        return [now, *(_line(fix) for fix in self.fixes)]


def watched_cost(diagnosis: Diagnosis, *, images: int, epochs: float, usd_per_hour: float, machine: str) -> WatchedCost | None:
    """Return the cost in USD of a watched job now and with each of its fixes; None where its rate was not measured.

    images: of an epoch. usd_per_hour: price of the machine that the session ran on.
    """
    rate = diagnosis.img_s
    if not rate or rate <= 0:
        return None
    epoch_usd = _usd(images, rate, usd_per_hour)
    rates = [(fix, found) for fix in diagnosis.fixes if (found := _rate(fix)) is not None]
    effects = [_effect(fix, found, epoch_usd, images, epochs, usd_per_hour) for fix, found in rates]
    return WatchedCost(machine, usd_per_hour, rate, epoch_usd, epoch_usd * epochs, tuple(_by_saving(effects)))


def _rate(fix: Fix) -> Estimate | None:
    """Return the rate with a fix: measured, else predicted; None where there is neither."""
    if fix.verified_img_s:
        return Estimate(fix.verified_img_s, fix.verified_img_s, fix.verified_img_s, "measured", "re-measured")
    if not fix.predicted_img_s:
        return None
    low, high = fix.interval or (fix.predicted_img_s, fix.predicted_img_s)
    point = fix.predicted_img_s
    return Estimate(point, min(low, point), max(high, point), "estimated", "step model") if low > 0 else None


def _effect(fix: Fix, rate: Estimate, now_usd: float, images: int, epochs: float, usd_per_hour: float) -> FixEffect:
    epoch_usd = _usd(images, rate.point, usd_per_hour)
    return FixEffect(
        id=fix.id,
        change=fix.change,
        kind="measured" if rate.kind == "measured" else "predicted",
        img_s=rate.point,
        img_s_low=rate.low,
        img_s_high=rate.high,
        seconds_per_epoch=images / rate.point,
        usd_per_epoch=epoch_usd,
        usd_low=_usd(images, rate.high, usd_per_hour),
        usd_high=_usd(images, rate.low, usd_per_hour),
        usd_run=epoch_usd * epochs,
        saved_usd_per_epoch=now_usd - epoch_usd,
        saved_usd_run=(now_usd - epoch_usd) * epochs,
        command=fix.command,
    )


def _by_saving(effects: Iterable[FixEffect]) -> list[FixEffect]:
    return sorted(effects, key=lambda fix: -fix.saved_usd_run)


def _usd(images: int, rate: float, usd_per_hour: float) -> float:
    return images / rate / 3600 * usd_per_hour


def _line(fix: FixEffect) -> str:
    interval = "" if fix.kind == "measured" else f" (${fix.usd_low:,.2f} to ${fix.usd_high:,.2f})"
    word = "saves" if fix.saved_usd_run >= 0 else "adds"
    return (
        f"{fix.id}: ${fix.usd_per_epoch:,.2f} an epoch{interval}, {fix.kind}; {word} ${abs(fix.saved_usd_run):,.2f} of the run."
    )
