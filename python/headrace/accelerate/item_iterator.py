"""The iterator for loaders of the script's own items: they are planned here, native threads make their tensors.

As in `iterator`, the sampler, the batches and the collate function stay the script's own. An item whose code does something
else than before, or whose file is not decoded natively, is made by the script's dataset in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.accelerate.compile import index_store
from headrace.accelerate.hf_datasets import rows_at_once
from headrace.accelerate.item_loader import (
    CompiledItems,
    Jobs,
    PlannedItem,
    Slot,
    filled,
    holds_image,
    kept_items,
    plan_item,
    plan_items,
)
from headrace.accelerate.item_proof import equal_contents
from headrace.accelerate.iterator import NativeFailure, NativeIterator, apply_per_image
from headrace.accelerate.kept_state import KeptItems
from headrace.accelerate.planned_images import PlannedMode
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.script_state import state_of
from headrace.accelerate.translate import Unsupported
from headrace.images.decode import UNSUPPORTED

__all__ = ["ItemIterator"]


MOST_GRAY_FILES = 1_000_000
"""Remember so many gray files: 100 bytes each."""

_gray_files: set[str] = set()
"""Paths of files that were gray JPEGs: their items are planned as such."""


@dataclass(slots=True)
class _PendingItems:
    """A batch that is being filled. `items`: None where the script makes the item. `images`: the memory of each view.

    `job`: None where the script makes the whole batch. `pulled`: the number of batches that the script had when it was planned.
    """

    indices: list[Any]
    items: list[PlannedItem | None]
    images: list[torch.Tensor]
    job: Jobs | None
    first_draw: int
    pulled: int


class ItemIterator(NativeIterator):
    """One pass over a loader that is taken over; with persistent workers all passes, one after the other."""

    _items: CompiledItems

    def _prepare(self, compiled: Any) -> None:
        self._items = compiled
        self._own_dataset, self._own_collate = self._dataset, self._collate_fn
        self._kept: KeptItems | None = None
        if self._num_workers > 0:
            self._kept = kept_items(compiled.recognition, self._dataset, self._collate_fn)
            self._kept.close()
            self._own_dataset, self._own_collate = self._kept.dataset, self._kept.collate or self._collate_fn

    def _kept_in_place(self) -> contextlib.AbstractContextManager[None]:
        """Let the script's code see what it would see in a worker."""
        return contextlib.nullcontext() if self._kept is None else self._kept.in_place()

    def _steps(self) -> Sequence[Any]:
        return [step for view in self._items.recognition.views for step in view.transform.geometry]

    def _view_count(self) -> int:
        return len(self._items.views)

    def _flush(self) -> None:
        index_store().close()

    def _state(self) -> Any:
        return state_of([view.chain.operations for view in self._items.recognition.views])

    def _up_to_date(self, pending: Any) -> Any:
        """Plan the items again: whatever the script has changed that they depend on, they are what they would be now."""
        if pending.pulled == self._num_yielded:
            return pending
        items = [] if self._blurs_otherwise() else self._plan_all(pending.indices)
        if len(items) == len(pending.items) and all(map(_alike, items, pending.items)):
            return pending
        if pending.job is not None:
            pending.job.cancel()
        return self._submitted(pending.indices, items, pending.first_draw, first=True)

    def _start(self, indices: list[Any]) -> Any:
        first = self._draws
        self._draws += len(indices)
        with self._kept_in_place():
            items = [] if self._blurs_otherwise() else self._plan_all(indices)
        return self._submitted(indices, items, first)

    def _submitted(
        self, indices: list[Any], items: list[PlannedItem | None], first_draw: int, *, first: bool = False
    ) -> _PendingItems:
        """Give planned items to the native threads, `first`: before what waits. `first_draw`: number of the first draw."""
        count = len(indices)
        if not items:
            return _PendingItems(indices, [], [], None, first_draw, self._num_yielded)
        images, job = self._filling(items, range(first_draw, first_draw + count), first=first)
        return _PendingItems(indices, items, images, job, first_draw, self._num_yielded)

    def _filling(
        self, items: Sequence[PlannedItem | None], draws: Sequence[int], *, first: bool = False
    ) -> tuple[list[torch.Tensor], Jobs]:
        """Give items to the native threads. Return the memory of each view, and the job. `first`: before what waits."""
        images, memory = [], []
        for view in self._items.views:
            tensor, block = self._memory(len(items), view.pipeline, view.dtype)
            images.append(tensor)
            memory.append(block)
        return images, self._items.submit(
            items, memory, self._base_seed & 0xFFFF_FFFF_FFFF_FFFF, self._pass, draws, first=first
        )

    @property
    def _makes_rows_at_once(self) -> bool:
        """Whether the dataset makes all items of a batch in one call, so that none of them can be made alone."""
        return rows_at_once(self._own_dataset, ()) is not None

    def _plan_all(self, indices: list[Any]) -> list[PlannedItem | None]:
        """Return the planned items; an empty list where the script is to make the whole batch."""
        if not self._makes_rows_at_once:
            return [self._plan(index) for index in indices]
        recognition = self._items.recognition
        try:
            items = plan_items(recognition.calls, self._own_dataset, indices)
        except Exception:  # the script's own code raises it again, where it makes the batch
            return []
        return list(items) if len(items) == len(indices) and all(map(recognition.fits, items)) else []

    def _plan(self, index: Any) -> PlannedItem | None:
        item = self._planned_as(index, "RGB")
        if item is None or not item.looks_at_mode:
            return item
        source = item.views[0].source
        known = isinstance(source, str) and source in _gray_files
        return (self._planned_as_gray(index, item) or item) if known else item

    def _planned_as(self, index: Any, mode: PlannedMode) -> PlannedItem | None:
        recognition = self._items.recognition
        try:
            item = plan_item(recognition.calls, self._own_dataset, index, mode)
        except Unsupported:
            return None
        except Exception:  # the script's own code raises it again, where its items are made
            return None
        return item if recognition.fits(item) else None

    def _planned_as_gray(self, index: Any, before: PlannedItem) -> PlannedItem | None:
        """Plan an item again, as that of gray files. None if it becomes the item of other files."""
        item = self._planned_as(index, "L")
        if item is None or any(one.source != other.source for one, other in zip(item.views, before.views, strict=True)):
            return None
        return item

    def _fill_gray(self, pending: _PendingItems, job: Jobs, bad: set[int]) -> set[int]:
        """Fill the slots of gray files, which the code converts to RGB because their mode is another. Return the slots left."""
        planned: dict[int, PlannedItem] = {}
        for slot in sorted(bad):
            before = pending.items[slot]
            if before is None or not before.looks_at_mode or job.statuses()[slot] != UNSUPPORTED:
                continue
            source = before.views[0].source
            if before.is_gray and isinstance(source, str):
                _gray_files.discard(source)  # it has changed
            elif (item := self._planned_as_gray(pending.indices[slot], before)) is not None:
                planned[slot] = item
        if not planned:
            return bad
        draws = [pending.first_draw + slot for slot in planned]
        images, own_job = self._filling(list(planned.values()), draws, first=True)
        left = set(bad)
        unfilled = self._not_filled(own_job)
        for number, (slot, item) in enumerate(planned.items()):
            if number in unfilled:
                continue
            for whole, made in zip(pending.images, images, strict=True):
                # Torch's copy_ would wake its threads; NumPy has no bfloat16.
                whole[slot].view(torch.uint8).numpy()[...] = made[number].view(torch.uint8).numpy()
            pending.items[slot] = item
            left.discard(slot)
            source = item.views[0].source
            if isinstance(source, str) and len(_gray_files) < MOST_GRAY_FILES:
                _gray_files.add(source)
        return left

    def _finish(self, pending: Any) -> Any:
        bad = self._not_filled(pending.job) if pending.job is not None else set()
        if pending.job is not None and not bad and self._items.recognition.collate != "code":  # no code of the script
            return self._finished(pending, bad)
        with self._kept_in_place():
            return self._finished(pending, bad)

    def _finished(self, pending: Any, bad: set[int]) -> Any:
        if pending.job is None or (bad and self._makes_rows_at_once):
            with separate_randomness(self._seed_of(pending)):
                return self._script_batch(pending.indices)
        recognition = self._items.recognition
        if bad:
            bad = self._fill_gray(pending, pending.job, bad)
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
                return self._pinned(self._own_collate(items))
            try:
                batch = recognition.calls.run(self._own_collate, items)
            except Unsupported as refusal:
                raise NativeFailure(str(refusal)) from refusal
            if holds_image(batch):
                raise NativeFailure("its collate_fn hands on images")
            return self._pinned(self._sent(batch))

    def _sent(self, batch: Any) -> Any:
        """Return a batch of the script's collate function as a worker would send it."""
        if self._kept is None or self._items.recognition.collate != "code":
            return batch
        return self._kept.sent(batch)

    def _script_batch(self, indices: list[Any]) -> Any:
        together = getattr(self._own_dataset, "__getitems__", None)  # as torch's own fetcher asks
        with self._kept_in_place():
            items = together(indices) if together else [self._own_dataset[index] for index in indices]
            return self._pinned(self._sent(self._own_collate(items)))

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


def _alike(ours: PlannedItem | None, theirs: PlannedItem | None) -> bool:
    """Whether two plans are of the same item."""
    if ours is None or theirs is None:
        return ours is theirs
    views = zip(ours.views, theirs.views, strict=True)
    return (
        ours.is_gray == theirs.is_gray
        and len(ours.views) == len(theirs.views)
        and all(one.source == other.source and one.chain is other.chain for one, other in views)
        and equal_contents(ours.content, theirs.content)
    )


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
