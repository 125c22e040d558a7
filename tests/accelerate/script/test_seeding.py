"""A `worker_init_fn` may be called anywhere only if all that it does is seed the random generators of its process."""

from __future__ import annotations

import functools
import importlib
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy
import numpy as np
import pytest
import torch
from headrace.accelerate.script.seeding import only_seeds
from torch.utils.data import get_worker_info

SEED = 3
COUNT = 0


def from_torch(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


def from_the_state(worker: int) -> None:
    np.random.seed(np.random.get_state()[1][0] + worker)


def importing(worker: int) -> None:
    import numpy.random as draws
    import torch.utils.data
    from torch.utils.data import get_worker_info as info

    draws.seed(int(info().seed) % 2**31 + SEED)
    if torch.utils.data.get_worker_info() is not None:
        for number in range(3):
            random.seed(number + worker)


def seed_everything(number: int, more: int = 1) -> None:
    random.seed(number + more)
    np.random.seed(number)
    torch.manual_seed(number)
    torch.cuda.manual_seed_all(number)


def captured(number: int) -> Callable[[int], None]:
    return lambda worker: random.seed(number + worker)


SEEDING: dict[str, Any] = {
    "torch's seed": from_torch,
    "state": from_the_state,
    "imports": importing,
    "lambda": lambda worker: np.random.seed(SEED + worker),
    "own function": lambda worker: seed_everything(worker + 1),
    "partial": functools.partial(seed_everything, more=3),
    "captured": captured(5),
    "worker": lambda worker: random.seed(get_worker_info().seed),
}


@pytest.mark.parametrize("name", SEEDING)
def test_functions_that_seed_are_known(name: str) -> None:
    assert only_seeds(SEEDING[name])


def test_functions_that_torchs_compiler_has_wrapped_are_known() -> None:
    assert importlib.import_module("torch._dynamo")
    assert only_seeds(SEEDING["own function"])


class Own:
    def __init__(self) -> None:
        self.id, self.calls = 3, 0

    def seed(self, number: int) -> None:
        self.calls += number

    def start(self, worker: int) -> None:
        self.seed(worker)


def seed(number: int) -> None:
    os.environ["HEADRACE_TEST_SEED"] = str(number)


class Loud(int):
    def __add__(self, other: int) -> int:
        seed(other)
        return 1


def counts(worker: int) -> None:
    global COUNT
    COUNT += 1
    random.seed(COUNT)


def counted() -> Callable[[int], None]:
    number = 0

    def count(worker: int) -> None:
        nonlocal number
        number += 1
        random.seed(number)

    return count


def replaces(worker: int) -> None:
    random.seed = worker  # type: ignore[assignment]


def stores(worker: int) -> None:
    torch.utils.data.id = 4  # type: ignore[attr-defined]


def with_default(worker: int, own: Own = Own()) -> None:  # noqa: B008
    own.seed(worker)


def imports_more(worker: int) -> None:
    import os

    random.seed(os.getpid())


@functools.wraps(from_torch)
def wrapping(worker: int) -> None:
    seed(worker)


LOUD = Loud(4)
OWN = Own()
FAKE = types.ModuleType("random")
FAKE.seed = seed  # type: ignore[attr-defined]

MORE: dict[str, Any] = {
    "own seed": seed,
    "method": OWN.start,
    "method seed": OWN.seed,
    "calls own seed": lambda worker: seed(worker),
    "partial with a list": functools.partial(seed_everything, more=[1]),
    "global counter": counts,
    "captured counter": counted(),
    "replaces": replaces,
    "stores": stores,
    "default": with_default,
    "own attribute": lambda worker: random.seed(OWN.id),
    "imports": imports_more,
    "wraps": wrapping,
    "number of its own class": lambda worker: random.seed(LOUD + worker),
    "module of its own": lambda worker: FAKE.seed(worker),
    "address": lambda worker: random.seed(id(worker)),
    "dataset": lambda worker: get_worker_info().dataset.seed(worker),
    "threads": lambda worker: torch.set_num_threads(1),
    "print": print,
    "function inside": lambda worker: (lambda: random.seed(worker))(),
}


@pytest.mark.parametrize("name", MORE)
def test_functions_that_do_more_are_refused(name: str) -> None:
    assert not only_seeds(MORE[name])


def test_a_function_that_the_script_has_replaced_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "seed", seed)
    assert not only_seeds(from_torch)


def test_functions_of_frameworks_are_known_by_themselves_not_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("transformers.trainer_utils")
    module.seed_worker = seed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert only_seeds(seed) and only_seeds(functools.partial(seed, rank=1))
    assert not only_seeds(functools.partial(seed, rank=Own().seed))

    @functools.wraps(seed)
    def other(worker: int) -> None:
        print(worker)

    other.__module__, other.__qualname__ = module.__name__, "seed_worker"
    assert not only_seeds(other)
