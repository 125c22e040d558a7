"""Two threads of a script that iterate over two loaders leave nothing exchanged behind, in whatever order they do it."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from deferred_helpers import generator_states
from headrace.accelerate.script_code.calls import ItemCalls
from headrace.accelerate.script_code.kept_state import KeptItems
from headrace.accelerate.script_code.own_transforms import Tracer
from headrace.accelerate.workers.random_streams import GeneratorStates, RandomStream
from headrace.accelerate.workers.randomness import separate_randomness
from headrace.accelerate.workers.settings import WorkerSettings
from headrace.accelerate.workers.warnings import WorkerWarnings

NAMES = ["first", "second"]


class Named:
    def __getitem__(self, index: int) -> str:
        return NAMES[index]


def variables(number: int) -> AbstractContextManager[Any]:
    calls = ItemCalls(Tracer())
    calls.plan(Named(), 0)
    return KeptItems(calls, Named(), None, ()).in_place()


def settings(number: int) -> AbstractContextManager[Any]:
    torch.set_default_dtype((torch.float64, torch.bfloat16)[number])
    try:
        return WorkerSettings().in_place()
    finally:
        torch.set_default_dtype(torch.float32)


def generators(number: int) -> AbstractContextManager[Any]:
    random.seed(number)
    stream = RandomStream(GeneratorStates.now(), [])
    return stream.in_this_process(stream.native.state())


def shown_warnings(number: int) -> AbstractContextManager[Any]:
    return WorkerWarnings(forked=False).of(number)


KINDS: dict[str, Callable[[int], AbstractContextManager[Any]]] = {
    "variables": variables,
    "settings": settings,
    "generators": generators,
    "seeds": separate_randomness,
    "warnings": shown_warnings,
}


def state() -> Any:
    return id(NAMES), torch.get_default_dtype(), generator_states(), id(warnings.onceregistry)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KINDS)
def test_what_two_threads_exchange_is_put_back(name: str) -> None:
    blocks = [KINDS[name](number) for number in range(2)]
    before, entered, leave = repr(state()), threading.Event(), threading.Event()

    def first() -> None:
        with blocks[0]:
            entered.set()
            leave.wait(0.5)

    def second() -> None:
        entered.wait()
        with blocks[1]:
            leave.set()
            threads[0].join()

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repr(state()) == before
