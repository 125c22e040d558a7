"""The learning-rate range test of Smith 2017 (arXiv 1506.01186): a rate that grows, the loss over it, and what it suggests.

The rate grows exponentially, the loss is smoothed, and the test ends where it diverges. The suggestion is one tenth of the
rate at the smallest smoothed loss (fastai's `lr_find`, "minimum"): the minimum itself is already at the edge of divergence.
`headrace tune` and `headrace diagnose --find-learning-rate` read their curves here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.system.text.sizes import percent_text

__all__ = ["RULE", "UPDATES", "RangeCurve", "RangePoint", "RangeTest", "rate_at", "read_curve"]

RULE = "one tenth of the rate at the smallest smoothed loss (Smith 2017, arXiv 1506.01186; fastai's lr_find)"
LOWEST, HIGHEST = 1e-6, 10.0
UPDATES = 100
SMOOTHING = 0.9  # weight of earlier losses in the moving mean, corrected for its start
DIVERGED = 4.0  # end the test when the smoothed loss is this many times its smallest value (fastai)
LEAST_FALL = 0.02  # choose no rate if the smoothed loss falls by less than this share
BELOW_MINIMUM = 10.0


@dataclass(frozen=True, slots=True)
class RangePoint:
    """One update of the weights: its learning rate, the loss before it, and the smoothed loss."""

    rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True, slots=True)
class RangeTest:
    """The result of the test. rate: chosen for the batch of this test. learning_rate: the same as a value of `--learning-rate`.

    `steepest` is the rate at which the smoothed loss falls fastest. All are None if the loss did not fall; `note` says why.
    """

    points: tuple[RangePoint, ...]
    global_batch: int
    rate: float | None
    learning_rate: float | None
    steepest: float | None
    diverged: bool
    note: str | None
    rule: str = RULE


def rate_at(update: int, updates: int = UPDATES) -> float:
    """Return the rate of an update (counted from 0): exponential growth from LOWEST to HIGHEST."""
    return float(LOWEST * (HIGHEST / LOWEST) ** (update / max(1, updates - 1)))


class RangeCurve:
    """Points of a range test that still runs. diverged: whether a loss ended the test; that loss is not among the points."""

    def __init__(self, updates: int = UPDATES) -> None:
        self.points: list[RangePoint] = []
        self.diverged = False
        self._updates, self._mean = updates, 0.0

    @property
    def rate(self) -> float:
        """The rate of the next update."""
        return rate_at(len(self.points), self._updates)

    @property
    def is_over(self) -> bool:
        """Whether no further update is needed."""
        return self.diverged or len(self.points) >= self._updates

    def add(self, loss: float) -> None:
        """Add the loss of the next update."""
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        smoothed = self._mean / (1 - SMOOTHING ** (len(self.points) + 1))
        lowest = min((one.smoothed for one in self.points), default=math.inf)
        self.diverged = not math.isfinite(loss) or smoothed > DIVERGED * lowest
        if not self.diverged:
            self.points.append(RangePoint(self.rate, loss, smoothed))


def read_curve(
    points: Sequence[RangePoint],
    *,
    global_batch: int,
    diverged: bool,
    complete: bool = True,
    more_time: str = "give a longer --time-limit",
    larger_batch: str = "give a larger --batch-size",
    ended: str = "the time was over",
) -> RangeTest:
    """Return the rate that RULE chooses from the points. complete: False if it ended before the loss diverged.

    ended: why it was not complete. more_time, larger_batch: what to do then, and where the smallest loss was chance.
    """

    def nothing(note: str) -> RangeTest:
        return RangeTest(tuple(points), global_batch, None, None, None, diverged, note)

    if not points:
        return nothing("no update gave a finite loss: nothing is chosen")
    if not complete and not diverged:
        at = f"{ended} at a rate of {points[-1].rate:.2g}, before the loss diverged"
        return nothing(f"{at}: nothing is chosen" + (f"; {more_time}" if more_time else ""))
    lowest = min(points, key=lambda one: one.smoothed)
    if lowest.smoothed > (1 - LEAST_FALL) * points[0].smoothed:
        return nothing(f"the loss fell by less than {percent_text(LEAST_FALL)} at any rate: nothing is chosen")
    if lowest.rate < BELOW_MINIMUM * points[0].rate:  # the rule would give a rate that was never used
        at = f"the loss was smallest at a rate of {lowest.rate:.2g}, as the test began: that is chance, and nothing is chosen"
        return nothing(f"{at}; {larger_batch}")
    before = points[: list(points).index(lowest) + 1]
    falls = [(later.smoothed - one.smoothed, one.rate) for one, later in pairwise(before)]
    at_the_end = not diverged and lowest.rate * BELOW_MINIMUM > points[-1].rate  # else the loss rose again behind the minimum
    why = "the loss did not diverge: the best rate may be higher" if at_the_end else None
    return RangeTest(tuple(points), global_batch, lowest.rate / BELOW_MINIMUM, None, min(falls)[1], diverged, why)
