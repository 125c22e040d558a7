"""The learning-rate range test of `headrace tune`: train with a rate that grows, and see where loss falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.attach.experiments.range_curve import UPDATES, RangeCurve, RangePoint, RangeTest, rate_at, read_curve
from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
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

__all__ = ["choose_rate", "find_learning_rate"]


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
    curve, complete, pending = RangeCurve(updates), True, list[float]()
    for step, (images, labels) in enumerate(_batches(alone, data, device, updates * accumulate)):
        pending.append(float(learner.train_step(step, images, labels)))
        if len(pending) < accumulate:
            continue
        loss, pending = sum(pending) / accumulate, []
        curve.add(loss)
        if curve.diverged:
            break
        if deadline.passed:
            log(deadline.left_out(f"rates above {curve.points[-1].rate:.2g}"))
            complete = curve.is_over
            break
    batch = options.batch_size * accumulate
    return choose_rate(curve.points, options, global_batch=batch, diverged=curve.diverged, complete=complete)


def choose_rate(
    points: list[RangePoint], options: Options, *, global_batch: int, diverged: bool, complete: bool = True
) -> RangeTest:
    """Return the rate that RULE chooses from the points, also as a value of `--learning-rate`. complete: as in `read_curve`."""
    found = read_curve(points, global_batch=global_batch, diverged=diverged, complete=complete)
    if found.rate is None:
        return found
    value = found.rate / math.pow(global_batch / 256, DEFAULTS[options.optimization.optimizer][2])
    return replace(found, learning_rate=float(f"{value:.3g}"))


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
