"""When batches are submitted: begin_next, top_up and the hand-over change neither batches nor states."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
import numpy as np
import pytest
from headrace import transforms
from headrace.loading.batches.views import View
from headrace.loading.feeding.feed import Feed


@pytest.fixture
def loader(image_folder: Callable[..., Path]) -> Iterator[headrace.Loader]:
    with make(image_folder()) as made:
        yield made


def make(data: Path) -> headrace.Loader:
    return headrace.Loader(data, 4, transforms.imagenet_train(32), seed=3, threads=1, output="numpy")


def one_pass(loader: headrace.Loader, *, begin_next: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    batches = []
    for step, (images, labels) in enumerate(loader):
        batches.append((images.copy(), labels.copy()))
        if begin_next and step == len(loader) - 1:
            loader.begin_next()
    return batches


def same(left: list[tuple[np.ndarray, np.ndarray]], right: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]) for one, other in pairs)


def test_begin_next_changes_no_batch(loader: headrace.Loader, image_folder: Callable[..., Path]) -> None:
    with make(image_folder(name="again")) as plain:
        wanted = [one_pass(plain) for _ in range(3)]
    assert all(same(one_pass(loader, begin_next=True), one) for one in wanted)


def test_begin_next_decodes_before_the_pass_begins(loader: headrace.Loader) -> None:
    one_pass(loader, begin_next=True)
    done = 12
    deadline_s = time.monotonic() + 30
    while done < 24:  # all of the next pass, which has three batches: as many as are decoded ahead
        assert time.monotonic() < deadline_s
        done = loader.stats().images
    assert loader.state_dict()["epoch"] == 1 and loader.state_dict()["records_done"] == 0


def test_started_pass_is_dropped_for_another_one(loader: headrace.Loader, image_folder: Callable[..., Path]) -> None:
    with make(image_folder(name="again")) as plain:
        wanted = [one_pass(plain) for _ in range(4)]
    one_pass(loader, begin_next=True)
    loader.set_epoch(3)
    assert same(one_pass(loader), wanted[3])
    loader.set_epoch(1)
    loader.begin_next()
    loader.begin_next()  # again: the first one is cancelled
    loader.load_state_dict(loader.state_dict() | {"records_done": 4})
    assert same(one_pass(loader), wanted[1][1:])
    loader.begin_next()  # never used: close() cancels it


def test_top_up_decodes_the_next_batches_while_one_is_in_use(
    loader: headrace.Loader, image_folder: Callable[..., Path]
) -> None:
    with make(image_folder(classes=9, name="again")) as plain:
        wanted = one_pass(plain)
    with make(image_folder(classes=9, name="more")) as topped:
        batches = []
        for images, labels in topped:
            batches.append((images.copy(), labels.copy()))
            made = min(36, 4 * (len(batches) + 3))  # three batches ahead of the one in use
            topped.top_up()
            deadline_s = time.monotonic() + 30
            while topped.stats().images < made:
                assert time.monotonic() < deadline_s
        topped.top_up()  # no pass is in progress
        assert same(batches, wanted)


def test_a_ready_batch_is_made_before_the_next_one_is_submitted(
    image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wake up while a batch is handed out would take the caller's core."""
    done: list[str] = []
    fill, output = Feed._fill, View.output_batch
    monkeypatch.setattr(Feed, "_fill", lambda *arguments: done.append("submitted") or fill(*arguments))
    monkeypatch.setattr(View, "output_batch", lambda *arguments: done.append("made") or output(*arguments))
    with make(image_folder(classes=9, name="many")) as many:
        batches = iter(many)
        next(batches)
        assert done == [*["submitted"] * 3, "made"]
        for submitted in range(3, 9):
            deadline_s = time.monotonic() + 30
            while many.stats().images < 4 * submitted:
                assert time.monotonic() < deadline_s
            done.clear()
            next(batches)
            assert done == ["made", "submitted"]
        done.clear()
        assert len(list(batches)) == 2 and done == ["made"] * 2
    assert many.stats().ring_batches <= 5
