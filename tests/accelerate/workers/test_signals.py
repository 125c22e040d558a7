"""What a signal handler of the script raises reaches the script, wherever headrace is at that moment."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deferred_helpers import OwnImages
from headrace.accelerate import check, hook
from headrace.accelerate.whole import item_iterator, items
from headrace.accelerate.workers.errors import is_of_handler
from torch.utils.data import DataLoader
from torchvision import transforms

STEPS = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
LATER = transforms.Compose([*STEPS.transforms, lambda made: made.sqrt()])


class Stopped(Exception):
    """What the script raises where it is asked to stop."""


class Stops:
    def __call__(self, *_: Any) -> None:
        raise Stopped

    def method(self, *_: Any) -> None:
        raise Stopped


def stops(*_: Any) -> None:
    raise Stopped


HANDLERS: dict[str, Any] = {
    "function": stops,
    "method": Stops().method,
    "object": Stops(),
    "partial": functools.partial(stops, 3),
}


@pytest.fixture(params=HANDLERS)
def handler(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def signalled(function: Any, after: int = 0) -> Any:
    """Return a function during whose call number `after` a signal arrives."""
    calls = [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            signal.raise_signal(signal.SIGUSR1)
        return function(*arguments, **named)

    return call


def test_errors_of_handlers_are_told_apart(handler: None) -> None:
    with pytest.raises(Stopped) as caught:
        signalled(int)()
    assert is_of_handler(caught.value)
    with pytest.raises(ValueError, match="invalid literal") as other:
        int("x")
    assert not is_of_handler(other.value)


PLACES: dict[str, tuple[Any, str]] = {
    "recognition": (hook, "Recognition"),
    "planning": (items, "plan_item"),
    "comparison": (check, "_spread"),
    "part": (hook, "cuts_tensors"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_a_handler_while_a_loader_is_decided_is_the_scripts(
    place: str, handler: None, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = PLACES[place]
    monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    loader = DataLoader(OwnImages(folder, LATER if place == "part" else STEPS), 5)
    with pytest.raises(Stopped):
        iter(loader)
    assert not taken_over


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_handler_while_items_are_planned_is_the_scripts(
    workers: int, handler: None, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = iter(DataLoader(OwnImages(folder, STEPS), 5, num_workers=workers, prefetch_factor=1 if workers else None))
    next(batches)
    monkeypatch.setattr(item_iterator, "plan_item", signalled(item_iterator.plan_item))
    with pytest.raises(Stopped):
        list(batches)
