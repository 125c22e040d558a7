"""A DataLoader whose dataset is the script's own code around images that headrace knows how to make.

The code of an item runs in the main process, without opening files and without transforms (`item_calls`). What it returns tells
which file and which transforms each of its tensors comes from, and holds everything else of the item. `recognise_items` plans a
few items, and accepts the loader if all have one structure whose transforms have exact native equivalents.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._native import Job, Table, hashed
from headrace.accelerate.compile import CompiledView, compile_view, engine, index_store
from headrace.accelerate.data_map import mapped
from headrace.accelerate.item_calls import ItemCalls
from headrace.accelerate.planned_images import Chain, PlannedFile, PlannedImage, PlannedView
from headrace.accelerate.pointwise import ValueTable, tabulate
from headrace.accelerate.randomness import holds_generator, separate_randomness
from headrace.accelerate.recognise import (
    CollateKind,
    check_loader,
    collate_kind,
    require_fixed_size,
    require_native_endings,
    require_native_values,
)
from headrace.accelerate.translate import TransformParts, Unsupported, translate

__all__ = [
    "CompiledItems",
    "ItemView",
    "PlannedItem",
    "RecognisedItems",
    "Slot",
    "compile_items",
    "plan_item",
    "recognise_items",
    "view_seed",
]

#: Plan this many items, spread over the dataset, before a loader is accepted.
PLANNED_ITEMS = 256

MOST_ITEM_S = 0.001
"""Leave a loader alone if planning an item takes more CPU time than this: the main process plans the items of all threads."""

MEASURED_ITEMS = 16
"""Judge that after this many items at the earliest."""

JPEG_ENDINGS = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a view in an item. `number`: the number of the view in the item."""

    number: int


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """An item with `Slot` objects in place of its views, and the views in their order."""

    content: Any
    views: tuple[PlannedView, ...]


@dataclass(frozen=True, slots=True)
class ItemView:
    """One tensor of an item: its chain of transforms, their parts, and the value table."""

    chain: Chain
    transform: TransformParts
    value_table: ValueTable


@dataclass(frozen=True, slots=True)
class RecognisedItems:
    """A loader whose items can be planned.

    `is_rgb`: the code converts its images to RGB. `paths`: the files of the items that were planned. `indices`: their indices.
    """

    calls: ItemCalls
    views: tuple[ItemView, ...]
    is_rgb: bool
    paths: tuple[str, ...]
    indices: tuple[int, ...]
    length: int
    collate: CollateKind

    def fits(self, item: PlannedItem) -> bool:
        """Whether an item has the views of the other items, all of one file."""
        return (
            len(item.views) == len(self.views)
            and all(one.chain is view.chain for one, view in zip(item.views, self.views, strict=True))
            and all(one.path == item.views[0].path and one.is_rgb == self.is_rgb for one in item.views)
        )


@dataclass(frozen=True, slots=True)
class CompiledItems:
    """Everything with which the native engine fills the batches of such a loader."""

    recognition: RecognisedItems
    views: tuple[CompiledView, ...]
    threads: int

    def submit(self, paths: list[str], memory: list[Any], seed: int, epoch: int, first_draw: int) -> Job:
        """Queue a batch: one path for each item, and the memory of each view."""
        count = len(paths)
        further = [
            (view.pipeline.program, view.store, view_seed(seed, number), memory[number], None)
            for number, view in enumerate(self.views)
            if number
        ]
        return engine(self.threads).submit(
            _NO_TABLE,
            self.views[0].pipeline.program,
            self.views[0].store,
            seed,
            epoch,
            np.arange(count, dtype=np.int64),
            np.arange(first_draw, first_draw + count, dtype=np.uint64),
            memory[0],
            further=further,
            files=([mapped(path) for path in paths], not self.recognition.is_rgb, index_store()),
        )


def view_seed(seed: int, number: int) -> int:
    """Return the seed of a view. The draws of several views of an image are independent."""
    return hashed(seed, number) if number else seed


_NONE = np.zeros(0, dtype=np.int64)
_NO_TABLE = Table([], _NONE.astype(np.int32), _NONE, _NONE)


def compile_items(recognition: RecognisedItems, threads: int) -> CompiledItems:
    """Compile a recognised loader. Raise `Unsupported` if the native engine cannot apply its transforms."""
    views = tuple(compile_view(view.transform, view.value_table) for view in recognition.views)
    return CompiledItems(recognition, views, threads)


def plan_item(calls: ItemCalls, dataset: Any, index: Any) -> PlannedItem:
    """Plan the item of an index. Raise `Unsupported`, or what the item's code raises."""
    views: list[PlannedView] = []
    content = _with_slots(calls.plan(dataset, index), views)
    return PlannedItem(content, tuple(views))


def _with_slots(content: Any, views: list[PlannedView]) -> Any:
    kind = type(content)
    if kind is PlannedView:
        views.append(content)
        return Slot(len(views) - 1)
    if kind is tuple or kind is list:
        return kind(_with_slots(one, views) for one in content)
    if kind is dict:
        return {key: _with_slots(one, views) for key, one in content.items()}
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return kind(*(_with_slots(one, views) for one in content))
    if kind is PlannedImage or kind is PlannedFile:
        raise Unsupported("its items hold images that are no tensors", "a transform that ends in ToTensor or PILToTensor")
    return content


def recognise_items(loader: Any) -> RecognisedItems:
    """Plan items of a loader, and return what they have in common.

    Raise `Unsupported` with the first reason for which the items cannot be made natively. Of the script only the code of items
    runs, which changes nothing (`item_calls`).
    """
    check_loader(loader)
    _require_single_items(loader.dataset)
    if loader.num_workers > 0 and holds_generator(loader.collate_fn):
        raise Unsupported("its collate_fn has a random generator of its own, of which each worker has a copy")
    calls = ItemCalls()
    with separate_randomness(0):
        length = _length(calls, loader.dataset)
        indices = tuple(dict.fromkeys(int(at) for at in np.linspace(0, length - 1, min(length, PLANNED_ITEMS))))
        first = _planned(calls, loader.dataset, indices[0])
        if not first.views:
            raise Unsupported("its items hold no tensor of an image file")
        start_s = time.thread_time()
        items = []
        for number, index in enumerate(indices):
            items.append(_planned(calls, loader.dataset, index))
            spent_s = time.thread_time() - start_s
            if spent_s > MOST_ITEM_S * MEASURED_ITEMS and spent_s > MOST_ITEM_S * (number + 1):
                raise Unsupported("the rest of its items' code takes longer in one process than native decoding saves")
    views = tuple(_item_view(one.chain) for one in first.views)
    paths = tuple(item.views[0].path for item in items if item.views)
    recognition = RecognisedItems(calls, views, first.views[0].is_rgb, paths, indices, length, collate_kind(loader.collate_fn))
    if not all(recognition.fits(item) for item in items):
        raise Unsupported("its items do not all have the same views of one file")
    require_native_endings(paths)
    if not recognition.is_rgb and not all(path.lower().endswith(JPEG_ENDINGS) for path in paths):
        raise Unsupported("its images are not converted to RGB", 'Image.open(path).convert("RGB")')
    for view in views:
        require_native_values(view.value_table, recognition.collate)
    if recognition.collate == "timm" and first.content[:1] != (Slot(0),):
        raise Unsupported("timm's fast_collate of other items than (image, target)")
    return recognition


def _require_single_items(dataset: Any) -> None:
    """Raise `Unsupported` if torch's fetcher does not ask the dataset for one item after the other."""
    subset = sys.modules["torch.utils.data"].Subset
    while type(dataset) is subset:
        dataset = dataset.dataset
    if getattr(dataset, "__getitems__", None) is not None:
        raise Unsupported(f"dataset {type(dataset).__name__} has its own __getitems__", "__getitem__ only")


def _length(calls: ItemCalls, dataset: Any) -> int:
    length = calls.length(dataset)
    if length <= 0:
        raise Unsupported(f"dataset {type(dataset).__name__} is empty")
    return length


def _planned(calls: ItemCalls, dataset: Any, index: int) -> PlannedItem:
    try:
        return plan_item(calls, dataset, index)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"planning item {index} failed ({type(error).__name__}: {error})") from error


def _item_view(chain: Chain) -> ItemView:
    parts = translate(chain.operations)
    require_fixed_size(parts)
    return ItemView(chain, parts, tabulate(parts.pointwise))
