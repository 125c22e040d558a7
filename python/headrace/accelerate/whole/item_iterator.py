"""The native iterator for datasets with code of their own: items are planned in this process, native threads make the tensors.

Item: what `dataset[i]` returns. To plan it: run its code without decoding (`script_code.calls`). As in `iterator`, the sampler,
the batches and the collate function are the script's own. The script's dataset makes an item in this process if its code does
something that the planned items did not, or if its file is not decoded natively.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.accelerate.runtime.batch_memory import not_a_view
from headrace.accelerate.runtime.engine import index_store
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.state import state_of
from headrace.accelerate.script_code.hf_datasets import rows_at_once
from headrace.accelerate.script_code.kept_state import KeptItems
from headrace.accelerate.script_code.planned_images import PlannedMode
from headrace.accelerate.whole.equality import are_equal
from headrace.accelerate.whole.items import (
    CompiledItems,
    PlannedItem,
    Slot,
    filled,
    holds_image,
    kept_items,
    plan_item,
    plan_items,
)
from headrace.accelerate.whole.iterator import NativeFailure, NativeIterator
from headrace.accelerate.whole.pending import Pending
from headrace.accelerate.workers.errors import is_of_handler
from headrace.accelerate.workers.random_streams import GeneratorStates, RandomStream
from headrace.accelerate.workers.settings import WorkerSettings, current_folder
from headrace.accelerate.workers.unheard_warnings import unheard_warnings
from headrace.images.decode import UNSUPPORTED

__all__ = ["ItemIterator"]


MOST_GRAY_FILES = 1_000_000
"""Remember at most this many gray files, which take 100 bytes each. Others are planned twice."""

_gray_files: set[str] = set()
"""Paths of files that turned out to be gray JPEGs: their items are planned in mode "L" at once."""


class ItemIterator(NativeIterator):
    """Iterator of a loader whose dataset has code of its own; yields the script's batches, over one pass or all passes.

    The places of a batch (`Pending`) are planned items, or None where the script makes the item.
    """

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
        """Return a context manager under which the script's code finds the state that a worker would have."""
        if self._kept is None or self._worker_settings is None:
            return contextlib.nullcontext()
        return self._in_worker(self._worker_settings, self._kept)

    @staticmethod
    @contextlib.contextmanager
    def _in_worker(settings: WorkerSettings, kept: KeptItems) -> Iterator[None]:
        with settings.in_place(), kept.in_place():
            yield

    def _steps(self) -> Sequence[Any]:
        return [step for view in self._items.recognition.views for step in view.transform.geometry]

    def _flush(self) -> None:
        index_store().close()

    def _state(self) -> Any:
        return state_of([view.chain.operations for view in self._items.recognition.views])

    def _update(self, pending: Pending) -> None:
        """Plan the items of a batch again, because the script may have changed what they depend on."""
        items = [] if self._is_set_otherwise() else self._plan(pending.indices)
        if len(items) == len(pending.places) and all(map(_alike, items, pending.places)):
            return
        pending.withdraw()
        pending.places = items
        if items:
            stream = self._stream(pending)
            if stream is not None:
                for later in self._jobs:
                    later.withdraw()
                stream.restart(GeneratorStates.now())
            self._fill(pending, first=True)

    def _submitted(self, places: Sequence[Any], memory: list[Any], stream: RandomStream | None, *, first: bool) -> Any:
        turn = None if stream is None else (stream.native, self._plans, self._words)
        folder = current_folder() if self._worker_settings is None else self._worker_settings.folder
        return self._items.submit(places, memory, turn, first=first, folder=folder or "")

    @property
    def _makes_rows_at_once(self) -> bool:
        """Return whether the dataset makes all items of a batch in one call, so that none can be made alone."""
        return rows_at_once(self._own_dataset, ()) is not None

    def _plan(self, indices: list[Any]) -> Sequence[PlannedItem | None]:
        """Return the planned items; an empty list if the script must make the whole batch.

        Where an item's code gives a warning, the script makes the item, and the warning is given then.
        """
        with self._kept_in_place():
            with unheard_warnings() as unheard:
                items = self._planned_together(indices)
            if not unheard.given:
                return items
            return [] if self._makes_rows_at_once else [self._planned_quietly(index) for index in indices]

    def _planned_quietly(self, index: Any) -> PlannedItem | None:
        with unheard_warnings() as unheard:
            item = self._plan_one(index)
        return None if unheard.given else item

    def _planned_together(self, indices: list[Any]) -> Sequence[PlannedItem | None]:
        if not self._makes_rows_at_once:
            return [self._plan_one(index) for index in indices]
        recognition = self._items.recognition
        try:
            items = plan_items(recognition.calls, self._own_dataset, indices)
        except Exception as error:  # the script's own code raises it again, where it makes the batch
            if is_of_handler(error):
                raise
            return []
        return list(items) if len(items) == len(indices) and all(map(recognition.fits, items)) else []

    def _plan_one(self, index: Any) -> PlannedItem | None:
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
        except Exception as error:  # the script's own code raises it again, where its items are made
            if is_of_handler(error):
                raise
            return None
        return item if recognition.fits(item) else None

    def _planned_as_gray(self, index: Any, before: PlannedItem) -> PlannedItem | None:
        """Plan an item again, with its files in mode "L". None if it then uses other files."""
        item = self._planned_as(index, "L")
        if item is None or any(one.source != other.source for one, other in zip(item.views, before.views, strict=True)):
            return None
        return item

    def _plan_otherwise(self, pending: Pending, slot: int, status: int) -> bool:
        """Plan the item of a gray file again, in mode "L": its code converts the image to RGB."""
        before = pending.places[slot]
        if before is None or not before.looks_at_mode or status != UNSUPPORTED:
            return False
        source = before.views[0].source
        if before.is_gray and isinstance(source, str):
            _gray_files.discard(source)  # it has changed
            return False
        with self._kept_in_place():
            item = self._planned_as_gray(pending.indices[slot], before)
        if item is None:
            return False
        if isinstance(source, str) and len(_gray_files) < MOST_GRAY_FILES:
            _gray_files.add(source)
        pending.places = [*pending.places[:slot], item, *pending.places[slot + 1 :]]
        return True

    def _script_item(self, pending: Pending, slot: int) -> Any:
        with self._kept_in_place():
            return self._own_dataset[pending.indices[slot]]

    def _finish(self, pending: Pending) -> Any:
        if pending.job is None:
            return self._made_by_the_script(pending)
        if self._makes_rows_at_once and self._not_filled(pending.job):
            return self._rows_made_by_the_script(pending)
        theirs = self._completed(pending)
        recognition = self._items.recognition
        contents = [None if item is None else item.content for item in pending.places]
        alike = all(self._takes(contents, pending.images, slot, item) for slot, item in theirs.items())
        if recognition.collate == "list" and alike:
            stacked = lambda batch, collate_fn_map: pending.images[batch[0].number]  # noqa: E731
            with self._set_as_worker():
                return self._pinned(collate(contents, collate_fn_map={**default_collate_fn_map, Slot: stacked}))
        items = [
            theirs[slot] if slot in theirs else filled(content, self._alone(pending, slot))
            for slot, content in enumerate(contents)
        ]
        if recognition.collate != "code":
            with self._set_as_worker():
                return self._pinned(self._own_collate(items))
        try:
            with self._kept_in_place():
                batch = recognition.calls.run(self._own_collate, items)
        except Unsupported as refusal:
            raise NativeFailure(str(refusal)) from refusal
        if holds_image(batch):
            raise NativeFailure("its collate_fn hands on images")
        return self._pinned(self._sent(batch))

    @staticmethod
    def _alone(pending: Pending, slot: int) -> list[torch.Tensor]:
        """Return the image of each view as a separate tensor, not a view of the batch."""
        found = []
        for images, memory in zip(pending.images, pending.memory, strict=True):
            one = images[slot]
            start = slot * one.nbytes
            found.append(not_a_view(torch.frombuffer(memory, dtype=one.dtype, count=one.numel(), offset=start), one.shape))
        return found

    def _sent(self, batch: Any) -> Any:
        """Return a batch of the script's collate function as the training process would receive it from a worker."""
        if self._kept is None or self._items.recognition.collate != "code":
            return batch
        return self._kept.sent(batch)

    def _rows_made_by_the_script(self, pending: Pending) -> Any:
        """Return a batch whose items can only be made together, by the script, with the random numbers from its start."""
        stream = self._stream(pending)
        if stream is None:
            return self._made_by_the_script(pending)
        for later in self._jobs:
            if self._stream(later) is stream:
                later.withdraw()
        state = pending.job.streams_before(0)
        if state is None:
            raise NativeFailure("the random numbers of an image are not known")
        pending.withdraw()
        with self._in_its_process(pending, state):
            return self._script_batch(pending.indices)

    def _script_batch(self, indices: list[Any]) -> Any:
        together = getattr(self._own_dataset, "__getitems__", None)  # as torch's own fetcher asks
        with self._kept_in_place():
            items = together(indices) if together else [self._own_dataset[index] for index in indices]
            return self._pinned(self._sent(self._own_collate(items)))

    def _takes(self, contents: list[Any], images: list[torch.Tensor], slot: int, item: Any) -> bool:
        """Put an item that the script made into the batch. Return False if its structure differs from the planned items'."""
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
    """Return whether two planned items are equal."""
    if ours is None or theirs is None:
        return ours is theirs
    views = zip(ours.views, theirs.views, strict=True)
    return (
        ours.is_gray == theirs.is_gray
        and len(ours.views) == len(theirs.views)
        and all(one.source == other.source and one.chain is other.chain for one, other in views)
        and are_equal(ours.content, theirs.content)
    )


def _matched(item: Any, model: Any, found: dict[int, torch.Tensor]) -> Any:
    """Return an item with `Slot` objects where the model has them. `found` gets the tensors that were there."""
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
