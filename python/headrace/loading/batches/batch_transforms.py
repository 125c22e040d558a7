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
from headrace.gpu.preparation.batch_steps import Erase, Mix
from headrace.loading.batches.mixing import Rectangle, blend, paste_rectangle
from headrace.loading.order.arithmetic import hashed, mix64
from headrace.transforms.base import Transform
from headrace.transforms.batch import CutMix, MixUp, RandomChoice, RandomErasing

if TYPE_CHECKING:
    import torch

__all__ = ["BatchKey", "FirstSteps", "apply_batch_transforms", "check_dtype", "draw_first_steps", "mixed_labels"]

_ATTEMPTS = 10  # tries to find a rectangle that fits, as in torchvision; after that the image stays unchanged
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The numbers that seed the random draws of a batch. draws: [N], one key per record."""

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


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The batch transforms, already drawn, that one pass over the batch applies: RandomErasing, then MixUp or CutMix."""

    taken: int = 0
    erase: Erase | None = None
    mix: Mix | None = None
    mixing: MixUp | CutMix | None = None  # the transform that `mix` was drawn from


def draw_first_steps(steps: Sequence[Transform], height: int, width: int, key: BatchKey) -> FirstSteps:
    """Draw the first batch transforms that one pass can apply: one RandomErasing by a colour, then one MixUp or CutMix."""
    erase: Erase | None = None
    for number, step in enumerate(steps):
        chosen, random = _chosen(step, key, number)
        if isinstance(chosen, MixUp | CutMix):
            return FirstSteps(number + 1, erase, _mix(chosen, random, height, width), chosen)
        if erase is not None or not isinstance(chosen, RandomErasing) or chosen.value == "random":
            return FirstSteps(number, erase)
        erase = _drawn_erase(chosen, height, width, key, number)
    return FirstSteps(len(steps), erase)


def mixed_labels(labels: torch.Tensor, mixing: MixUp | CutMix, mix: Mix, height: int, width: int, classes: int) -> torch.Tensor:
    """Return the soft labels of a batch that `mix` was applied to, float [N, classes]."""
    share = mix.share
    if mix.rectangle is not None:
        top, bottom, left, right = mix.rectangle
        share = 1.0 - (bottom - top) * (right - left) / (height * width)
    return blend(_one_hot(labels, mixing.num_classes or classes), share)


def apply_batch_transforms(
    steps: Sequence[Transform], images: torch.Tensor, labels: torch.Tensor, key: BatchKey, classes: int, *, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply batch transforms; return images [N, 3, H, W] and labels, int64 [N] or, after mixing, float [N, classes].

    first: the number of steps that are done already.
    """
    height, width = (int(side) for side in images.shape[-2:])
    for number in range(first, len(steps)):
        step, random = _chosen(steps[number], key, number)
        if isinstance(step, RandomErasing):
            _erase(step, images, key, number)
        elif isinstance(step, MixUp | CutMix):
            mix = _mix(step, random, height, width)
            if mix.rectangle is None:
                images = blend(images, mix.share)
            else:
                paste_rectangle(images, mix.rectangle)
            labels = mixed_labels(labels, step, mix, height, width, classes)
    return images, labels


def _chosen(step: Transform, key: BatchKey, number: int) -> tuple[Transform, np.random.Generator]:
    """Return a step, or the one that a RandomChoice chooses, and the generator of its further draws."""
    random = np.random.Generator(np.random.PCG64(hashed(key.seed, key.epoch, key.step, key.rank, key.view, number)))
    if isinstance(step, RandomChoice):
        step = step.transforms[random.choice(len(step.transforms), p=step.p)]
    return step, random


def _mix(step: MixUp | CutMix, random: np.random.Generator, height: int, width: int) -> Mix:
    share = float(random.beta(step.alpha, step.alpha))
    return Mix(share) if isinstance(step, MixUp) else Mix(share, _rectangle(height, width, share, random))


def _drawn_erase(step: RandomErasing, height: int, width: int, key: BatchKey, number: int) -> Erase:
    assert isinstance(step.value, tuple)  # normalised by the transform's __post_init__
    boxes = [_erased_rectangle(step, height, width, uniform) for uniform in _uniforms(key, number)]
    red, green, blue = step.value * (3 // len(step.value))
    return Erase(boxes, (red, green, blue))


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


def _rectangle(height: int, width: int, share: float, random: np.random.Generator) -> Rectangle:
    """Draw a rectangle of about (1 - share) of the area around a random point, cut off at the border."""
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


def _uniforms(key: BatchKey, number: int) -> npt.NDArray[np.float64]:
    """Return [N, 1 + 4 * attempts] numbers in [0, 1): SplitMix64 streams keyed by (seed, epoch, record, pipeline step)."""
    with np.errstate(over="ignore"):
        state = mix64(key.draws + np.uint64(hashed(key.seed, key.epoch, key.view, number)))
        counters = np.arange(1, 2 + 4 * _ATTEMPTS, dtype=np.uint64) * _GOLDEN
        bits = mix64(state[:, None] + counters[None, :])
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)
