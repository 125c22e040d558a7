"""Evaluation: top-1 and top-5 accuracy on a validation set, every image counted exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.loading.loader import Loader
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.sizes import count_text

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Scores", "evaluate", "model_scores"]

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # texts of torch's out-of-memory errors


@dataclass(frozen=True, slots=True)
class Scores:
    """Accuracy as shares (0 to 1) of images whose label has the highest score, or one of the five highest.

    `top5` is None with five classes or fewer, where it would always be 1. `loss` is the mean cross entropy.
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
    pairs: list[torch.Tensor] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Scores | None:
    """Return the model's scores over one pass of `loader`. The model keeps its mode (training or evaluation).

    Under torch.distributed every rank evaluates its part, and all return the scores of the whole set. If `stopped` returns True
    on any rank, all return None. `flip`: see `model_scores`. `pairs` gets, for each batch of this rank, int64
    [images, 2] on the device: the label and the predicted class of each image.
    """
    import torch

    was_training = model.training
    model.eval()
    # label has the highest score, one of the five highest, sum of losses, images, ranks that were stopped
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    loader.set_epoch(0)
    step = 0
    with torch.inference_mode(), torch.autocast(device.split(":")[0], dtype=autocast, enabled=autocast is not None):
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            real = loader.real_images(step, len(labels))
            step += 1
            if stopped():
                totals[4] = 1
                break
            scores = model_scores(model, images, flip=flip)[:real]
            labels = labels[:real]
            ranked = scores.topk(min(5, scores.shape[1]), dim=1).indices == labels[:, None]
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
            totals[:3] += torch.stack([ranked[:, 0].sum(), ranked.sum(), loss])
            totals[3] += real
            if pairs is not None:
                pairs.append(torch.stack([labels, scores.argmax(1)], 1))
    model.train(was_training)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(totals)
    first, fifth, loss_sum, count, stopped_ranks = totals.tolist()
    if stopped_ranks:
        return None
    classes = len(loader.dataset.classes)
    return Scores(first / count, fifth / count if classes > 5 else None, loss_sum / count, int(count))


def model_scores(model: nn.Module, images: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Return the scores before softmax, float32 [N, classes]; with `flip`, their mean over each image and its mirror image.

    Raises HeadraceError if the memory does not suffice or the model fails: weights of others may ask for images of any size.
    """
    try:
        scores: torch.Tensor = model(images).float()
        return (scores + model(images.flip(3)).float()) / 2 if flip else scores
    except (RuntimeError, ValueError, AssertionError) as error:
        count, _, height, width = images.shape
        what = f"{count_text(count, 'image')} of {width}x{height} pixels"
        if not any(words in str(error) for words in _NO_MEMORY):
            raise HeadraceError(f"the model fails on {what}: {first_line(error)}", hint="another --image-size") from error
        what = f"{what} do not fit into the memory with this model"
        raise HeadraceError(what, hint="a smaller --batch-size or --image-size") from error
