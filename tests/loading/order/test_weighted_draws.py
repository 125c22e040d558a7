"""Draws by weights: shares, determinism in seed and epoch, ranks, resuming, other draws for each occurrence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import StateError, UsageError
from headrace.loading.order.weighted_draws import RecordWeights
from headrace.transforms import RandomResizedCrop


@pytest.fixture
def data(image_folder: Callable[..., Path]) -> headrace.Dataset:
    """24 images: 4 of one class, 8 of another, 12 of a third."""
    return headrace.open(image_folder(classes=3, per_class=12)).subset([*range(4), *range(12, 20), *range(24, 36)])


def loader(data: Any, **options: Any) -> headrace.Loader:
    settings: dict[str, Any] = {"batch_size": 4, "seed": 5, "threads": 1, "output": "numpy", "transform": RandomResizedCrop(24)}
    return headrace.Loader(data, **(settings | options))


def records(made: headrace.Loader, epoch: int = 0) -> list[int]:
    return [record for step in range(len(made)) for record in made.batch_records(epoch, step).tolist()]


def test_each_record_comes_as_often_as_its_weight_says_rounded() -> None:
    random = np.random.default_rng(0)
    for epoch in range(200):
        weight = random.choice([0.0, 0.1, 1.0, 3.0, 1e-9, 1e9], random.integers(1, 40))
        weight[random.integers(len(weight))] = 0.5
        draws = RecordWeights(weight, "").draws(int(random.integers(2**63)), epoch)
        positions = np.arange(len(weight))
        rows, numbers = draws.rows(positions), draws.occurrences(positions)
        counts = np.bincount(rows, minlength=len(weight))
        assert (np.abs(counts - weight / weight.sum() * len(weight)) < 1 + 1e-6).all()
        assert counts[weight == 0].sum() == 0
        for row in set(rows.tolist()):  # each occurrence has a number of its own
            assert sorted(numbers[rows == row].tolist()) == list(range(counts[row]))


def test_the_expected_number_of_draws_is_that_of_the_weights() -> None:
    """Over 4000 epochs, the records of weight 0.3 of a mean of 1 come in 0.3 of them (standard deviation 0.007)."""
    weight = RecordWeights(np.array([0.3, 0.3, 0.3, 3.1]), "")
    counts = np.zeros(4)
    pairs = Counter[tuple[int, ...]]()
    for epoch in range(4000):
        rows = weight.draws(1, epoch).rows(np.arange(4))
        counts += np.bincount(rows, minlength=4)
        pairs[tuple(sorted(set(rows.tolist()) - {3}))] += 1
    assert np.abs(counts / 4000 - weight.weight).max() < 0.05
    assert len(pairs) >= 4  # none, and each of the three alone


def test_weights_of_classes_records_and_names_agree(data: headrace.Dataset) -> None:
    per_class = [6.0, 3.0, 2.0]
    names = dict(zip(data.classes, per_class, strict=True))
    per_record = [per_class[label] for label in data.targets]
    found = [records(loader(data, weights=weights)) for weights in (per_class, names, per_record, np.array(per_record))]
    assert found[0] == found[1] == found[2] == found[3]
    assert Counter(data.targets[row] for row in found[0]) == {0: 8, 1: 8, 2: 8}
    assert len(found[0]) == 24


def test_equal_weights_draw_each_record_once(data: headrace.Dataset) -> None:
    assert sorted(records(loader(data, weights=np.ones(24)))) == list(range(24))


def test_draws_depend_on_seed_and_epoch_only(data: headrace.Dataset) -> None:
    weights = np.arange(24)
    first = records(loader(data, weights=weights))
    assert first == records(loader(data, weights=weights, threads=3))
    assert first != records(loader(data, weights=weights, seed=6))
    assert first != records(loader(data, weights=weights), epoch=1)
    assert 0 not in first


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_divide_the_draws(data: headrace.Dataset, world_size: int) -> None:
    weights = [6, 3, 1]
    whole = loader(data, weights=weights, batch_size=6)
    ranks = [
        loader(data, weights=weights, batch_size=6 // world_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    images = [[batch for batch, _ in made] for made in (whole, *ranks)]
    for step, batch in enumerate(images[0]):
        assert np.array_equal(batch, np.concatenate([rank[step] for rank in images[1:]]))


def test_each_occurrence_has_draws_of_its_own(data: headrace.Dataset) -> None:
    only = np.zeros(24)
    only[9] = 1
    images = np.concatenate([images for images, _ in loader(data, weights=only)])
    assert len({image.tobytes() for image in images}) == 24
    plain = np.concatenate([images for images, _ in loader(data, shuffle=False)])
    assert plain[9].tobytes() in {image.tobytes() for image in images}


def test_resuming_gives_the_remaining_draws(data: headrace.Dataset) -> None:
    made = loader(data, weights=[1, 5, 1], batch_size=8)
    passing = iter(made)
    next(passing)
    state = json.loads(json.dumps(made.state_dict()))
    rest = [images.copy() for images, _ in passing]
    ranks = [loader(data, weights=[1, 5, 1], rank=rank, world_size=2) for rank in range(2)]  # other ranks, same global batch
    for rank in ranks:
        rank.load_state_dict(state)
    parts = [[images.copy() for images, _ in rank] for rank in ranks]
    assert all(np.array_equal(one, np.concatenate(two)) for one, two in zip(rest, zip(*parts, strict=True), strict=True))
    for options in ({"weights": [1, 5, 2]}, {}):
        with pytest.raises(StateError, match="weights"):
            loader(data, batch_size=8, **options).load_state_dict(state)
    with pytest.raises(StateError, match="weights"):
        made.load_state_dict(loader(data, batch_size=8).state_dict())


def test_a_bad_record_is_replaced_by_one_that_can_be_drawn(data: headrace.Dataset) -> None:
    Path(data.table.files[4]).write_bytes(b"\xff\xd8\xff")
    weights = np.zeros(24)
    weights[[4, 5, 6]] = 1
    made = loader(data, weights=weights, on_error="skip", drop_last=False)
    labels = {label for _, labels in made for label in labels.tolist()}
    assert labels == {data.targets[5]}
    assert made.stats().skipped_count >= 1


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, 2], "24 numbers, one a record, or 3, one a class"),
        ([[1, 2, 3]], "shape"),
        ([1, -1, 1], "-1"),
        ([1, float("nan"), 1], "nan"),
        ([0, 0, 0], "above 0"),
        ({"class_0": 1}, "no weight for class"),
        ({"class_0": 1, "class_1": 1, "class_2": 1, "dog": 1}, "no class 'dog'"),
        ("abc", "not str"),
    ],
)
def test_wrong_weights_are_refused(data: headrace.Dataset, weights: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        loader(data, weights=weights)


def test_weights_do_not_go_with_another_order(data: headrace.Dataset) -> None:
    for options in ({"shuffle": False}, {"shuffle": "block"}, {"parts": [24]}):
        with pytest.raises(UsageError, match=r"weights|shuffle"):
            loader(data, weights=[1, 1, 1], **options)
    assert "weights" in loader(data, weights=[1, 1, 0], shuffle=True).explain()
