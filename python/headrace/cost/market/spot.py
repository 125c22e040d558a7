"""The expected time and money of a spot run, with interruptions, checkpoints and restarts.

Model: interruptions come at random, on average every M hours (a Poisson process). A checkpoint costs C seconds and is written
every T. An interruption loses T/2 of work on average, and R seconds until training goes on. The expected hours of a run of
H undisturbed hours are

    H · (1 + C/T) / (1 - (T/2 + R) / M)

and infinite where (T/2 + R) ≥ M: the run never ends. The best T is sqrt(2·C·M) (Young 1974; Daly 2006 to first order).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["SpotRun", "break_even_hours", "expected_run", "hours_between_interruptions", "young_interval_s"]

HOURS_PER_MONTH = 730.0

SHORTEST_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class SpotRun:
    """The expected course of a spot run. hours: infinite if interruptions undo work faster than it is done.

    lost_hours: hours beyond those of an uninterrupted run. interruptions: their expected number.
    """

    hours: float
    lost_hours: float
    interruptions: float
    checkpoint_interval_s: float


def young_interval_s(checkpoint_s: float, hours_between: float) -> float:
    """Return the best time between two checkpoints, in seconds: sqrt(2 × checkpoint_s × seconds between interruptions).

    Source: Young 1974.
    """
    return max(SHORTEST_INTERVAL_S, math.sqrt(2 * checkpoint_s * hours_between * 3600))


def hours_between_interruptions(monthly_share: float | None, longest: float) -> float:
    """Return the mean hours between interruptions, from the share of instances that is interrupted within a month.

    At most `longest`, since the monthly share counts each instance once. None gives `longest`.
    """
    if monthly_share is None or monthly_share <= 0:
        return longest
    return min(longest, -HOURS_PER_MONTH / math.log1p(-min(monthly_share, 0.999)))


def expected_run(
    hours: float, hours_between: float, *, checkpoint_s: float, restart_s: float, interval_s: float | None = None
) -> SpotRun:
    """Return the expected spot run of a training that takes `hours` without interruptions.

    hours_between: mean hours between interruptions. checkpoint_s: seconds that writing a checkpoint stops the training.
    restart_s: seconds from an interruption until training continues. interval_s: seconds between checkpoints (Young's).
    """
    interval_s = interval_s or young_interval_s(checkpoint_s, hours_between)
    overhead = 1 + checkpoint_s / interval_s
    lost_per_interruption_h = (interval_s / 2 + restart_s) / 3600
    useful = 1 - lost_per_interruption_h / hours_between
    if useful <= 0:
        return SpotRun(math.inf, math.inf, math.inf, interval_s)
    total = hours * overhead / useful
    return SpotRun(total, total - hours, total / hours_between, interval_s)


def break_even_hours(discount: float, *, checkpoint_s: float, restart_s: float, interval_s: float | None = None) -> float:
    """Return the mean hours between interruptions above which spot is cheaper than on demand. discount: 0 to 1.

    0 where spot is always cheaper, infinity where it never is.
    """
    if discount <= 0:
        return math.inf

    def factor(hours_between: float) -> float:
        run = expected_run(1.0, hours_between, checkpoint_s=checkpoint_s, restart_s=restart_s, interval_s=interval_s)
        return (1 - discount) * run.hours

    low, high = 1e-6, 1e9
    if factor(high) >= 1:
        return math.inf
    for _ in range(200):  # the factor falls as interruptions become rarer
        middle = math.sqrt(low * high)
        low, high = (middle, high) if factor(middle) >= 1 else (low, middle)
    return high
