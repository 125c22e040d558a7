"""Text that says why a loader is not taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.accelerate.runtime.unsupported import Refusal
from headrace.attach.batches.steps import is_stand_in

__all__ = ["own_iterators", "refusal_text", "tensors_in_memory"]


def refusal_text(refusals: Sequence[Refusal]) -> str:
    """Return the distinct reasons, and what to change in the script so that the loader is taken over."""
    reasons: list[str] = []
    for refusal in refusals:
        if not any(refusal.text in reason for reason in reasons):
            reasons.append(refusal.text)
    text = reasons[0] + "".join(f"; not in part either: {reason}" for reason in reasons[1:])
    remedy = next((refusal.remedy for refusal in refusals if refusal.remedy), "")
    return f"{text} (it would be with {remedy})" if remedy else text


def own_iterators(loader: Any) -> str | None:
    """Return a reason if the loader's class overrides `_get_iterator`, as torchdata's StatefulDataLoader does; else None."""
    from torch.utils.data import DataLoader

    if is_stand_in(loader):
        return "fastai's DataLoader makes its own batches (it would be with torch.utils.data.DataLoader)"
    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is no torch.utils.data.DataLoader"
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        return f"{type(loader).__name__} makes its own iterators"
    return None


def tensors_in_memory(dataset: Any) -> str | None:
    """Return a reason if a dataset is torch's `TensorDataset`, or a `Subset` of one: it opens no image file; else None."""
    from torch.utils.data import Subset, TensorDataset

    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return "dataset TensorDataset is not an image folder: its items are tensors in memory"
    return None
