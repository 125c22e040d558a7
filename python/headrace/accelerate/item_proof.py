"""The comparison of planned items with the script's own, before a loader of such items is taken over.

A forked child makes a few items with the script's own code, so that nothing in the script's process changes: no counter, no
generator, no cache. The parent compares: everything in an item but its views must be equal, and the views must be tensors of
the expected type, shape and values type. Where no transform draws random numbers, the values of the views must be equal too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headrace.accelerate.hf_datasets import rows_at_once
from headrace.accelerate.item_loader import CompiledItems, PlannedItem, Slot, filled, plan_item, plan_items, with_parts
from headrace.accelerate.planned_images import PlannedImage
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.translate import Unsupported
from headrace.accelerate.unheard_warnings import unheard_warnings
from headrace.system.sizes import count_text

__all__ = ["SEED", "equal_contents", "native_views", "require_equal_items"]

COMPARED_ITEMS = 3
"""Compare this many items before a loader is taken over. `--check` compares more."""

TIME_LIMIT_S = 120.0
"""Give up the comparison when the child has not made its items in this time: its code may wait for a lock of another thread."""

SEED = 20_26
"""The seed of the draws in comparisons."""

#: Transforms that draw no random numbers.
DETERMINISTIC = frozenset({"CenterCrop", "Grayscale", "Pad", "Resize"})


def _draws(step: Any) -> bool:
    """Whether a step (`NativeTransform`) draws random numbers."""
    if step.name == "TorchBlur":
        low, high = step.arguments["sigma"]
        return bool(low != high)
    return step.name not in DETERMINISTIC


#: For each loader, what its last comparison covered: the number of items, and the operations. Later epochs skip the same one.
_compared: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()


def require_equal_items(loader: Any, compiled: CompiledItems, count: int = 0) -> str:
    """Compare `count` items (at least 3) with the script's own. Return the result in words.

    Raise `Unsupported` if an item differs.
    """
    count = max(count, COMPARED_ITEMS)
    recognition = compiled.recognition
    key = (count, *(operation for view in recognition.views for operation in view.chain.operations))
    known = _compared.get(loader)
    if known is None or len(known) != len(key) or not all(one is other for one, other in zip(known[1:], key[1:], strict=True)):
        _compare(loader, compiled, count)
        _compared[loader] = key
    return f"{count_text(min(count, recognition.length), 'item')} equal but for the draws of their transforms"


def _compare(loader: Any, compiled: CompiledItems, count: int) -> None:
    dataset, recognition = loader.dataset, compiled.recognition
    chosen = np.linspace(0, len(recognition.indices) - 1, min(count, len(recognition.indices))).astype(np.int64)
    indices = [recognition.indices[at] for at in dict.fromkeys(int(at) for at in chosen)]
    is_code = recognition.collate == "code"
    theirs, their_batch = _made_in_a_child(dataset, indices, loader.collate_fn if is_code else None)
    with separate_randomness(SEED):
        ours = plan_items(recognition.calls, dataset, indices)
        if len(ours) != len(indices) or rows_at_once(dataset, ()) is not None:
            _require_one_by_one(ours, [plan_item(recognition.calls, dataset, index) for index in indices])
    tensors, statuses = native_views(compiled, ours)
    for number, (index, item, other) in enumerate(zip(indices, ours, theirs, strict=True)):
        if isinstance(other, _Failed) or statuses[number] != 0:
            continue  # a file that cannot be read raises its error in the script, as ever
        found: dict[int, Any] = {}
        if not _equal(item.content, other, found):
            raise Unsupported(f"item {index} came out different when it was planned")
        for view_number, view in enumerate(recognition.views):
            mine, tensor = tensors[view_number][number], found.get(view_number)
            if not isinstance(tensor, torch.Tensor) or tensor.shape != mine.shape or tensor.dtype != mine.dtype:
                raise Unsupported(f"a tensor of item {index} came out different")
            drawn = view.transform.per_image or any(_draws(one) for one in view.transform.geometry)
            if not drawn and not torch.equal(tensor.as_subclass(torch.Tensor), mine):
                raise Unsupported(f"the values of item {index} came out different")
    if is_code and not any(statuses):
        made = [filled(item.content, [view[number] for view in tensors]) for number, item in enumerate(ours)]
        if not _alike(recognition.calls.run(loader.collate_fn, made), their_batch):
            raise Unsupported("a batch of its collate_fn came out different")


def _require_one_by_one(together: list[PlannedItem], singly: list[PlannedItem]) -> None:
    """Raise `Unsupported` if the function for several rows makes other items of them than of each row alone."""
    alike = len(together) == len(singly) and all(
        _equal(one.content, other.content, {})
        and [(view.source, view.chain) for view in one.views] == [(view.source, view.chain) for view in other.views]
        for one, other in zip(together, singly, strict=True)
    )
    if not alike:
        raise Unsupported("the function of set_transform makes other items of several rows than of each alone")


def native_views(compiled: CompiledItems, items: list[PlannedItem]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the tensors [N, 3, H, W] of each view, with the draws of `SEED`, and the status of each item."""
    memory = [np.zeros(len(items) * view.pipeline.image_bytes(), dtype=np.uint8) for view in compiled.views]
    job = compiled.submit(items, memory, SEED, 0, range(len(items)))
    while not job.wait(None):
        pass
    tensors = [
        torch.from_numpy(block).view(view.dtype).view(len(items), 3, view.pipeline.height, view.pipeline.width)
        for block, view in zip(memory, compiled.views, strict=True)
    ]
    return tensors, job.statuses()


class _Failed:
    """An item that the script's code could not make."""


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether two batches have equal types, shapes and keys. Their tensors may have other random draws."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return bool(ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride())
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(_alike(one, theirs[key]) for key, one in ours.items())
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(_alike(one, other) for one, other in zip(ours, theirs, strict=True))
    return _equal(ours, theirs, {})


def _made_in_a_child(dataset: Any, indices: list[int], collate: Any) -> tuple[list[Any], Any]:
    """Return the items that the script's own code makes in a forked child, and what `collate` (None: nothing) makes of them.

    Raise `Unsupported` if there are none.
    """
    reading, writing = os.pipe()
    with unheard_warnings():  # Python's about threads: the child runs no code of theirs
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            _make(dataset, indices, collate, writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        data = _read_all(reading, time.monotonic() + TIME_LIMIT_S)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        made: tuple[list[Any], Any] = pickle.loads(data)
    except Exception as error:
        raise Unsupported("its items could not be made in a forked process for the comparison") from error
    return made


def _make(dataset: Any, indices: list[int], collate: Any, writing: int) -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    with separate_randomness(SEED):
        items = _fetched(dataset, indices)
        sound = not any(isinstance(item, _Failed) for item in items)
        batch = _portable(collate(items)) if collate is not None and sound else None
    with os.fdopen(writing, "wb") as file:
        pickle.dump((items, batch), file)


def _fetched(dataset: Any, indices: list[int]) -> list[Any]:
    """Return items as torch's loader gets them: all in one call, or one by one."""
    if rows_at_once(dataset, ()) is not None:
        with contextlib.suppress(Exception):
            return [_portable(item) for item in dataset.__getitems__(indices)]
    items: list[Any] = []
    for index in indices:
        try:
            items.append(_portable(dataset[index]))
        except Exception:
            items.append(_Failed())
    return items


def _portable(content: Any) -> Any:
    """Return an item whose tensors pickle by value, not as shared memory."""
    if isinstance(content, torch.Tensor):
        return content.detach().clone()
    return with_parts(content, _portable)


def _read_all(reading: int, end_s: float) -> bytes:
    parts: list[bytes] = []
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([reading], [], [], left_s)[0]:
            break
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise Unsupported("its items took too long in the comparison")


def equal_contents(ours: Any, theirs: Any) -> bool:
    """Whether the contents of two planned items are known to be equal."""
    try:
        return _equal(ours, theirs, {})
    except Exception:  # an object that can be neither pickled nor compared
        return False


def _equal(ours: Any, theirs: Any, found: dict[int, Any]) -> bool:
    """Whether two items are equal apart from their views. `found` gets the script's tensors of the views."""
    if isinstance(ours, Slot):
        found[ours.number] = theirs
        return True
    if type(ours) is PlannedImage:  # nothing looks at it: the collate function runs as code
        return isinstance(theirs, PlannedImage | sys.modules["PIL.Image"].Image)
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(_equal(one, theirs[key], found) for key, one in ours.items())
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(_equal(one, other, found) for one, other in zip(ours, theirs, strict=True))
    if isinstance(ours, torch.Tensor):
        return bool(ours.dtype == theirs.dtype and torch.equal(ours, theirs))
    if isinstance(ours, np.ndarray):
        return bool(ours.dtype == theirs.dtype and np.array_equal(ours, theirs))
    same: bool = pickle.dumps(ours) == pickle.dumps(theirs) or bool(ours == theirs)
    return same
