"""Fixtures: an image folder with difficult files, and the installed hook of `headrace run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from deferred_helpers import described, generator_states, seeded
from headrace.accelerate import hook
from headrace.accelerate.lazy.awaited_line import AwaitedLine
from headrace.accelerate.lazy.loader import native_steps
from headrace.accelerate.runtime.unsupported import Refusal
from headrace.accelerate.script import iterator_watchers, type_comparisons
from headrace.accelerate.whole.recognition import Recognition
from headrace.attach.record import unseen_frames
from PIL import Image
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not search the tests themselves: they compare classes, and look at iterators."""
    for searching in (type_comparisons, iterator_watchers):
        monkeypatch.setattr(searching, "module_with", lambda pattern: None)
    monkeypatch.setattr(iterator_watchers, "_unknown_framework", lambda: None)


TORCHS_OWN = [(kind, kind.fetch) for kind in (_MapDatasetFetcher, _IterableDatasetFetcher)]
"""Before any test has run."""


@pytest.fixture(autouse=True)
def own_fetchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch's fetchers their own method: tests of recording, in the same process before, leave theirs there."""
    for kind, fetch in TORCHS_OWN:
        monkeypatch.setattr(kind, "fetch", fetch)


@pytest.fixture(autouse=True)
def workers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait one second instead of five for each worker of an iterator that an error has left to the garbage collector.

    torch's error refers to itself through its frame. The collector then closes the queue through which the workers learn of
    the end before torch can write it.
    """
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 1.0)


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Install the hook for one test. Yield the list of lines that it prints."""
    lines: list[str] = []
    original, listeners = DataLoader._get_iterator, unseen_frames._listeners
    present = [*listeners.get(_BaseDataLoaderIter, ())]
    monkeypatch.setattr(hook, "log_line", lines.append)
    awaited = hook._awaited_line

    def reported_at_once(loader: Any, *arguments: Any) -> AwaitedLine:
        """Report before a batch is made that the loader is taken over: most tests ask for the way only."""
        line = awaited(loader, *arguments)
        line._taken_over(native_steps(loader))
        line._left_alone = lambda reason: None  # whether lazy images pay is left to chance on a busy machine
        return line

    monkeypatch.setattr(hook, "_awaited_line", reported_at_once)
    monkeypatch.setattr(hook, "_awaited", {})
    monkeypatch.setattr(hook, "_printed", set())
    next_batch = _BaseDataLoaderIter.__next__
    hook.install()
    yield lines
    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]
    DataLoader._get_iterator = original
    listeners[_BaseDataLoaderIter][:] = present


awaited_line = hook._awaited_line


@pytest.fixture
def reported_when_known(taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Report on a loader with lazy images when its items have told what is native, as outside of tests."""
    monkeypatch.setattr(hook, "_awaited_line", awaited_line)


@pytest.fixture
def items_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave loaders of the script's own datasets to the ways that take them over in part."""
    monkeypatch.setattr(Recognition, "items", Refusal("its items are not looked into in this test"))


@pytest.fixture
def folder(image_folder: Callable[..., Path]) -> Path:
    """Make four classes of five images: colour, grey, CMYK and progressive JPEGs, and a PNG named .jpg."""
    root = image_folder(classes=4, per_class=5)
    Image.open(root / "class_0" / "image_001.jpg").convert("L").save(root / "class_0" / "image_001.jpg", "JPEG")
    Image.open(root / "class_1" / "image_002.jpg").convert("CMYK").save(root / "class_1" / "image_002.jpg", "JPEG")
    Image.open(root / "class_2" / "image_003.jpg").save(root / "class_2" / "image_003.jpg", "JPEG", progressive=True)
    Image.open(root / "class_3" / "image_004.jpg").save(root / "class_3" / "image_004.jpg", "PNG")
    return root


@pytest.fixture
def both(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], tuple[Any, list[str]]]:
    """Return what runs a script plain and under the hook, asserts that nothing differs, and returns outcome and lines."""

    def run(script: Callable[[], Any]) -> tuple[Any, list[str]]:
        found: list[Any] = []
        lines: list[str] = []
        for number in range(2):
            if number:
                lines = request.getfixturevalue("taken_over")
            seeded(9)
            try:
                outcome = described(script())
            except Exception as error:
                outcome = type(error), str(error).partition("\n")[0].replace(str(os.getpid()), "PID")
            found.append((outcome, generator_states()))
        assert repr(found[0]) == repr(found[1])
        return found[1][0], lines

    return run
