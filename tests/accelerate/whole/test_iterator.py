"""A loader that is taken over gives the script's own batches, and reads its sampler in the same order."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accelerate_helpers import assert_same, own_batches
from headrace.accelerate.whole import iterator
from headrace.accelerate.whole.iterator import NativeIterator
from headrace.errors import HeadraceError
from PIL import Image
from refused_files import REFUSED
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
EVALUATE = v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)])
TRAIN = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])


def both(make: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """(ours, theirs): each from a fresh loader after the same seed."""
    torch.manual_seed(5)
    theirs = own_batches(make())
    torch.manual_seed(5)
    loader = make()
    iterator = iter(loader)
    assert isinstance(iterator, NativeIterator)
    return list(iterator), theirs


def drawn_at_once() -> Any:
    """Return a batch sampler, of an installed package, that draws when it is asked for an iterator."""
    text = """
class Drawn:
    def __len__(self): return 5
    def __iter__(self): return iter(torch.randperm(20).view(5, 4).tolist())
"""
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, "/env/site-packages/drawn.py", "exec"), space)
    return space["Drawn"]()


LOADERS: dict[str, Callable[[Any], Any]] = {
    "sequential": lambda data: DataLoader(data, batch_size=6),
    "shuffled": lambda data: DataLoader(data, batch_size=6, shuffle=True),
    "shuffled, workers": lambda data: DataLoader(data, batch_size=4, shuffle=True, num_workers=1),
    "drop_last": lambda data: DataLoader(data, batch_size=6, shuffle=True, drop_last=True),
    "generator": lambda data: DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "weighted": lambda data: DataLoader(
        data, batch_size=7, sampler=WeightedRandomSampler([1.0] * 10 + [5.0] * 10, 30), num_workers=1
    ),
    "replacement": lambda data: DataLoader(data, 5, sampler=RandomSampler(data, replacement=True, num_samples=33)),
    "subset sampler": lambda data: DataLoader(data, 5, sampler=SubsetRandomSampler([1, 3, 5, 19])),
    "distributed": lambda data: DataLoader(data, 5, sampler=DistributedSampler(data, num_replicas=3, rank=1)),
    "batch sampler": lambda data: DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, True)),
    "own batch sampler": lambda data: DataLoader(data, batch_sampler=[[0], [19, 0, 7], [-1, 2]]),
    "drawn at once": lambda data: DataLoader(data, batch_sampler=drawn_at_once()),
    "drawn at once, workers": lambda data: DataLoader(data, batch_sampler=drawn_at_once(), num_workers=1),
    "subset": lambda data: DataLoader(Subset(Subset(data, range(2, 18)), [0, 5, 15, -1]), 3),
    "subset by tensor": lambda data: DataLoader(Subset(Subset(data, torch.arange(3, 19)), numpy.array([2, 0, -1])), 2),
    "concatenated": lambda data: DataLoader(ConcatDataset([data, Subset(data, [4, 5])]), 5),
    "timeout, context": lambda data: DataLoader(
        data, 9, num_workers=1, timeout=60, prefetch_factor=4, multiprocessing_context="fork"
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_equal_the_scripts_own(name: str, folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    assert_same(*both(lambda: LOADERS[name](data)))
    assert "taken over" in taken_over[-1] and "not taken" not in taken_over[-1]


TRANSFORMS: dict[str, Any] = {
    "uint8": v1.Compose([v1.Resize((40, 56)), v1.PILToTensor()]),
    "bicubic": v1.Compose([v1.Resize(50, v1.InterpolationMode.BICUBIC), v1.CenterCrop((48, 40)), v1.ToTensor()]),
    "lanczos": v1.Compose([v1.Resize((33, 35), v1.InterpolationMode.LANCZOS), v1.ToTensor()]),
    "v2": v2.Compose(
        [v2.Resize(72), v2.CenterCrop(64), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "half": v2.Compose([v2.Resize((40, 40)), v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True)]),
    "flipped": v1.Compose([v1.Resize((40, 41)), v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), v1.ToTensor()]),
    "crop only": v1.Compose([v1.CenterCrop(64), v1.ToTensor()]),
    "crop larger than the image": v1.Compose([v1.CenterCrop((170, 300)), v1.ToTensor()]),
    "two resizes": v1.Compose([v1.Resize(90), v1.Resize((40, 44)), v1.CenterCrop(32), v1.ToTensor()]),
    "crop, then resize": v1.Compose([v1.CenterCrop(100), v1.Resize((60, 61)), v1.ToTensor()]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_equal_the_scripts_own(name: str, folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), TRANSFORMS[name])
    assert_same(*both(lambda: DataLoader(data, batch_size=7)))


@pytest.mark.parametrize("ending", ["png", "webp", "bmp", "tif", "ppm"])
def test_other_formats_give_the_scripts_own_batches(ending: str, folder: Path, taken_over: list[str]) -> None:
    for number, path in enumerate(sorted(folder.glob("*/*.jpg"))):
        mode = ("RGB", "L", "P" if ending != "ppm" else "1", "RGBA" if ending != "bmp" else "1")[number % 4]
        Image.open(path).convert("RGB").convert(mode).save(path.with_suffix(f".{ending}"))
        path.unlink()
    data = ImageFolder(str(folder), EVALUATE)
    assert len(data) == 20
    assert_same(*both(lambda: DataLoader(data, batch_size=7)))


def test_too_many_files_of_other_formats_are_not_taken_over_as_a_whole(folder: Path, taken_over: list[str]) -> None:
    for path in sorted(folder.glob("*/*.jpg"))[::2]:
        Image.open(path).convert("RGB").save(path.with_suffix(".pcx"))
        path.unlink()
    list(DataLoader(DatasetFolder(str(folder), pil_loader, (".jpg", ".pcx"), EVALUATE), 5))
    assert "in part: " in taken_over[-1] and "(50 % of its files are in formats that are not" in taken_over[-1]


def test_dataset_folder_and_target_transform_are_taken_over(folder: Path, taken_over: list[str]) -> None:
    names = {0: 2.5, 1: 0.5, 2: 7.0, 3: 1.0}
    data = DatasetFolder(str(folder), pil_loader, (".jpg",), EVALUATE, target_transform=names.__getitem__)
    assert_same(*both(lambda: DataLoader(data, batch_size=7)))
    assert "taken over: decode" in taken_over[-1]


def test_random_draws_follow_the_seed_and_differ_between_passes(folder: Path, taken_over: list[str]) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(11)
        loader = DataLoader(ImageFolder(str(folder), TRAIN), batch_size=20, shuffle=True, num_workers=1)
        return [batch for _ in range(2) for batch in loader]

    first, again = epochs(), epochs()
    assert_same(first, again)
    assert not torch.equal(first[0][0].mean(), first[1][0].mean())


def test_batches_in_work_are_bounded_by_images_and_by_bytes(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(ImageFolder(str(folder), EVALUATE), 2, num_workers=1, prefetch_factor=10)
    assert len(iter(loader)._jobs) == 10
    monkeypatch.setattr(iterator, "BYTES_IN_WORK", 5 * 2 * 3 * 64 * 64 * 4)
    assert len(iter(loader)._jobs) == 5
    monkeypatch.setattr(iterator, "BYTES_IN_WORK", 1)
    assert len(iter(loader)._jobs) == iterator.BATCHES_IN_WORK
    monkeypatch.setattr(iterator, "BATCHES_IN_WORK", 1)
    monkeypatch.setattr(iterator, "IMAGES_IN_WORK", 4)
    monkeypatch.setattr(iterator, "BYTES_IN_WORK", 1 << 30)
    assert len(iter(loader)._jobs) == 2


def test_the_scripts_generators_end_in_the_same_state(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), TRAIN)

    def state_after(walk: Callable[[Any], Any]) -> torch.Tensor:
        torch.manual_seed(2)
        walk(DataLoader(data, batch_size=8, shuffle=True, num_workers=1))
        return torch.get_rng_state()

    assert torch.equal(state_after(own_batches), state_after(list))


def test_the_sampler_is_read_no_further_ahead(folder: Path, taken_over: list[str]) -> None:
    asked: list[int] = []

    class Recorder:
        def __iter__(self) -> Any:
            for batch in range(20):
                asked.append(batch)
                yield [batch]

        def __len__(self) -> int:
            return 20

    data = ImageFolder(str(folder), EVALUATE)
    iterator = iter(DataLoader(data, batch_sampler=Recorder(), num_workers=1, prefetch_factor=3))
    assert isinstance(iterator, NativeIterator) and len(asked) == 3
    next(iterator)
    assert len(asked) == 4
    asked.clear()
    iterator = iter(DataLoader(data, batch_sampler=Recorder()))
    assert asked == []
    next(iterator)
    assert asked == [0]


def test_persistent_workers_keep_one_iterator(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(ImageFolder(str(folder), TRAIN), 5, num_workers=1, persistent_workers=True)
    first = iter(loader)
    images = [batch[0] for batch in first]
    assert iter(loader) is first
    again = [batch[0] for batch in first]
    assert len(images) == len(again) == 4 and not torch.equal(images[0], again[0])


def test_break_nested_and_exhausted_iterators_behave_as_the_scripts_own(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(ImageFolder(str(folder), EVALUATE), 5, num_workers=1)
    for _ in loader:
        break
    pairs = [(a[1].tolist(), b[1].tolist()) for a in loader for b in loader]
    assert len(pairs) == 16 and len(loader) == 4
    iterator = iter(loader)
    list(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_stored_batches_do_not_change(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(ImageFolder(str(folder), EVALUATE), 2, num_workers=1)
    kept = [batch[0] for batch in loader]
    copies = [images.clone() for images in kept]
    for _ in range(3):
        list(loader)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_random_erasing_runs_in_the_script(folder: Path, taken_over: list[str]) -> None:
    transform = v1.Compose([*EVALUATE.transforms, v1.RandomErasing(p=0.5, value=9.0)])
    torch.manual_seed(0)
    loader = DataLoader(ImageFolder(str(folder), transform), 20)
    state = torch.get_rng_state()
    (images, _), (plain, _) = next(iter(loader)), next(iter(DataLoader(ImageFolder(str(folder), EVALUATE), 20)))
    erased = (images == 9.0).flatten(1).any(1)
    assert 2 <= int(erased.sum()) <= 18
    assert torch.equal(images[~erased], plain[~erased])
    assert torch.equal(images[images != 9.0], plain[images != 9.0])
    assert not torch.equal(state, torch.get_rng_state())  # two base seeds were drawn, and nothing else
    torch.set_rng_state(state)
    torch.empty((), dtype=torch.int64).random_()
    again = next(iter(DataLoader(ImageFolder(str(folder), EVALUATE), 20)))
    assert torch.equal(again[0], plain)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_calls_default_collate_is_taken_over(folder: Path, taken_over: list[str], workers: int) -> None:
    data = ImageFolder(str(folder), EVALUATE)

    def halved(batch: list[Any]) -> dict[str, Any]:
        images, labels = default_collate(batch)
        return {"pixels": images / 2, "labels": labels}

    loader = DataLoader(data, 6, num_workers=workers, collate_fn=halved)
    for mine, other in zip(loader, own_batches(loader), strict=True):
        assert mine.keys() == other.keys()
        assert torch.equal(mine["pixels"], other["pixels"]) and torch.equal(mine["labels"], other["labels"])
    assert "taken over: decode" in taken_over[-1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_draws_is_left_to_its_workers(folder: Path, taken_over: list[str], workers: int) -> None:
    """As the torchvision reference writes mixup and cutmix: a closure over both."""
    mix = v2.RandomChoice([v2.MixUp(num_classes=4), v2.CutMix(num_classes=4)])

    def mixed(batch: list[Any]) -> Any:
        return mix(*default_collate(batch))

    def batches(walk: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        loader = DataLoader(ImageFolder(str(folder), EVALUATE), 5, shuffle=True, num_workers=workers, collate_fn=mixed)
        return list(walk(loader))

    assert_same(batches(iter), batches(own_batches))
    assert "in part" in taken_over[-1] and "collate_fn mixed" in taken_over[-1] and "RandomChoice" in taken_over[-1]


def test_a_bad_file_raises_the_scripts_own_error(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    Path(data.samples[7][0]).write_bytes(b"no image at all")
    iterator = iter(DataLoader(data, 5, num_workers=1))
    assert isinstance(iterator, NativeIterator)
    next(iterator)
    from PIL import UnidentifiedImageError

    with pytest.raises(UnidentifiedImageError, match=r"cannot identify image file"):
        next(iterator)
    assert next(iterator)[1].tolist() == [2] * 5  # like the original, the pass goes on behind it


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_only_headrace_decodes_raises_pillows_error(kind: str, folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    Path(data.samples[7][0]).write_bytes(REFUSED[kind]())
    with pytest.raises((OSError, ValueError)) as theirs:
        pil_loader(data.samples[7][0])
    iterator = iter(DataLoader(data, 5))
    assert isinstance(iterator, NativeIterator)
    next(iterator)
    with pytest.raises(type(theirs.value)) as ours:
        next(iterator)
    assert str(ours.value).partition(" at 0x")[0] == str(theirs.value).partition(" at 0x")[0]


def test_an_invalid_index_raises_as_in_the_script(folder: Path, taken_over: list[str]) -> None:
    iterator = iter(DataLoader(ImageFolder(str(folder), EVALUATE), batch_sampler=[[0, 1], [500]]))
    next(iterator)
    with pytest.raises(IndexError):
        next(iterator)


def test_changed_samples_are_loaded(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    loader = DataLoader(data, 20)
    (before, _), data.samples[0] = next(iter(loader)), data.samples[19]
    after, labels = next(iter(loader))
    assert not torch.equal(before[0], after[0]) and torch.equal(after[0], after[19]) and labels[0] == 3


def test_an_error_of_headrace_falls_back_to_the_script(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(ImageFolder(str(folder), EVALUATE), 5, num_workers=1)
    expected = own_batches(loader)
    for delivered in (0, 2):
        iterator = iter(loader)
        assert isinstance(iterator, NativeIterator)
        batches = [next(iterator) for _ in range(delivered)]

        class Broken:
            def wait(self, timeout: float | None) -> bool:
                raise HeadraceError("out of luck")

            def cancel(self) -> None:
                pass

        iterator._jobs[0].job = Broken()
        assert_same(batches + list(iterator), expected)
        assert "native loading stopped (HeadraceError: out of luck)" in taken_over[-1]


def test_loaders_share_their_threads(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), EVALUATE)
    list(DataLoader(data, 5, num_workers=1))
    before = len(list(Path("/proc/self/task").iterdir()))
    for _ in range(5):
        list(DataLoader(data, 5, num_workers=1))
    assert len(list(Path("/proc/self/task").iterdir())) <= before
    assert threading.active_count() < 10


def test_forked_children_end_normally(folder: Path, taken_over: list[str]) -> None:
    iterator = iter(DataLoader(ImageFolder(str(folder), TRAIN), 5, num_workers=1))
    assert isinstance(iterator, NativeIterator) and iterator._jobs
    child = os.fork()
    if child == 0:
        try:
            iterator.__del__()
            fresh = list(DataLoader(ImageFolder(str(folder), EVALUATE), 5))  # threads of the child's own
            os._exit(0 if len(fresh) == 4 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other = DataLoader(list(range(6)), 2, num_workers=1)  # an ordinary loader forks in mid-iteration
    assert [batch.tolist() for batch in other] == [[0, 1], [2, 3], [4, 5]]
    assert len(list(iterator)) == 4


class OwnIterators(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return _SingleProcessDataLoaderIter(self)


def test_a_loader_with_its_own_iterators_is_reported(folder: Path, taken_over: list[str]) -> None:
    loader = OwnIterators(ImageFolder(str(folder), EVALUATE), 5)
    assert len(list(loader)) == len(list(loader)) == 4
    (line,) = taken_over
    assert "not taken over: OwnIterators makes its own iterators" in line


def _with_getitem() -> type:
    class Own(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            self.last = index
            return super().__getitem__(index)[0], index

    return Own


FLIP_FIRST = v1.Compose([v1.RandomHorizontalFlip(), v1.Resize((40, 40)), v1.ToTensor()])
OPEN_SIZE = v1.Compose([v1.RandomHorizontalFlip(), v1.Resize(40), v1.ToTensor()])
OWN_ITERATOR: dict[str, tuple[Callable[[str], Any], str]] = {
    "own __getitem__": (lambda root: DataLoader(_with_getitem()(root, EVALUATE), 5), "its own __getitem__"),
    "own loader": (
        lambda root: DataLoader(ImageFolder(root, EVALUATE, None, lambda path: pil_loader(path).rotate(0)), 5),
        "image loader is <lambda>, not torchvision's Pillow loader, and its items use Image.rotate",
    ),
    "collate": (
        lambda root: DataLoader(ImageFolder(root, FLIP_FIRST), 5, collate_fn=lambda batch: random.sample(batch, len(batch))),
        "collate_fn",
    ),
    "tensors": (lambda root: DataLoader(torch.utils.data.TensorDataset(torch.zeros(9, 2)), 5), "not an image folder"),
    "no batches": (lambda root: DataLoader(ImageFolder(root, FLIP_FIRST), None), "batch_size=None"),
    "open size": (lambda root: DataLoader(ImageFolder(root, OPEN_SIZE), 1), "image size"),
}


@pytest.mark.parametrize("name", OWN_ITERATOR)
def test_loaders_not_taken_over_as_a_whole_keep_their_own_iterator(name: str, folder: Path, taken_over: list[str]) -> None:
    make, words = OWN_ITERATOR[name]
    loader = make(str(folder))
    iterator = iter(loader)
    assert type(iterator) is _SingleProcessDataLoaderIter
    next(iterator)
    list(loader)
    next(iter(make(str(folder))))
    (line,) = taken_over  # once, not for every epoch, nor for every loader of the kind
    assert ("not taken over: " if name == "tensors" else "taken over in part: the decode, crop and resize of JPEGs") in line
    assert words in line


def test_a_worker_init_fn_that_only_seeds_is_allowed(folder: Path, taken_over: list[str]) -> None:
    def seeds(worker: int) -> None:
        seed = torch.initial_seed() % 2**32
        numpy.random.seed(seed)
        random.seed(seed)

    data = ImageFolder(str(folder), EVALUATE)
    assert isinstance(iter(DataLoader(data, 5, num_workers=1, worker_init_fn=seeds)), NativeIterator)
    other = iter(DataLoader(data, 5, num_workers=1, worker_init_fn=lambda worker: data.samples.reverse()))
    assert not isinstance(other, NativeIterator)
    assert "worker_init_fn may do more" in taken_over[-1]
    list(other)
