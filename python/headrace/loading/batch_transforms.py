"""RandomErasing, MixUp and CutMix on a finished batch, in torch, on the device of the batch.

Distributions and arithmetic are torchvision v2's (`transforms/v2/_augment.py`). Draws are pure functions: of (seed, epoch,
record) for RandomErasing, of (seed, epoch, step, rank) for a whole batch. Resuming repeats them. The partner of an image is its
neighbour in the rank's own batch, so another world size gives other pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.loading.mixing import Rectangle, blend, paste_rectangle
from headrace.loading.order import hashed
from headrace.transforms.base import Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice, RandomErasing

if TYPE_CHECKING:
    import torch

__all__ = ["BatchKey", "apply_batch_transforms", "check_dtype"]

_ATTEMPTS = 10  # as in torchvision: an image for which no rectangle fits stays unchanged
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The numbers that decide the draws of a batch. `draws` [N] are the keys of its records."""

    seed: int
    epoch: int
    step: int
    rank: int
    draws: npt.NDArray[np.uint64]
    view: int = 0


def check_dtype(steps: Sequence[Transform], dtype: str) -> None:
    """Raise UsageError for a step that cannot work on values of `dtype`."""
    for step in steps:
        if isinstance(step, RandomChoice):
            check_dtype(step.transforms, dtype)
        elif dtype == "uint8" and (isinstance(step, MixUp) or (isinstance(step, RandomErasing) and step.value == "random")):
            raise UsageError(
                f"{type(step).__name__} makes floats, but the loader's dtype is uint8", hint="pass dtype='float32'"
            )


def apply_batch_transforms(
    steps: Sequence[Transform], images: torch.Tensor, labels: torch.Tensor, key: BatchKey, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [N, 3, H, W], which may be changed in place, and labels, int64 [N] or float [N, classes], after `steps`."""
    for number, step in enumerate(steps):
        random = np.random.Generator(np.random.PCG64(hashed(key.seed, key.epoch, key.step, key.rank, key.view, number)))
        if isinstance(step, RandomChoice):
            step = step.transforms[random.choice(len(step.transforms), p=step.p)]
        match step:
            case RandomErasing():
                _erase(step, images, key, number)
            case MixUp():
                share = float(random.beta(step.alpha, step.alpha))
                images = blend(images, share)
                labels = blend(_one_hot(labels, step.num_classes or classes), share)
            case CutMix():
                share = paste_rectangle(images, _rectangle(images, float(random.beta(step.alpha, step.alpha)), random))
                labels = blend(_one_hot(labels, step.num_classes or classes), share)
    return images, labels


def _one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    import torch

    if labels.ndim == 2:
        return labels
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UsageError(
            f"a label of {int(labels.max() if labels.min() >= 0 else labels.min())} among {classes} classes cannot be mixed",
            hint="give MixUp and CutMix num_classes, and every record a label",
        )
    return torch.nn.functional.one_hot(labels, classes).float()


def _rectangle(images: torch.Tensor, share: float, random: np.random.Generator) -> Rectangle:
    """Draw a rectangle of about (1 - share) of the area around a random point, cut off at the border."""
    height, width = images.shape[-2:]
    x, y = int(random.integers(width)), int(random.integers(height))
    half = 0.5 * math.sqrt(1.0 - share)
    half_width, half_height = int(half * width), int(half * height)
    return max(y - half_height, 0), min(y + half_height, height), max(x - half_width, 0), min(x + half_width, width)


def _erase(step: RandomErasing, images: torch.Tensor, key: BatchKey, number: int) -> None:
    import torch

    height, width = images.shape[-2:]
    for slot, (draw, uniform) in enumerate(zip(key.draws.tolist(), _uniforms(key, number), strict=True)):
        box = _erased_rectangle(step, height, width, uniform)
        if box is None:
            continue
        top, left, tall, wide = box
        target = images[slot, :, top : top + tall, left : left + wide]
        if step.value == "random":
            generator = torch.Generator().manual_seed(hashed(key.seed, key.epoch, draw, key.view, number) >> 1)
            target.copy_(torch.empty(target.shape).normal_(generator=generator))
        else:
            values = step.value
            assert isinstance(values, tuple)  # normalised by the transform's __post_init__
            for channel, value in zip(target, values * (3 // len(values)), strict=True):
                channel.fill_(value)


def _erased_rectangle(step: RandomErasing, height: int, width: int, uniform: Any) -> tuple[int, int, int, int] | None:
    """Return (top, left, height, width) of the rectangle to erase, or None."""
    if uniform[0] >= step.p:
        return None
    low, high = math.log(step.ratio[0]), math.log(step.ratio[1])
    for area, ratio, y, x in uniform[1:].reshape(_ATTEMPTS, 4).tolist():
        erased = height * width * (step.scale[0] + (step.scale[1] - step.scale[0]) * area)
        aspect = math.exp(low + (high - low) * ratio)
        tall, wide = round(math.sqrt(erased * aspect)), round(math.sqrt(erased / aspect))
        if tall < height and wide < width:
            return int(y * (height - tall + 1)), int(x * (width - wide + 1)), tall, wide
    return None


def _mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), elementwise modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _uniforms(key: BatchKey, number: int) -> npt.NDArray[np.float64]:
    """Return [N, 1 + 4 * attempts] numbers in [0, 1): SplitMix64 streams keyed by (seed, epoch, record, pipeline step)."""
    with np.errstate(over="ignore"):
        state = _mix64(key.draws + np.uint64(hashed(key.seed, key.epoch, key.view, number)))
        counters = np.arange(1, 2 + 4 * _ATTEMPTS, dtype=np.uint64) * _GOLDEN
        bits = _mix64(state[:, None] + counters[None, :])
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)
