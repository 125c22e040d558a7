"""Passes over a loader from seeded generators: torch's own, and those of a loader that is taken over whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from headrace.accelerate import hook
from headrace.accelerate.runtime.unsupported import required
from headrace.accelerate.whole.compile import compile_loader
from headrace.accelerate.whole.equality import are_equal
from headrace.accelerate.whole.items import compile_items
from headrace.accelerate.whole.recognition import Recognition
from headrace.accelerate.workers.random_streams import GeneratorStates
from torch.utils.data import dataloader

Passes = tuple[list[list[Any]], GeneratorStates]


def torchs_own(loader: Any) -> Any:
    """Return the iterator that torch makes for a loader without headrace."""
    kind = dataloader._MultiProcessingDataLoaderIter if loader.num_workers else dataloader._SingleProcessDataLoaderIter
    return kind(loader)


def taken_over_whole(loader: Any, *, items: bool = False, threads: int = 2) -> Callable[[Any], Any]:
    """Return what makes native iterators of a loader. `items`: recognise the code of its items, not its folders."""
    found = Recognition(loader)
    compiled: Any = compile_items(required(found.items), threads) if items else compile_loader(required(found.folders), threads)
    return lambda one: hook._iterator(one, compiled)


def compiled_items(loader: Any) -> tuple[Any, str | None]:
    """Return the items of a loader compiled, and the result of `--check`, by the settings of the environment."""
    return hook._compiled(loader, required(Recognition(loader).items), torchs_own, hook.Settings.read())


def passes(loader: Any, make: Callable[[Any], Any], epochs: int = 2, seed: int = 5) -> Passes:
    """Return the batches of each pass, and the states of the generators afterwards. An error ends its pass."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    found: list[list[Any]] = []
    iterator = None
    for _ in range(epochs):
        if iterator is not None and loader.persistent_workers:
            iterator._reset(loader)
        else:
            iterator = make(loader)
        found.append([])
        try:
            for batch in iterator:
                found[-1].append(batch)
        except Exception as error:
            found[-1].append(type(error).__name__)
    return found, GeneratorStates.now()


def require_equal_passes(loader: Any, *, items: bool = False, epochs: int = 2, threads: int = 2) -> list[list[Any]]:
    """Assert that a loader gives the same batches and leaves the same generators, plain and taken over whole. Return them."""
    theirs, after = passes(loader, torchs_own, epochs)
    ours, ours_after = passes(loader, taken_over_whole(loader, items=items, threads=threads), epochs)
    for epoch, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert len(one) == len(other), f"epoch {epoch}: {len(one)} batches, {len(other)} in plain"
        for number, (mine, plain) in enumerate(zip(one, other, strict=True)):
            assert are_equal(mine, plain), f"epoch {epoch}, batch {number}"
    assert ours_after.equals(after), "the generators differ afterwards"
    return ours
