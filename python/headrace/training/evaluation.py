"""How good a model is on a validation set: top-1 and top-5 accuracy, every image counted exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.loading.loader import Loader

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Scores", "evaluate", "model_scores"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares in [0, 1] of images whose label is the first, or among the first five, of the model's answers.

    `top5` is None with five classes or fewer, where it would say nothing. `loss` is the mean cross entropy.
    """

    top1: float
    top5: float | None
    loss: float
    images: int


def evaluate(
    model: nn.Module,
    loader: Loader,
    *,
    device: str,
    autocast: torch.dtype | None = None,
    flip: bool = False,
    confusion: torch.Tensor | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Scores | None:
    """Runs `model` in evaluation mode over one pass of `loader`; leaves the model in the mode it was in.

    Under torch.distributed every rank evaluates its share and all get the scores of the whole set. None, on all
    ranks, when `stopped` became true on one of them on the way. `flip`: see `model_scores`.
    `confusion`, int64 [classes, classes] on the device, has images added to row label, column answer (of this rank).
    """
    import torch

    was_training = model.training
    model.eval()
    # correct among first 1, among first 5, summed loss, images, ranks that were stopped
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    loader.set_epoch(0)
    step = 0
    with torch.inference_mode(), torch.autocast(device.split(":")[0], dtype=autocast, enabled=autocast is not None):
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            real = _real_images(loader, step, len(labels))
            step += 1
            if stopped():
                totals[4] = 1
                break
            answers = model_scores(model, images, flip=flip)[:real]
            labels = labels[:real]
            ranked = answers.topk(min(5, answers.shape[1]), dim=1).indices == labels[:, None]
            loss = torch.nn.functional.cross_entropy(answers, labels, reduction="sum")
            totals[:3] += torch.stack([ranked[:, 0].sum(), ranked.sum(), loss])
            totals[3] += real
            if confusion is not None:
                pairs = labels * confusion.shape[1] + answers.argmax(1)
                confusion += torch.bincount(pairs, minlength=confusion.numel()).view_as(confusion)
    model.train(was_training)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(totals)
    first, fifth, loss_sum, count, stopped_ranks = totals.tolist()
    if stopped_ranks:
        return None
    classes = len(loader.dataset.classes)
    return Scores(first / count, fifth / count if classes > 5 else None, loss_sum / count, int(count))


def model_scores(model: nn.Module, images: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """The model's answers, float32 [N, classes]; with `flip`, the mean of those to the images and to their mirror images."""
    answers: torch.Tensor = model(images).float()
    return (answers + model(images.flip(3)).float()) / 2 if flip else answers


def _real_images(loader: Loader, step: int, images: int) -> int:
    """How many of a batch are this rank's own: the last batch may be filled up from the front so that ranks stay in step."""
    start = step * loader.batch_size * loader.world_size
    left = len(loader.dataset) - start
    if left >= loader.batch_size * loader.world_size:
        return images
    return max(0, min(images, left - loader.rank * images))
