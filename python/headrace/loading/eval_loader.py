"""The loader for evaluation: each record once, in the dataset's order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headrace.datasets.records.dataset import Dataset
from headrace.errors import UsageError
from headrace.loading.loader import Loader
from headrace.system.text.arguments import unknown_argument
from headrace.transforms.base import Transform

__all__ = ["REPEATED", "eval_loader"]

REPEATED = -100
"""The label of repeated records: torch's cross_entropy leaves it out by default (`ignore_index`)."""

_DECIDED = {
    "shuffle": "leave it out: an evaluation takes the dataset's order; headrace.Loader shuffles",
    "drop_last": "leave it out: an evaluation drops no record; headrace.Loader(drop_last=True) does",
    "train": "leave it out: the data that you open decides, such as headrace.open('DATA/val')",
}


def eval_loader(
    data: Dataset | str | os.PathLike[str],
    batch_size: int,
    transform: Transform | Callable[[Any], Any] | list[Any],
    **options: Any,
) -> Loader:
    """Return a Loader for evaluation: each record once an epoch, in the dataset's order, the incomplete last batch too.

    data, batch_size, transform: as for `Loader`; the transform is usually `headrace.transforms.imagenet_eval(224)`.
    options: other arguments of `Loader`, such as device and dtype.

    Where several ranks share the last batch, up to world_size - 1 records come twice, so that all ranks have the same number of
    batches. The second time their label is -100, which torch's cross_entropy ignores: count images by `labels >= 0`.

    Raises UsageError for shuffle or drop_last, else what `Loader` raises.
    Example: `headrace.eval_loader("data/val", 256, headrace.transforms.imagenet_eval(224))`.
    """
    for name, hint in _DECIDED.items():
        if name in options:
            error: UsageError = unknown_argument("eval_loader", name, [], {name: hint})
            raise error
    return Loader(data, batch_size, transform, shuffle=False, drop_last=False, **{"repeated_label": REPEATED, **options})
