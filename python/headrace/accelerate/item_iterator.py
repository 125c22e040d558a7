"""The iterator for loaders of the script's own items: they are planned here, native threads make their tensors.

As in `iterator`, the sampler, the batches and the collate function stay the script's own. An item whose code does something
else than before, or whose file is not decoded natively, is made by the script's dataset in this process.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.accelerate.compile import index_store
from headrace.accelerate.hf_datasets import rows_at_once
from headrace.accelerate.item_loader import CompiledItems, Jobs, PlannedItem, Slot, filled, holds_image, plan_item, plan_items
from headrace.accelerate.iterator import NativeFailure, NativeIterator, apply_per_image
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.translate import Unsupported
from headrace.accelerate.worker_copies import WorkerCopies

__all__ = ["ItemIterator"]


@dataclass(slots=True)
class _PendingItems:
    """A batch that is being filled. `items`: None where the script makes the item. `images`: the memory of each view."""

    indices: list[Any]
    items: list[PlannedItem | None]
    images: list[torch.Tensor]
    job: Jobs | None
    first_draw: int


class ItemIterator(NativeIterator):
    """One pass over a loader that is taken over; with persistent workers all passes, one after the other."""

    _items: CompiledItems

    def _prepare(self, compiled: Any) -> WorkerCopies:
        self._items = compiled
        # A worker has a copy of the dataset: what its code sets on it never reaches the script's own process.
        self._own_dataset = copy.copy(self._dataset) if self._num_workers > 0 else self._dataset
        return WorkerCopies((), self._collate_fn, has_workers=self._num_workers > 0)

    def _flush(self) -> None:
        index_store().close()

    def _start(self, indices: list[Any]) -> Any:
        first = self._draws
        count = len(indices)
        items = self._plan_all(indices)
        images, memory = [], []
        for number, view in enumerate(self._items.views):
            tensor, block = self._memory(count, number, view.pipeline, view.dtype)
            images.append(tensor)
            memory.append(block)
        job = self._items.submit(items, memory, self._base_seed & 0xFFFF_FFFF_FFFF_FFFF, self._pass, first) if count else None
        self._draws += count
        return _PendingItems(indices, items, images, job, first)

    def _plan_all(self, indices: list[Any]) -> list[PlannedItem | None]:
        recognition = self._items.recognition
        if rows_at_once(self._dataset, ()) is not None:
            with contextlib.suppress(Exception):  # raised again where the items are made one by one
                items = plan_items(recognition.calls, self._dataset, indices)
                if len(items) == len(indices):
                    return [item if recognition.fits(item) else None for item in items]
        return [self._plan(index) for index in indices]

    def _plan(self, index: Any) -> PlannedItem | None:
        recognition = self._items.recognition
        try:
            item = plan_item(recognition.calls, self._dataset, index)
        except Unsupported:
            return None
        except Exception:  # the script's own code raises it again, where its items are made
            return None
        return item if recognition.fits(item) else None

    def _finish(self, pending: Any) -> Any:
        if pending.job is None:
            return self._script_batch(pending.indices)
        bad = self._not_filled(pending)
        recognition = self._items.recognition
        contents = [None if item is None else item.content for item in pending.items]
        with separate_randomness(self._seed_of(pending)):
            theirs = {slot: self._own_dataset[pending.indices[slot]] for slot in sorted(bad)}
            for view, images in zip(recognition.views, pending.images, strict=True):
                apply_per_image(view.transform.per_image, images, bad)
            alike = all(self._takes(contents, pending.images, slot, item) for slot, item in theirs.items())
            if recognition.collate == "list" and alike:
                stacked = lambda batch, collate_fn_map: pending.images[batch[0].number]  # noqa: E731
                return self._pinned(collate(contents, collate_fn_map={**default_collate_fn_map, Slot: stacked}))
            items = [
                theirs[slot] if slot in theirs else filled(content, [images[slot] for images in pending.images])
                for slot, content in enumerate(contents)
            ]
            if recognition.collate != "code":
                return self._pinned(self._copies.collate(items))
            try:
                batch = recognition.calls.run(self._collate_fn, items)
            except Unsupported as refusal:
                raise NativeFailure(str(refusal)) from refusal
            if holds_image(batch):
                raise NativeFailure("its collate_fn hands on images")
            return self._pinned(batch)

    def _takes(self, contents: list[Any], images: list[torch.Tensor], slot: int, item: Any) -> bool:
        """Put an item of the script into the batch. Return False if it has another structure than the planned items."""
        model = next((content for content in contents if content is not None), None)
        found: dict[int, torch.Tensor] = {}
        contents[slot] = _matched(item, model, found)
        if sorted(found) != list(range(len(images))):
            return False
        for number, tensor in found.items():
            place = images[number][slot]
            if tensor.shape != place.shape or tensor.dtype != place.dtype:
                return False
            place.copy_(tensor)
        return True


def _matched(item: Any, model: Any, found: dict[int, torch.Tensor]) -> Any:
    """Return an item with slots where the model has them. `found` gets the item's tensors there."""
    if isinstance(model, Slot) and isinstance(item, torch.Tensor):
        found[model.number] = item
        return model
    if type(item) is not type(model):
        return item
    if type(item) is dict:
        return {key: _matched(one, model.get(key), found) for key, one in item.items()}
    if isinstance(item, tuple | list) and len(item) == len(model):
        parts = [_matched(one, other, found) for one, other in zip(item, model, strict=True)]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item
