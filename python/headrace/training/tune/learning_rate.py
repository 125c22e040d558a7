"""The learning-rate range test of Smith 2017 (arXiv 1506.01186): train with a rate that grows, and see where loss falls.

The rate grows exponentially, the loss is smoothed, and the test ends where it diverges. The suggestion is one tenth of the
rate at the smallest smoothed loss (fastai's `lr_find`, "minimum"): the minimum itself is already at the edge of divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.system.text.sizes import percent_text
from headrace.training.distributed.devices import Device
from headrace.training.distributed.ranks import Ranks
from headrace.training.inputs.data import check_batch_size
from headrace.training.inputs.input import TrainingInput
from headrace.training.learning.learner import Learner
from headrace.training.settings.optimization import DEFAULTS
from headrace.training.settings.options import Options
from headrace.training.tune.deadline import Deadline

if TYPE_CHECKING:
    import torch

__all__ = ["RULE", "RangePoint", "RangeTest", "choose_rate", "find_learning_rate", "rate_at"]

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


def find_learning_rate(
    options: Options,
    data: Dataset,
    device: Device,
    *,
    ranks: int = 1,
    updates: int = UPDATES,
    deadline: Deadline | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> RangeTest:
    """Return the learning rate found by training a model of `options` on `data` with a growing rate. Weights are discarded.

    Several ranks are stood for by accumulated batches. The same seed gives the same batches and weights. Raises UsageError on a
    simulated device, whose model is a stand-in.
    """
    if device.simulated:
        raise UsageError(
            "--find-learning-rate cannot be used on a simulated device, which trains a stand-in for the model",
            hint="--device cpu or cuda",
        )
    deadline = deadline or Deadline()
    accumulate = options.optimization.accumulate * ranks
    alone = replace(
        options, compile="off", nan_steps=0, sync_batch_norm=False,
        optimization=replace(options.optimization, accumulate=accumulate, average=0.0),
    )  # fmt: skip
    learner = _RangeLearner(alone, device, classes=len(data.classes), updates=updates)
    points: list[RangePoint] = []
    diverged, complete, mean, pending = False, True, 0.0, list[float]()
    for step, (images, labels) in enumerate(_batches(alone, data, device, updates * accumulate)):
        pending.append(float(learner.train_step(step, images, labels)))
        if len(pending) < accumulate:
            continue
        loss, pending = sum(pending) / accumulate, []
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed = mean / (1 - SMOOTHING ** (len(points) + 1))
        diverged = not math.isfinite(loss) or smoothed > DIVERGED * min((one.smoothed for one in points), default=math.inf)
        if diverged:
            break
        points.append(RangePoint(rate_at(len(points), updates), loss, smoothed))
        if deadline.passed:
            log(deadline.left_out(f"rates above {points[-1].rate:.2g}"))
            complete = len(points) >= updates
            break
    batch = options.batch_size * accumulate
    return choose_rate(points, options, global_batch=batch, diverged=diverged, complete=complete)


def choose_rate(
    points: list[RangePoint], options: Options, *, global_batch: int, diverged: bool, complete: bool = True
) -> RangeTest:
    """Return the rate that RULE chooses from the points. complete: False if time ran out before the loss diverged."""
    if not complete and not diverged:
        note = f"the time was over at a rate of {points[-1].rate:.2g}, before the loss diverged: nothing is chosen"
        return RangeTest(tuple(points), global_batch, None, None, None, diverged, f"{note}; give a longer --time-limit")
    lowest = min(points, key=lambda one: one.smoothed, default=None)
    if lowest is None or lowest.smoothed > (1 - LEAST_FALL) * points[0].smoothed:
        note = f"the loss fell by less than {percent_text(LEAST_FALL)} at any rate: nothing is chosen"
        return RangeTest(tuple(points), global_batch, None, None, None, diverged, note)
    if lowest.rate < BELOW_MINIMUM * points[0].rate:  # the rule would give a rate that was never used
        note = f"the loss was smallest at a rate of {lowest.rate:.2g}, as the test began: that is chance, and nothing is chosen"
        return RangeTest(tuple(points), global_batch, None, None, None, diverged, f"{note}; give a larger --batch-size")
    before = points[: points.index(lowest) + 1]
    falls = [(later.smoothed - one.smoothed, one.rate) for one, later in pairwise(before)]
    rate = lowest.rate / BELOW_MINIMUM
    value = rate / math.pow(global_batch / 256, DEFAULTS[options.optimization.optimizer][2])
    at_the_end = not diverged and lowest.rate * BELOW_MINIMUM > points[-1].rate  # else the loss rose again behind the minimum
    why = "the loss did not diverge: the best rate may be higher" if at_the_end else None
    return RangeTest(tuple(points), global_batch, rate, float(f"{value:.3g}"), min(falls)[1], diverged, why)


class _RangeLearner(Learner):
    """Uses the rate of the range test instead of the schedule's."""

    def __init__(self, options: Options, device: Device, *, classes: int, updates: int) -> None:
        super().__init__(options, device, Ranks(), classes=classes, total_steps=1 << 30, warmup_steps=0)
        self._updates = updates

    def learning_rate(self, step: int) -> float:
        return rate_at(step // self.optimization.accumulate, self._updates)


def _batches(options: Options, data: Dataset, device: Device, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `count` batches of the training input, over as many epochs as that takes, at the full image size."""
    check_batch_size(options, data, ranks=1)
    with TrainingInput(options, data, device, Ranks()).loader(max(0, options.epochs - 1)) as loader:
        while True:
            for batch in loader:
                yield batch
                count -= 1
                if count == 0:
                    return
