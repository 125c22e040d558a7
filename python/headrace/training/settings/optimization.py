"""Optimization: learning rate schedule, optimizer, parameter groups. Numbers carry their source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import MissingDependencyError, UsageError
from headrace.training.models.pretrained import classifier

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["AUGMENTATIONS", "OPTIMIZERS", "SCHEDULES", "OptimizationOptions", "learning_rate", "make_optimizer"]

Optimizer = Literal["sgd", "adamw", "lamb", "lars"]
Schedule = Literal["cosine", "step", "linear"]
Augmentation = Literal["crop", "randaugment", "trivialaugment", "autoaugment"]

OPTIMIZERS = ("sgd", "adamw", "lamb", "lars")
SCHEDULES = ("cosine", "step", "linear")
AUGMENTATIONS = ("crop", "randaugment", "trivialaugment", "autoaugment")

# Optimizer → (learning rate for a batch of 256, weight decay, exponent of the batch size in the rate). Sources:
#   sgd    NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5
#   adamw  ConvNeXt (Liu et al. 2022): 4e-3 for 4096, decay 0.05
#   lamb   "ResNet strikes back", A1 (Wightman et al. 2021): 5e-3 for 2048, decay 0.02
#   lars   NVIDIA's MLPerf 4.0 ResNet-50: 11 for 3200; the decay is SGD's
# Linear growth with the batch: Goyal et al. 2017. Square root for AdamW and LAMB: timm (train.py, --lr-base-scale).
DEFAULTS: dict[str, tuple[float, float, float]] = {
    "sgd": (0.256, 2.0**-15, 1.0),
    "adamw": (1e-3, 0.05, 0.5),
    "lamb": (5e-3 * (256 / 2048) ** 0.5, 0.02, 0.5),
    "lars": (11 * 256 / 3200, 2.0**-15, 1.0),
}
# Goyal et al. 2017: a tenth of the rate after 30, 60 and 80 of 90 epochs.
STEP_SHARES, STEP_FACTOR = (30 / 90, 60 / 90, 80 / 90), 0.1

_SHARES = ("momentum", "label_smoothing", "average")  # options whose value must be from 0 to below 1
_POSITIVE = ("learning_rate", "weight_decay", "mixup", "cutmix", "clip_norm", "body_rate")
_UP_TO_ONE = ("erase", "resize_begin", "resize_end")


@dataclass(frozen=True, slots=True)
class OptimizationOptions:
    """How to optimise. `learning_rate` is for a global batch of 256 and grows with the batch (`peak_rate`).

    Defaults: NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5 (0.256 per 256, momentum 0.875, weight decay 2**-15,
    label smoothing 0.1, cosine after a linear warm-up, no decay of norms and biases). Other optimizers have their own defaults
    for learning rate and weight decay (DEFAULTS). Raises UsageError for a value out of range.

        OptimizationOptions(optimizer="adamw", mixup=0.2, average=0.999)
    """

    optimizer: Optimizer = "sgd"
    learning_rate: float | None = None  # None: the optimizer's default (DEFAULTS), which is then stored here
    momentum: float = 0.875  # for sgd and lars; adamw and lamb use betas of 0.9 and 0.999
    nesterov: bool = True
    weight_decay: float | None = None
    decay_norms: bool = False  # apply weight decay to norms and biases too
    schedule: Schedule = "cosine"
    warmup_epochs: float | None = None  # epochs of linear warm-up; None: a tenth of the run, at most 5
    label_smoothing: float = 0.1
    augment: Augmentation = "crop"
    erase: float = 0.0  # probability of random erasing
    mixup: float = 0.0  # alpha of MixUp's beta distribution; 0: off
    cutmix: float = 0.0
    average: float = 0.0  # decay of the moving average of the weights; 0: off
    clip_norm: float = 0.0  # largest norm of the gradients; 0: off
    accumulate: int = 1  # number of batches whose gradients are added before an update
    blurpool: bool = False
    start_scale: float = 1.0  # image size of the first epochs, as a share of the last epoch's
    resize_begin: float = 11 / 16  # the image size grows between these shares of the run (FFCV: epochs 11 to 13 of 16)
    resize_end: float = 13 / 16
    test_scale: float = 1.0  # image size of the evaluation, as a share of that of training
    flip_test: bool = False  # evaluate the mean of each image and its mirror image
    body_rate: float = 1.0  # learning rate of all layers but the last, as a share of the last layer's

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("augment", AUGMENTATIONS)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        rate, decay, _ = DEFAULTS[self.optimizer]
        object.__setattr__(self, "learning_rate", rate if self.learning_rate is None else self.learning_rate)
        object.__setattr__(self, "weight_decay", decay if self.weight_decay is None else self.weight_decay)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in (*_SHARES, *_POSITIVE, *_UP_TO_ONE):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{name.replace('_', ' ')} must be 0 or more, not {value}")
            if name in _SHARES and value >= 1:
                raise UsageError(f"{name.replace('_', ' ')} must be below 1, not {value}")
            if name in _UP_TO_ONE and value > 1:
                raise UsageError(f"{name.replace('_', ' ')} is a share, at most 1, not {value}")
        if not 0 < self.start_scale <= 1:
            raise UsageError(f"start scale is a share of the image size, above 0 and at most 1, not {self.start_scale}")
        if not 0.25 <= self.test_scale <= 4:
            raise UsageError(f"test scale is a share of the image size, from 0.25 to 4, not {self.test_scale}")
        if self.resize_begin > self.resize_end:
            raise UsageError(f"resize begin {self.resize_begin:g} comes after resize end {self.resize_end:g}")
        if self.warmup_epochs is not None and not 0 <= self.warmup_epochs < math.inf:
            raise UsageError(f"warm-up must be 0 epochs or more, not {self.warmup_epochs}")
        if self.accumulate < 1:
            raise UsageError(f"accumulate must be at least 1, not {self.accumulate}")

    def warmup_steps(self, epochs: int, steps_per_epoch: int) -> int:
        """Return the number of warm-up steps."""
        chosen = min(5.0, epochs / 10) if self.warmup_epochs is None else self.warmup_epochs
        return round(chosen * steps_per_epoch)

    def peak_rate(self, global_batch: int) -> float:
        """Return the highest learning rate for `global_batch` images per update: linear in it, or in its square root."""
        assert self.learning_rate is not None  # __post_init__
        return self.learning_rate * math.pow(global_batch / 256, DEFAULTS[self.optimizer][2])

    def train_size(self, image_size: int, progress: float) -> int:
        """Return the pixels of training images at `progress` (0 to 1) of the run: constant, then linear, then `image_size`."""
        if self.start_scale == 1 or progress >= self.resize_end:
            return image_size
        grown = max(0.0, progress - self.resize_begin) / max(1e-9, self.resize_end - self.resize_begin)
        return _rounded(image_size * (self.start_scale + (1 - self.start_scale) * grown), at_most=image_size)

    def test_size(self, image_size: int) -> int:
        """Return the side of validation images in pixels."""
        return image_size if self.test_scale == 1 else _rounded(image_size * self.test_scale)


def _rounded(size: float, *, at_most: int | None = None) -> int:
    """Round to a multiple of 32, as FFCV does (few shapes, fast kernels); to a multiple of 4 below 128 pixels."""
    unit = 32 if size >= 128 else 4
    nearest = max(unit, round(size / unit) * unit)
    return nearest if at_most is None else min(nearest, at_most)


def learning_rate(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: Schedule = "cosine") -> float:
    """Return the learning rate of a step (counted from 0); a function of the step alone.

    It rises linearly to `peak` over the warm-up. Then "cosine" and "linear" fall to 0 at `total_steps`; "step" multiplies it by
    STEP_FACTOR at each of STEP_SHARES of all steps.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "step":
        return peak * STEP_FACTOR ** sum(step >= share * total_steps for share in STEP_SHARES)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (1 - progress) if schedule == "linear" else 0.5 * peak * (1 + math.cos(math.pi * progress))


def make_optimizer(model: nn.Module, options: OptimizationOptions, *, fused: bool) -> torch.optim.Optimizer:
    """Make the optimizer. Weight decay skips norms and biases (one-dimensional parameters) unless `decay_norms` is set.

    The "scale" of a parameter group multiplies the learning rate: 1 for the last layer, `body_rate` for the others. Raises
    UsageError for a model without parameters to train, MissingDependencyError for LAMB and LARS without timm.
    """
    import torch

    head = {id(one) for one in _head(model)} if options.body_rate != 1 else set()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = []
    for in_head in (False, True):
        own = [one for one in parameters if (id(one) in head) == in_head]
        scale = 1.0 if in_head or not head else options.body_rate
        decayed = [one for one in own if one.ndim > 1 or options.decay_norms]
        spared = [one for one in own if one.ndim <= 1 and not options.decay_norms]
        groups += [{"params": decayed, "weight_decay": options.weight_decay, "scale": scale}]
        groups += [{"params": spared, "weight_decay": 0.0, "scale": scale}]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise UsageError("the model has no parameters to train")
    return _optimizer(torch, groups, options, fused=fused)


def _optimizer(torch: Any, groups: list[dict[str, Any]], options: OptimizationOptions, *, fused: bool) -> Any:
    nesterov = options.nesterov and options.momentum > 0
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=options.momentum, nesterov=nesterov, fused=fused)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, fused=fused)
    try:
        from timm.optim import Lamb, Lars
    except ImportError as error:
        what = f"the optimizer {options.optimizer} comes from timm, which is not installed"
        raise MissingDependencyError(what, hint="pip install timm; or --optimizer sgd, --optimizer adamw") from error
    if options.optimizer == "lamb":
        return Lamb(groups, lr=0.0)
    return Lars(groups, lr=0.0, momentum=options.momentum, nesterov=nesterov)


def _head(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the classifier, the model's last layer."""
    name = classifier(model)
    return list(model.get_submodule(name).parameters(recurse=False)) if name else []
