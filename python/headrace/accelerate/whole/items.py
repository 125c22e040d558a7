"""Recognise and compile a DataLoader whose dataset is the script's own code. Item: what `dataset[i]` returns.

To plan an item, its code runs in the main process, without opening files and without transforms (`script_code.calls`). The
result names the file and the transforms of each image tensor (a view), and holds the item's other values. `recognise_items`
plans a few items, and accepts the loader if all have the same structure, and exact native equivalents of their transforms.
"""

from __future__ import annotations

import operator
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace._native import DrawPlan, Job, Stream, Table
from headrace.accelerate.runtime.data_map import mapped
from headrace.accelerate.runtime.engine import engine, index_store
from headrace.accelerate.runtime.unsupported import Refusal, Unsupported, required
from headrace.accelerate.script.quiet_files import require_quiet_files
from headrace.accelerate.script_code.calls import ItemCalls, has_own_default_collate
from headrace.accelerate.script_code.hf_datasets import is_rows_dataset, rows_at_once
from headrace.accelerate.script_code.kept_state import KeptItems
from headrace.accelerate.script_code.planned_images import (
    Chain,
    Looks,
    PlannedFile,
    PlannedImage,
    PlannedMode,
    PlannedView,
    Source,
    source_name,
    with_mode,
)
from headrace.accelerate.transforms.pointwise import ValueTable, tabulate
from headrace.accelerate.transforms.translate import Trace, TransformParts, translate
from headrace.accelerate.whole.compile import CompiledView, compile_view
from headrace.accelerate.whole.folders import (
    CollateKind,
    require_fixed_size,
    require_native_endings,
    require_native_values,
    start_method,
)
from headrace.accelerate.workers.errors import is_of_handler
from headrace.accelerate.workers.randomness import separate_randomness

__all__ = [
    "CompiledItems",
    "ItemView",
    "Jobs",
    "PlannedItem",
    "RecognisedItems",
    "Slot",
    "compile_items",
    "filled",
    "holds_image",
    "kept_items",
    "plan_item",
    "plan_items",
    "recognise_items",
    "require_known_batches",
    "with_parts",
]

#: Plan this many items, spread over the dataset, before a loader is taken over. More find rarer code paths.
PLANNED_ITEMS = 256

MOST_ITEM_S = 0.001
"""Refuse a loader if planning an item takes more CPU seconds: the main process plans the items of all native threads."""

BYTE_S = 2e-9
"""CPU seconds allowed in addition for each byte of an image in memory, for copying it. Decoding takes about 10 ns a byte."""

MEASURED_ITEMS = 16
"""Apply the limit `MOST_ITEM_S` only after this many items, so that slow first items do not count."""

MOST_BLACK_ITEMS = 8
"""Try out a collate function with at most this many black images."""

JPEG_ENDINGS = (".jpg", ".jpeg")

_ANY, _RGB_JPEG, _GRAY_JPEG = range(3)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an image tensor in a planned item. `number`: which of the item's tensors belongs there."""

    number: int


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """What `dataset[i]` returns, with `Slot` objects in place of its image tensors, and a view (file, transforms) for each.

    `has_images`: it also holds Pillow images, which only a collate function that is run under control may get. `looks_at_mode`:
    the code read the mode of its files; the native decoder must find the same. `is_gray`: that mode is gray, and the code
    converts the images to RGB.
    """

    content: Any
    views: tuple[PlannedView, ...]
    has_images: bool = False
    looks_at_mode: bool = False
    is_gray: bool = False

    @property
    def shares_memory(self) -> bool:
        """Whether two tensors of the item may be one, or share memory: a batch that is no stack of them would show it."""
        return len({id(view.memory) for view in self.views}) < len(self.views)

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the views in the order in which the code draws random numbers for them."""
        return tuple(sorted(range(len(self.views)), key=lambda number: self.views[number].draws[:1] or (-1,)))


@dataclass(frozen=True, slots=True)
class ItemView:
    """One image tensor of every item of a loader: its transforms, their translation, and the value table."""

    chain: Chain
    transform: TransformParts
    value_table: ValueTable


@dataclass(frozen=True, slots=True)
class RecognisedItems:
    """A loader whose items can be planned, and what its items have in common.

    `is_rgb`: the code converts images to RGB. `is_upright`: the code turns them by their EXIF orientation. `groups`: the
    numbers of the views of each file of an item. `paths`, `indices`: files and indices of the items planned so far. `length`:
    number of items. `order`: the numbers of the views in the order of their random draws. `collate`: the kind of the collate
    function; "code" if it is run under control, as the code of the items is. `plan_s`: CPU seconds to plan an item.
    """

    calls: ItemCalls
    views: tuple[ItemView, ...]
    is_rgb: bool
    is_upright: bool
    groups: tuple[tuple[int, ...], ...]
    paths: tuple[str, ...]
    indices: tuple[int, ...]
    length: int
    collate: CollateKind
    order: tuple[int, ...]
    plan_s: float = 0.0

    def fits(self, item: PlannedItem) -> bool:
        """Return whether a planned item has the same views, from the same number of files, as the loader's other items."""
        return (
            len(item.views) == len(self.views)
            and item.order == self.order
            and (not item.shares_memory if self.collate == "code" else not item.has_images)
            and all(
                one.chain is view.chain and one.is_rgb == (self.is_rgb or item.is_gray) and one.is_upright == self.is_upright
                for one, view in zip(item.views, self.views, strict=True)
            )
            and all(item.views[number].source == item.views[group[0]].source for group in self.groups for number in group)
        )


@dataclass(frozen=True, slots=True)
class CompiledItems:
    """Everything from which the native engine makes the batches of a loader with code of its own."""

    recognition: RecognisedItems
    views: tuple[CompiledView, ...]
    threads: int

    def submit(
        self,
        items: Sequence[PlannedItem | None],
        memory: list[Any],
        turn: tuple[Stream, Sequence[DrawPlan], int] | None = None,
        *,
        first: bool = False,
        folder: str = "",
    ) -> Jobs:
        """Queue the planned items of a batch for the native threads. An item that is None gets a status other than 0.

        `memory`: the batch memory of each view. `turn`: the stream of random numbers, a draw plan for each view, and the most
        words that an item takes from torch's stream. `first`: decode this batch before those that wait. `folder`: the folder to
        which relative paths refer.
        """
        jobs = [self._submit(group, items, memory, turn, first, folder) for group in self.recognition.groups]
        random = next((number for number, group in enumerate(self.recognition.groups) if self._is_random(group)), 0)
        return Jobs(jobs, random)

    def _is_random(self, group: tuple[int, ...]) -> bool:
        return any(self.views[number].is_random for number in group)

    def _submit(
        self,
        group: tuple[int, ...],
        items: Sequence[PlannedItem | None],
        memory: list[Any],
        turn: tuple[Stream, Sequence[DrawPlan], int] | None,
        first: bool,
        folder: str,
    ) -> Job:
        """Queue the views of one file of each item."""
        views = [(self.views[number].pipeline.program, self.views[number].store, 0, memory[number]) for number in group]
        program, store, _, block = views[0]
        paths = ["" if item is None else _mapped(item.views[group[0]].source, folder) for item in items]
        joined = None
        if turn is not None and self._is_random(group):
            stream, plans, words = turn
            order = [group.index(number) for number in self.recognition.order if number in group]
            joined = (stream, [plans[number] for number in group], order, words)
        return engine(self.threads).submit(
            _NO_TABLE,
            program,
            store,
            0,
            0,
            np.arange(len(items), dtype=np.int64),
            np.zeros(len(items), dtype=np.uint64),
            block,
            further=[(*view, None) for view in views[1:]],
            files=(paths, bytes(map(self._file_kind, items)), self.recognition.is_upright, index_store()),
            first=first,
            turn=joined,
        )

    def _file_kind(self, item: PlannedItem | None) -> int:
        """Return the number by which `Engine.submit` is told the kind of file that an item needs."""
        if item is None or (self.recognition.is_rgb and not item.looks_at_mode):
            return _ANY
        return _GRAY_JPEG if item.is_gray else _RGB_JPEG


class Jobs:
    """The native jobs of a batch: one for each file of an item. `random`: the number of the job that draws random numbers."""

    def __init__(self, jobs: list[Job], random: int = 0) -> None:
        self._jobs = jobs
        self._random = random

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all jobs. Return False if one of them is not done after `timeout_s` seconds (None: no limit)."""
        return all(job.wait(timeout_s) for job in self._jobs)

    def statuses(self) -> list[int]:
        """Return the status of each item: 0 if all of its images are decoded, else the first status that is not 0."""
        return [
            next((one for one in statuses if one), 0) for statuses in zip(*(job.statuses() for job in self._jobs), strict=True)
        ]

    def streams_before(self, image: int) -> bytes | None:
        """Return the state of the random streams before an item was drawn, as `Job.streams_before` does."""
        return self._jobs[self._random].streams_before(image)

    def cancel(self) -> None:
        """Cancel the decoding of this batch's images, as `Job.cancel` does."""
        for job in self._jobs:
            job.cancel()


def _mapped(source: Source, folder: str) -> Source:
    return os.path.join(folder, mapped(source)) if isinstance(source, str) else source  # noqa: PTH118 -- fast


_NONE = np.zeros(0, dtype=np.int64)
_NO_TABLE = Table([], _NONE.astype(np.int32), _NONE, _NONE)


def compile_items(recognition: RecognisedItems, threads: int) -> CompiledItems:
    """Compile a recognised loader. Raise `Unsupported` if the native engine cannot apply its transforms."""
    views = tuple(compile_view(view.transform, view.value_table) for view in recognition.views)
    if sum(any(views[number].is_random for number in group) for group in recognition.groups) > 1:
        raise Unsupported("random numbers are drawn for several files of an item")
    return CompiledItems(recognition, views, threads)


def plan_item(calls: ItemCalls, dataset: Any, index: Any, mode: PlannedMode = "RGB") -> PlannedItem:
    """Plan `dataset[index]`; image files count as having this mode. Raise `Unsupported`, or what the dataset's code raises."""
    made, looks = with_mode(mode, lambda: calls.plan(dataset, index))
    item = _planned_item(made, looks.looked_at, mode)
    _require_understood([item], looks)
    return item


def _require_understood(items: Sequence[PlannedItem], looks: Looks) -> None:
    """Raise `Unsupported` unless each random draw of the code belongs to a view, one view after the other, and each file too.

    A file of which no tensor is made is not read, and nobody would find that it is damaged or missing.
    """
    made = [draw for item in items for number in item.order for draw in item.views[number].draws]
    if made != list(range(looks.draws)):
        raise Unsupported("its items draw random numbers in another order than view by view")
    if not all(any(one == view.source for item in items for view in item.views) for one in looks.opened):
        raise Unsupported("its items open other files than those of their tensors", "each opened file as a tensor of the item")


def _planned_item(made: Any, looked_at: list[Source], mode: PlannedMode) -> PlannedItem:
    """Return the item that the code made. `looked_at`: the files whose mode the code read, as `mode`."""
    views: list[PlannedView] = []
    content = _with_slots(made, views)
    if not all(any(one == view.source for view in views) for one in looked_at):
        raise Unsupported("its items look at the mode of other files than those of their tensors")
    return PlannedItem(content, tuple(views), holds_image(content), bool(looked_at), is_gray=mode == "L")


def plan_items(calls: ItemCalls, dataset: Any, indices: Sequence[Any]) -> list[PlannedItem]:
    """Plan the items of a batch. A `datasets.Dataset` is asked for all rows in one call, as torch's fetcher does.

    Raise `Unsupported`, or what the dataset's code raises.
    """
    together = rows_at_once(dataset, indices)
    if together is None:
        return [plan_item(calls, dataset, index) for index in indices]
    rows, looks = with_mode("RGB", lambda: calls.plan_rows(*together))
    if looks.looked_at:
        raise Unsupported("the function of set_transform looks at the mode of images", 'Image.open(path).convert("RGB")')
    items = [_planned_item(made, [], "RGB") for made in rows]
    _require_understood(items, looks)
    return items


def holds_image(content: Any) -> bool:
    """Return whether a value contains a planned image, view or file."""
    if isinstance(content, dict):
        return any(holds_image(one) for one in content.values())
    if isinstance(content, list | tuple | set | frozenset | deque):
        return any(holds_image(one) for one in content)
    return isinstance(content, PlannedImage | PlannedView | PlannedFile)


def _with_slots(content: Any, views: list[PlannedView]) -> Any:
    kind = type(content)
    if kind is PlannedView:
        views.append(content)
        return Slot(len(views) - 1)
    if kind is PlannedFile:
        raise Unsupported("its items hold the bytes of files", "a transform that ends in ToTensor or PILToTensor")
    return with_parts(content, lambda one: _with_slots(one, views))


def filled(content: Any, views: Sequence[torch.Tensor]) -> Any:
    """Return the contents of a planned item with tensors in place of its `Slot` objects."""
    if type(content) is Slot:
        return views[content.number]
    return with_parts(content, lambda one: filled(one, views))


def with_parts(content: Any, part: Callable[[Any], Any]) -> Any:
    """Return a tuple, list, dict or named tuple with `part` applied to each element; any other value unchanged.

    Where `part` changes no value, the object itself is returned: without workers the script gets what its dataset holds.
    """
    kind = type(content)
    is_named = isinstance(content, tuple) and hasattr(content, "_fields")
    if kind is not dict and kind is not tuple and kind is not list and not is_named:
        return content
    values = list(content.values()) if kind is dict else content
    parts = [part(one) for one in values]
    if all(map(operator.is_, parts, values)):
        return content
    if kind is dict:
        return dict(zip(content, parts, strict=True))
    return kind(*parts) if is_named else kind(parts)


def recognise_items(loader: Any, collate: CollateKind | Refusal, trace: Trace) -> RecognisedItems:
    """Recognise a loader by planning some of its items, and return what they have in common.

    `collate`: the kind of its collate function, refused if it is the script's own. `trace`: translates the script's own
    transforms. Raise `Unsupported` with the first reason for which the items cannot be made natively. Of the script only the
    code of items runs, which changes nothing (`script_code.calls`).
    """
    _require_single_items(loader.dataset)
    _require_forked_workers(loader)
    calls = ItemCalls(trace)
    with separate_randomness(0):
        length = _length(calls, loader.dataset)
        indices = tuple(dict.fromkeys(int(at) for at in np.linspace(0, length - 1, min(length, PLANNED_ITEMS))))
        first = _planned(calls, loader.dataset, indices[0])
        kind = _collate(loader.collate_fn, collate)
        if first.has_images and kind != "code":
            raise Unsupported("its items hold images that are no tensors", "a transform that ends in ToTensor or PILToTensor")
        if not first.views:
            raise Unsupported("its items hold no tensor of an image file")
        start_s = time.thread_time()
        longest_s = 0.0
        in_memory = 0
        items = []
        each_s = []
        for number, index in enumerate(indices):
            begin_s = time.thread_time()
            items.append(_planned(calls, loader.dataset, index))
            now_s = time.thread_time()
            each_s.append(now_s - begin_s)
            longest_s = max(longest_s, each_s[-1])
            in_memory += sum(len(view.source) for view in items[-1].views if isinstance(view.source, bytes))
            # Without what happens once: a garbage collection, a first page of a file.
            spent_s = now_s - start_s - longest_s - in_memory * BYTE_S
            if spent_s > MOST_ITEM_S * MEASURED_ITEMS and spent_s > MOST_ITEM_S * (number + 1):
                raise Unsupported("the rest of its items' code takes longer in one process than native decoding saves")
    views = tuple(_item_view(one.chain, trace) for one in first.views)
    paths = tuple(source_name(view.source) for item in items for view in item.views)
    groups = _groups(items)
    is_rgb, is_upright = first.views[0].is_rgb, first.views[0].is_upright
    together = rows_at_once(loader.dataset, ()) is not None  # the rows of a batch take less time than each alone
    plan_s = 0.0 if together else sorted(each_s)[len(each_s) // 2]
    recognition = RecognisedItems(calls, views, is_rgb, is_upright, groups, paths, indices, length, kind, first.order, plan_s)
    if kind == "code" and any(item.shares_memory for item in items):
        raise Unsupported("two tensors of its items share memory, and its collate_fn is its own", "torch's default_collate")
    if not all(recognition.fits(item) for item in items):
        raise Unsupported("its items do not all have the same views")
    require_native_endings(paths)
    require_quiet_files(paths)
    if not all(path.lower().endswith(JPEG_ENDINGS) for path in paths):
        if not recognition.is_rgb:
            raise Unsupported("its images are not converted to RGB", 'Image.open(path).convert("RGB")')
        if any(item.looks_at_mode for item in items):
            raise Unsupported("its items look at the mode of files that are no JPEGs", 'Image.open(path).convert("RGB")')
    for view in views:
        require_native_values(view.value_table, recognition.collate)
    if recognition.collate == "timm" and first.content[:1] != (Slot(0),):
        raise Unsupported("timm's fast_collate gets other items than (image, target)")
    if kind != "code":
        kept_items(recognition, loader.dataset, None)
    return recognition


def kept_items(recognition: RecognisedItems, dataset: Any, collate: Any) -> KeptItems:
    """Return a snapshot of dataset, collate function and their variables. Raise `Unsupported` if one cannot be copied."""
    operations = [operation for view in recognition.views for operation in view.chain.operations]
    return KeptItems(recognition.calls, dataset, collate if recognition.collate == "code" else None, operations)


def require_known_batches(loader: Any, compiled: CompiledItems) -> None:
    """Try out a collate function with black images. Raise `Unsupported` if its code is refused, or fails with them."""
    recognition = compiled.recognition
    if recognition.collate != "code":
        return
    views = [torch.zeros(3, view.pipeline.height, view.pipeline.width, dtype=view.dtype) for view in compiled.views]
    indices = recognition.indices[: min(loader.batch_size or MOST_BLACK_ITEMS, MOST_BLACK_ITEMS)]
    with separate_randomness(0):
        items = plan_items(recognition.calls, loader.dataset, indices)
        try:
            batch = recognition.calls.run(loader.collate_fn, [filled(item.content, views) for item in items])
        except Unsupported:
            raise
        except Exception as error:
            if is_of_handler(error):
                raise
            raise Unsupported(f"its collate_fn fails with black images ({type(error).__name__}: {error})") from error
    kept = kept_items(recognition, loader.dataset, loader.collate_fn)
    if loader.num_workers > 0 and not holds_image(batch):
        kept.require_sendable(batch)


def _require_forked_workers(loader: Any) -> None:
    """Raise `Unsupported` if workers would not start with the variables of this process."""
    if (method := start_method(loader)) not in ("", "fork"):
        raise Unsupported(f"its workers are started by {method} and have variables of their own", "workers that are forked")


def _groups(items: Sequence[PlannedItem]) -> tuple[tuple[int, ...], ...]:
    """Group the views of an item by file: return the numbers of the views of each file."""
    groups: dict[tuple[Source, ...], list[int]] = {}
    for number in range(len(items[0].views)):
        paths = tuple(item.views[number].source if number < len(item.views) else "" for item in items)
        groups.setdefault(paths, []).append(number)
    return tuple(tuple(group) for group in groups.values())


def _collate(function: Any, found: CollateKind | Refusal) -> CollateKind:
    if has_own_default_collate():
        raise Unsupported("the script has added types to torch's default_collate", "torch's default_collate")
    return "code" if isinstance(found, Refusal) and callable(function) else required(found)


def _require_single_items(dataset: Any) -> None:
    """Raise `Unsupported` if torch's fetcher does not ask the dataset for one item at a time."""
    subset = sys.modules["torch.utils.data"].Subset
    while type(dataset) is subset:
        dataset = dataset.dataset
    if getattr(dataset, "__getitems__", None) is not None and not is_rows_dataset(dataset):
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
        if is_of_handler(error):
            raise
        raise Unsupported(f"planning item {index} failed ({type(error).__name__}: {error})") from error


def _item_view(chain: Chain, trace: Trace) -> ItemView:
    parts = translate(chain.operations, trace)
    require_fixed_size(parts)
    return ItemView(chain, parts, tabulate(parts.pointwise))
