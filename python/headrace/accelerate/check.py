"""Compare native batches with the script's own before a loader is taken over.

A forked child iterates over a small copy of the loader as the script would without headrace, so that nothing in the script's
process changes: no counter, no generator, no cache. The parent does the same natively, from equal seeds. Whole batches must be
equal bit for bit: images with their random draws, targets, and what the collate function makes of them.

Each loader is compared in a few items (`require_equal_batches`). `--check` compares more, over two epochs and with workers.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.loader_copies import loader_copy
from headrace.accelerate.script_code.hf_datasets import rows_at_once
from headrace.accelerate.whole.equality import are_equal
from headrace.accelerate.whole.items import CompiledItems, plan_item, plan_items
from headrace.accelerate.workers.errors import is_of_handler
from headrace.accelerate.workers.forked_child import ForkedChildFailed, forked_child
from headrace.accelerate.workers.one_at_a_time import one_at_a_time
from headrace.accelerate.workers.random_streams import GeneratorStates
from headrace.attach.record.unseen_frames import unannounced
from headrace.system.hardware.machine import cores
from headrace.system.text.sizes import count_text

__all__ = ["BatchesDiffer", "check", "require_equal_batches", "require_rows_alone"]

COMPARED_ITEMS = 3
"""Number of items compared before any loader is taken over. More take longer at the start, and find rarer differences."""

PLANS_WITHOUT_WORKERS = 2
"""Without workers the code of an item runs so often: when its batch is made ahead, and before it is handed over."""

CHECKED_BATCHES = 4
"""`--check` divides its items among this many batches, so that each of its workers makes more than one batch."""

CHECKED_WORKERS = 2
"""`--check` runs with at most this many workers, so that it needs few processes."""

SEED = 20_26
"""Seed of the random generators while batches are compared."""

TIME_LIMIT_S = 120.0
"""Refuse the loader if the child process has not made its batches in this time: its code may wait for a lock of another thread.
"""

MakeIterator = Callable[[Any], Any]
"""Function that takes a loader and returns its iterator."""


class BatchesDiffer(Exception):
    """Raised by `--check` when native batches differ from the script's. The message says where."""


#: For each dataset the collate function and transforms that were compared last: equal ones are not compared again. They are
#: referred to weakly: a method of the dataset would keep it for ever.
_compared: WeakKeyDictionary[Any, tuple[weakref.ref[Any], ...]] = WeakKeyDictionary()


def require_equal_batches(
    loader: Any,
    indices: Sequence[int],
    operations: Sequence[Any],
    native: MakeIterator,
    plain: MakeIterator,
    plan_s: float = 0.0,
) -> None:
    """Make a few items natively and by the script. Raise `Unsupported` if a batch differs.

    `indices`: dataset indices from which the items are chosen. `operations`: the transforms, on which the result depends.
    `plan_s`: CPU seconds that this process spends on the code of an item. Raise `Unsupported` if the script's own processes
    together make an item in less time.
    """
    key = (loader.collate_fn, *operations)
    try:
        known = _compared.get(loader.dataset)
    except TypeError:  # the dataset cannot be hashed or referred to weakly
        known = None
    if known is not None and len(known) == len(key) and all(one() is other for one, other in zip(known, key, strict=True)):
        return
    chosen = _spread(indices, COMPARED_ITEMS)
    difference, item_s = _difference(_small(loader, [chosen], workers=0), native, plain, epochs=1)
    if difference:
        raise Unsupported(f"a batch of its items came out different ({difference})")
    times = min(loader.num_workers, max(1, int(cores().usable))) or PLANS_WITHOUT_WORKERS
    if plan_s * times > item_s:
        raise Unsupported("the rest of its items' code takes longer in one process than native decoding saves")
    with contextlib.suppress(TypeError):
        _compared[loader.dataset] = tuple(map(weakref.ref, key))


def require_rows_alone(dataset: Any, compiled: CompiledItems) -> None:
    """Raise `Unsupported` if an item differs when the dataset makes it alone instead of together with other rows."""
    if rows_at_once(dataset, ()) is None:
        return
    recognition = compiled.recognition
    indices = _spread(recognition.indices, COMPARED_ITEMS)
    together = plan_items(recognition.calls, dataset, indices)
    singly = [plan_item(recognition.calls, dataset, index) for index in indices]
    alike = len(together) == len(singly) and all(
        are_equal(one.content, other.content)
        and [(view.source, view.chain) for view in one.views] == [(view.source, view.chain) for view in other.views]
        for one, other in zip(together, singly, strict=True)
    )
    if not alike:
        raise Unsupported("the function of set_transform makes other items of several rows than of each alone")


def check(loader: Any, indices: Sequence[int], count: int, native: MakeIterator, plain: MakeIterator) -> str:
    """Compare `count` items in whole batches over two epochs (`--check`). Return the result in words.

    Raise `BatchesDiffer` if a batch differs.
    """
    chosen = _spread(indices, count)
    size = min(int(getattr(loader, "batch_size", None) or count), math.ceil(len(chosen) / CHECKED_BATCHES))
    batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
    workers = min(loader.num_workers, CHECKED_WORKERS)
    try:
        difference, _ = _difference(_small(loader, batches, workers), native, plain, epochs=2)
    except Unsupported as refusal:
        raise BatchesDiffer(str(refusal)) from refusal
    if difference:
        raise BatchesDiffer(difference)
    compared = f"{count_text(len(chosen), 'item')} in {count_text(len(batches), 'batch')}, over 2 epochs"
    return f"{compared}: equal bit for bit, draws and targets included"


def _spread(indices: Sequence[int], count: int) -> list[int]:
    """Return up to `count` of the indices, evenly spread."""
    places = np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(np.int64)
    return [indices[at] for at in dict.fromkeys(places.tolist())]


def _small(loader: Any, batches: list[list[int]], workers: int) -> Any:
    """Return a copy of the loader that makes only these batches, with a random generator of its own."""
    small = loader_copy(loader)
    # DataLoader's __setattr__ forbids it after __init__; this is a copy.
    small.__dict__ |= {
        "batch_sampler": batches,
        "num_workers": workers,
        "prefetch_factor": loader.prefetch_factor if workers else None,
        "persistent_workers": loader.persistent_workers and workers > 0,
        "pin_memory": False,
        "timeout": 0,
        "generator": None,
        "_iterator": None,
    }
    return small


def _difference(small: Any, native: MakeIterator, plain: MakeIterator, epochs: int) -> tuple[str, float]:
    """Return in words where native batches differ from the script's; an empty text if they are equal.

    Return also the CPU seconds in which the script's own code makes one of their items.
    """
    try:
        with (
            one_at_a_time(),
            unannounced(),
            forked_child(lambda: (list(_passes(small, plain, epochs)), _item_s(small)), TIME_LIMIT_S) as theirs_made,
        ):
            before = GeneratorStates.now()
            try:
                ours = list(_passes(small, native, epochs))
            finally:
                before.restore()
            theirs, item_s = theirs_made()
    except ForkedChildFailed as error:
        raise Unsupported("its items could not be made in a forked process for the comparison") from error
    *batches, after = zip(ours, theirs, strict=True)
    for number, (one, other) in enumerate(batches):
        if not are_equal(one, other):
            return f"batch {number}", item_s
    return "" if are_equal(*after) else "the generators afterwards", item_s


def _item_s(small: Any) -> float:
    """Return the CPU seconds in which the script's dataset makes an item. Called in a child which has made items before."""
    indices = small.batch_sampler[0]
    begin_s = time.process_time()
    for index in indices:
        with contextlib.suppress(Exception):
            small.dataset[index]
    return (time.process_time() - begin_s) / len(indices)


class _Error(str):
    """The type of the error that ended a pass."""

    __slots__ = ()


def _passes(small: Any, make: MakeIterator, epochs: int) -> Iterator[Any]:
    """Yield the batches of `epochs` seeded passes, an `_Error` for a pass that failed, then the generator states."""
    generator = torch.Generator().manual_seed(SEED)
    small = loader_copy(small)
    small.__dict__["generator"] = generator
    torch.default_generator.manual_seed(SEED)  # not torch.manual_seed, which would seed the GPUs too
    random.seed(SEED)
    np.random.seed(SEED)
    iterator = make(small)
    for epoch in range(epochs):
        if epoch and small.persistent_workers:
            iterator._reset(small)
        elif epoch:
            iterator = make(small)
        batches = 0
        try:
            for batch in iterator:
                batches += 1
                yield batch
            error = _Error("the end")
        except Exception as raised:
            if is_of_handler(raised):
                raise
            error = _Error(type(raised).__name__)
        for _ in range(len(small.batch_sampler) - batches):
            yield error
    if reason := getattr(iterator, "stopped", ""):
        raise Unsupported(reason)
    del iterator
    yield GeneratorStates.now().to_bytes()
