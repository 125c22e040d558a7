"""Samplers: what a Loader takes from them, per epoch and rank, and what a resumed loader compares."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.errors import SourceError, StateError, UsageError
from headrace.loading.order.sampled import ask
from headrace.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from sample_images import jpeg

TRANSFORM = Compose([RandomResizedCrop(24), RandomHorizontalFlip()])
Batches = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def data(image_folder: Callable[..., Path]) -> headrace.Dataset:
    """24 images in three classes."""
    return headrace.open(image_folder(classes=3, per_class=8))


def loader(data: Any, **options: Any) -> headrace.Loader:
    settings: dict[str, Any] = {"batch_size": 4, "seed": 5, "threads": 1, "output": "numpy", "transform": TRANSFORM}
    return headrace.Loader(data, **(settings | options))


def records(made: headrace.Loader, epoch: int = 0) -> list[list[int]]:
    return [made.batch_records(epoch, step).tolist() for step in range(len(made))]


def batches(made: headrace.Loader) -> Batches:
    return [(images.copy(), labels.copy()) for images, labels in made]


def same(left: Batches, right: Batches) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(left, right, strict=True)
    )


class Epochs:
    """A sampler of other records in each epoch; notes the epochs that it was asked for."""

    def __init__(self, records: int, seed: int = 0) -> None:
        self.records, self.seed, self.epoch, self.asked = records, seed, -1, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.asked.append(self.epoch)
        return iter(np.random.default_rng([self.seed, self.epoch]).permutation(self.records).tolist())


@pytest.mark.parametrize("kind", [list, tuple, np.array, range])
def test_a_sampler_decides_which_records_come(data: headrace.Dataset, kind: Any) -> None:
    indices = range(3, 13) if kind is range else kind([9, 3, 3, 17, 0, 1, 2, 23, 5])
    made = loader(data, sampler=indices)
    wanted = [int(one) for one in indices]
    assert records(made) == [wanted[:4], wanted[4:8]]
    labels = [label for _, labels in batches(made) for label in labels.tolist()]
    assert labels == [data.targets[one] for one in wanted[:8]]
    kept = loader(data, sampler=indices, drop_last=False)
    assert [one for batch in records(kept) for one in batch] == wanted
    assert len(kept) == 3
    assert "sampler" in made.explain()
    assert made.shuffle is False
    assert made.stats().images == 8


def test_lists_are_batches(data: headrace.Dataset) -> None:
    made = loader(data, sampler=[[1, 2, 3], (4,), np.array([5, 6, 7, 8])])
    assert records(made) == [[1, 2, 3], [4], [5, 6, 7, 8]]
    assert [len(labels) for _, labels in batches(made)] == [3, 1, 4]
    for wrong in (
        [[1, 2, 3, 4, 5]],
        [[1], []],
        [[1], 2],
        [1, [2]],
        [["a"]],
        ["ab"],
        [1.5],
        [True, False],
        [24],
        [-1],
        [],
        [[0.5]],
    ):
        with pytest.raises(UsageError):
            len(loader(data, sampler=wrong))
    with pytest.raises(UsageError, match="fewer than one batch of 4"):
        len(loader(data, sampler=[1, 2, 3]))


def test_a_sampler_is_asked_once_an_epoch(data: headrace.Dataset) -> None:
    sampler = Epochs(24)
    made = loader(data, sampler=sampler)
    assert len(made) == 6
    first = batches(made)
    assert sampler.asked == [0]
    assert made.epoch == 1
    passing = iter(made)
    next(passing)  # left early
    assert not same(batches(made), first)
    assert sampler.asked == [0, 1]
    made.set_epoch(0)
    assert same(batches(made), first)
    made.set_epoch(5)
    made.begin_next()
    assert len(batches(made)) == 6
    assert sampler.asked == [0, 1, 0, 5]


def test_nothing_but_a_pass_and_its_length_asks_a_sampler(data: headrace.Dataset) -> None:
    """Another answer in mid-epoch would change what a saved state compares."""
    sampler = Epochs(24)
    made = loader(data, sampler=sampler, repeated_label=-100, transform=headrace.transforms.imagenet_eval(24))
    made.set_epoch(3)
    passing = iter(made)
    next(passing)
    state = made.state_dict()
    assert "sampler" in made.explain() and repr(made)
    assert made.real_images(0, 4) == 4
    made.batch_records(0, 0)
    assert made.state_dict() == state
    assert all((labels >= 0).all() for _, labels in passing)
    assert sampler.asked == [3, 0]  # batch_records asked for another epoch


def test_what_is_no_sampler_is_refused(data: headrace.Dataset) -> None:
    for wrong, text in (
        (3, "iterable"),
        ("abc", "iterable"),
        (iter([1, 2]), "one epoch only"),
        ((n for n in [1]), "one epoch"),
    ):
        with pytest.raises(UsageError, match=text):
            loader(data, sampler=wrong)
    for options, text in (
        ({"shuffle": True}, "shuffle"),
        ({"shuffle": "block"}, "shuffle"),
        ({"weights": [1, 1, 1]}, "weights"),
        ({"parts": [24]}, "parts"),
    ):
        with pytest.raises(UsageError, match=text):
            loader(data, sampler=[1, 2, 3, 4], **options)
    assert loader(data, sampler=[1, 2, 3, 4], shuffle=False).shuffle is False
    assert loader(data).shuffle is True


def test_a_sampler_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 1

    monkeypatch.setattr("headrace.loading.order.sampled.MOST_INDICES", 1000)
    with pytest.raises(UsageError, match="did not end"):
        ask(Endless(), 0, records=2, batch_size=1, drop_last=True)


def test_a_record_that_comes_again_has_other_draws(data: headrace.Dataset) -> None:
    made = loader(data, sampler=[7, 7, 7, 1], transform=TRANSFORM)
    ((images, labels),) = batches(made)
    assert len({image.tobytes() for image in images[:3]}) == 3
    assert len(set(labels[:3].tolist())) == 1
    plain = loader(data, shuffle=False, drop_last=False)  # a first occurrence has the draws that it has without a sampler
    by_record = np.concatenate([images for images, _ in batches(plain)])
    assert np.array_equal(images[0], by_record[7])
    assert np.array_equal(images[3], by_record[1])


def test_the_repeated_records_of_the_last_batch_have_other_draws(data: headrace.Dataset) -> None:
    ranks = [loader(data, batch_size=9, rank=rank, world_size=5, drop_last=False, shuffle=False) for rank in range(5)]
    images = [image for rank in ranks for image in batches(rank)[0][0]]
    assert len(images) == 25  # record 0 comes twice
    assert np.concatenate([rank.batch_records(0, 0) for rank in ranks]).tolist() == [*range(24), 0]
    assert not np.array_equal(images[0], images[24])


def test_a_bad_record_is_replaced_by_one_of_the_sampler(image_folder: Callable[..., Path]) -> None:
    root = image_folder(classes=2, per_class=12)
    bad = sorted(root.rglob("*.jpg"))[2]
    bad.write_bytes(jpeg(60, 50, 1)[:200])
    data = headrace.open(root)
    made = loader(data, sampler=[2, 20, 21, 22], on_error="skip", transform=headrace.transforms.imagenet_eval(24))
    ((_, labels),) = batches(made)
    assert set(labels.tolist()) == {1}  # record 2 has class 0, its stand-in is one of the others
    assert made.stats().skipped_count == 1


def test_resuming_asks_the_sampler_again_skips_and_compares(data: headrace.Dataset) -> None:
    made = loader(data, sampler=Epochs(24))
    whole = [batches(made), batches(made)]
    loader_again = loader(data, sampler=Epochs(24))
    for epoch, step in ((0, 2), (1, 5)):
        loader_again.set_epoch(epoch)
        passing = iter(loader_again)
        for _ in range(step):
            next(passing)
        state = json.loads(json.dumps(loader_again.state_dict()))
        sampler = Epochs(24)
        resumed = loader(data, sampler=sampler)
        resumed.load_state_dict(state)
        assert same(batches(resumed), whole[epoch][step:])
        assert sampler.asked == [epoch]
    with pytest.raises(StateError, match="other indices"):
        loader(data, sampler=Epochs(24, seed=1)).load_state_dict(state)
    with pytest.raises(StateError, match="gives 1 for epoch"):
        loader(data, sampler=[1, 2, 3, 4]).load_state_dict(state)
    with pytest.raises(StateError, match="sampler"):
        loader(data, shuffle=False).load_state_dict(state)
    with pytest.raises(StateError, match="sampler"):
        loader(data, sampler=Epochs(24)).load_state_dict(loader(data, shuffle=False).state_dict())
    assert len(json.dumps(state)) < 500


def test_a_state_between_epochs_asks_nothing(data: headrace.Dataset) -> None:
    made = loader(data, sampler=Epochs(24))
    batches(made)
    state = made.state_dict()
    sampler = Epochs(24)
    resumed = loader(data, sampler=sampler)
    resumed.load_state_dict(state)
    assert sampler.asked == []
    assert same(batches(resumed), batches(made))


def test_ranks_have_samplers_of_their_own(data: headrace.Dataset) -> None:
    """As in torch: the loader does not divide what a rank's sampler gives."""
    ranks = [loader(data, sampler=range(rank, 24, 2), rank=rank, world_size=2) for rank in range(2)]
    assert [records(rank)[0] for rank in ranks] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    plain = np.concatenate([images for images, _ in batches(loader(data, shuffle=False))])
    assert np.array_equal(np.concatenate([images for images, _ in batches(ranks[1])]), plain[1::2])
    ranks[1].set_epoch(0)
    passing = [iter(rank) for rank in ranks]
    for one in passing:
        next(one)
    state = ranks[0].state_dict()  # the first rank's, which all ranks load
    for rank in range(2):
        resumed = loader(data, sampler=range(rank, 24, 2), rank=rank, world_size=2)
        resumed.load_state_dict(state)
        assert same(batches(resumed), list(passing[rank]))
    with pytest.raises(StateError):
        loader(data, sampler=range(24), batch_size=8).load_state_dict(state)


def test_masks_follow_a_sampler(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    from PIL import Image

    root = image_folder(classes=1, per_class=6)
    for number, path in enumerate(sorted(root.rglob("*.jpg"))):
        with Image.open(path) as image:
            mask = Image.new("L", image.size, number)
        target = tmp_path / "masks" / path.relative_to(root).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        mask.save(target)
    options: dict[str, Any] = {"mask": tmp_path / "masks", "transform": headrace.transforms.imagenet_eval(24)}
    ((_, _, masks),) = list(loader(root, sampler=[5, 1, 1, 4], **options))
    assert masks[:, 12, 12].tolist() == [5, 1, 1, 4]
    ((_, _, masks),) = list(loader(headrace.open(root)[[4, 0, 2, 3]], shuffle=False, **options))
    assert masks[:, 12, 12].tolist() == [4, 0, 2, 3]


def test_a_stream_takes_no_sampler(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "train_0")
    for options in ({"sampler": [1, 2]}, {"weights": [1.0]}):
        with pytest.raises(UsageError, match="stream"):
            loader(headrace.open(tmp_path / "train"), **options)


RANK = """
import sys
import headrace, numpy as np, torch.distributed as dist
from headrace.errors import HeadraceError
rank, store, root, kind = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
sampler = {"unequal": range(4 + 4 * rank), "shared": [7, 7, 1, 2]}[kind]
transform = headrace.transforms.Compose([headrace.transforms.RandomResizedCrop(24)])
loader = headrace.Loader(root, 4, transform, sampler=sampler, output="numpy", threads=1)
try:
    ((images, labels),) = list(loader)
    print(*(hash(image.tobytes()) for image in images))
except HeadraceError as error:
    print(f"{type(error).__name__}: {error}")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unequal", "shared"])
def test_ranks_compare_what_their_samplers_give(image_folder: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    root = image_folder(classes=2, per_class=6)
    command = [sys.executable, "-c", RANK]
    environment = {"PYTHONHASHSEED": "0"}
    import os

    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(root), kind],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        for rank in range(2)
    ]
    found = [one.communicate(timeout=240)[0].strip() for one in started]
    if kind == "unequal":
        assert all(text.startswith("UsageError: the samplers give different numbers of batches") for text in found), found
        assert all("[1, 2]" in text for text in found), found
    else:  # each occurrence of a record in the job has other draws
        draws = [text.split() for text in found]
        assert len({draws[0][0], draws[0][1], draws[1][0], draws[1][1]}) == 4
        assert draws[0][2] != draws[1][2]


def test_a_rank_that_does_not_answer_is_named(data: headrace.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch.distributed, whose group cannot be made."""

    class Distributed:
        is_available = is_initialized = staticmethod(lambda: True)
        get_rank = staticmethod(lambda: 0)
        get_world_size = staticmethod(lambda: 2)

        @staticmethod
        def new_group(**_: Any) -> None:
            raise RuntimeError("timed out")

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)
    made = loader(data, sampler=range(8))
    assert (made.rank, made.world_size, len(made)) == (0, 2, 2)
    with pytest.raises(SourceError, match="samplers give: timed out"):
        iter(made)
