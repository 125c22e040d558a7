"""Loaders whose items are made with lazy images: the same batches, and nothing left behind."""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import assert_same, own_batches
from headrace.accelerate.lazy import loader as lazy_loader
from headrace.accelerate.lazy import pillow as lazy_pillow
from headrace.accelerate.lazy import trial as lazy_trial
from headrace.accelerate.lazy.opening import lazily_opened, lazy_images, require_equal_operations
from headrace.accelerate.lazy.pillow import LazyImage, OpenedJpeg, description_of
from headrace.accelerate.lazy.trial import Trial, TrialState
from headrace.accelerate.runtime import first_results
from headrace.accelerate.runtime.unsupported import Unsupported
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _DatasetKind
from torchvision import transforms as v1
from torchvision.transforms import v2

pytestmark = pytest.mark.usefixtures("items_refused")

STACK = v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])


class_of = type
"""Under this name items may look at the class of an image; by `type(…)` they would get no lazy ones."""


def paths_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.jpg"))


class Images(Dataset[Any]):
    """A dataset as people write it. `kind`: how it opens a file, and what it does with the image."""

    def __init__(self, paths: list[str], kind: str = "path", transform: Any = STACK) -> None:
        self.paths, self.kind, self.transform = paths, kind, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        if self.kind == "with":
            with open(path, "rb") as file:
                image = Image.open(file).convert("RGB")
        elif self.kind == "bytes":
            image = Image.open(io.BytesIO(Path(path).read_bytes()))
            image.load()
            image = ImageOps.exif_transpose(image).convert("RGB")
        elif self.kind == "threads":
            with ThreadPoolExecutor(2) as pool:
                image = pool.submit(lambda: Image.open(path).convert("RGB")).result()
                assert class_of(image) is Image.Image
                image = pool.submit(lambda: Image.open(path).convert("RGB").crop((0, 0, 30, 20))).result()
        else:
            image = Image.open(path).convert("RGB")
        if self.kind == "views":
            return [self.transform(image), self.transform(image), image.size, path, random.random()]
        if self.kind == "array":
            return np.array(image.resize((30, 20)))[..., ::-1].copy(), np.random.rand()
        if self.kind == "stays an image":
            return image.resize((8, 8)), index
        return self.transform(image), index


def described(value: Any) -> Any:
    """Return what can be compared of a batch: types, shapes, strides and values."""
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.stride(), value.numpy().tobytes()
    if isinstance(value, Image.Image):
        return value.tobytes(), value.mode, value.size, value.info, type(value)
    return [type(value), *map(described, value)] if isinstance(value, list | tuple) else value


def stack_all(items: list[Any]) -> Any:
    return items


KINDS = ["path", "with", "bytes", "threads", "views", "array", "stays an image"]


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_each_batch_equals_the_scripts_own(kind: str, workers: int, folder: Path, taken_over: list[str]) -> None:
    collate = stack_all if kind == "stays an image" else None
    loader = DataLoader(Images(paths_of(folder), kind), 3, shuffle=True, num_workers=workers, collate_fn=collate)
    torch.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    theirs = [*own_batches(loader), *own_batches(loader)]
    states = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    torch.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    ours = [*loader, *loader]
    assert (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[index]
    assert described(ours) == described(theirs)
    assert "taken over in part: the decode, crop and resize of JPEGs" in taken_over[0], taken_over


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_each_start_method_and_of_later_epochs(context: str, folder: Path, taken_over: list[str]) -> None:
    seeded: list[int] = []
    loader = DataLoader(
        Images(paths_of(folder)),
        3,
        num_workers=1,
        multiprocessing_context=context,
        persistent_workers=True,
        worker_init_fn=seeded.append if context == "fork" else None,
    )
    torch.manual_seed(1)
    ours = [*loader, *loader]
    plain = DataLoader(loader.dataset, 3, num_workers=1, multiprocessing_context=context, persistent_workers=True)
    torch.manual_seed(1)
    iterator = plain.__iter__.__func__  # type: ignore[attr-defined]
    plain_batches = own_batches(plain)
    assert_same(ours[: len(plain_batches)], plain_batches)
    assert iterator and seeded == []


class Stream(IterableDataset[Any]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Any]:
        for path in self.paths:
            yield STACK(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_iterable_datasets(workers: int, batch_size: int | None, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Stream(paths_of(folder)), batch_size, num_workers=workers)
    torch.manual_seed(2)
    theirs = own_batches(loader)
    torch.manual_seed(2)
    assert_same(list(loader), theirs)
    assert "in part" in taken_over[0]


def test_nothing_is_left_behind(folder: Path, taken_over: list[str]) -> None:
    before, create = Image.OPEN["JPEG"], _DatasetKind.create_fetcher
    seen: list[Any] = []

    class Watched(Images):
        def __getitem__(self, index: int) -> Any:
            with Image.open(self.paths[index]) as image:
                seen.append(class_of(image))
            return super().__getitem__(index)

    batches = iter(DataLoader(Watched(paths_of(folder)), 5))
    next(batches)
    assert Image.OPEN["JPEG"] is before and _DatasetKind.create_fetcher is create
    assert OpenedJpeg in seen
    with Image.open(paths_of(folder)[0]) as image:
        assert type(image) not in (OpenedJpeg, LazyImage)
    list(batches)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_inside_an_item_ends_the_lazy_time(folder: Path, taken_over: list[str]) -> None:
    paths = paths_of(folder)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:-20])
    before = Image.OPEN["JPEG"]
    with pytest.raises(OSError, match="truncated"):
        list(DataLoader(Images(paths), 4))
    assert Image.OPEN["JPEG"] is before


def test_only_the_thread_that_makes_the_item_opens_lazy_images(folder: Path) -> None:
    path, kinds = paths_of(folder)[0], []

    def note_kind() -> None:
        with Image.open(path) as image:
            kinds.append(class_of(image))

    with lazy_images():
        other = threading.Thread(target=note_kind)
        other.start()
        other.join()
        note_kind()
    assert kinds[1] is OpenedJpeg
    assert kinds and kinds[0] is not OpenedJpeg


def test_threads_that_look_at_one_lazy_image_get_the_same_pixels(folder: Path) -> None:
    path = paths_of(folder)[2]
    expected = Image.open(path).convert("RGB").resize((50, 50)).tobytes()
    for _ in range(20):
        with lazy_images():
            image = Image.open(path).convert("RGB").resize((50, 50))
        assert description_of(image) is not None
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(image.tobytes) for _ in range(4)]
            cores = [pool.submit(lambda image=image: image.im) for _ in range(4)]  # type: ignore[misc]
        assert {one.result() for one in found} == {expected}
        assert len({id(one.result()) for one in cores}) == 1 and type(image) is Image.Image


def test_files_are_closed_when_pillow_closes_them(folder: Path) -> None:
    path = paths_of(folder)[0]
    with lazy_images(), open(path, "rb") as file:
        image = Image.open(path)
        own = image.fp
        rgb = image.convert("RGB")
        assert own.closed and image.fp is None and description_of(rgb) is not None
        other = Image.open(file)
        other.load()
        assert not file.closed and other.fp is None and description_of(other) is not None


def test_a_replaced_operation_of_the_script_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = paths_of(folder)[0], []
    own = Image.Image.resize

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return own(self, *arguments, **options)

    with lazy_images():
        image = Image.open(path).convert("RGB")
        monkeypatch.setattr(Image.Image, "resize", counted)
        assert type(image.resize((9, 9))) is Image.Image
    assert calls == [((9, 9),)] or len(calls) == 1
    with pytest.raises(Unsupported, match=r"PIL\.Image\.Image\.resize is not Pillow's own"):
        require_equal_operations()


def test_a_large_image_warns_and_raises_as_in_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = paths_of(folder)[0]
    data = io.BytesIO(Path(path).read_bytes())
    width, height = Image.open(data).size
    with lazy_images():
        image = Image.open(path).convert("RGB")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", width * height // 4)
        with pytest.raises(Image.DecompressionBombError):
            Image.open(data)
        with pytest.warns(Image.DecompressionBombWarning):
            image.crop((0, 0, width * 2 // 3, height * 2 // 3))


def test_an_image_that_differs_ends_lazy_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def black(description: Any, indexes: Any) -> Any:
        return np.zeros((description.height, description.width, 3), np.uint8)

    monkeypatch.setattr(first_results, "log_line", lines.append)
    monkeypatch.setattr(lazy_pillow, "_first_images", first_results.FirstResults(3, "an image came out different"))
    monkeypatch.setattr(lazy_pillow, "pixels", black)
    path = paths_of(folder)[0]
    expected = np.asarray(Image.open(path).convert("RGB"))
    with lazy_images():
        assert np.array_equal(np.asarray(Image.open(path).convert("RGB")), expected)
        with Image.open(path) as image:
            assert type(image) is not OpenedJpeg
    assert len(lines) == 1 and "came out different" in lines[0]


def test_the_trial_decides_by_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(lazy_s: float, plain_s: float, items: int) -> TrialState:
        trial = Trial(2)
        for number in range(40):
            trial.add(number % 2, lazy=number % 4 < 2, items=items, cpu_s=(lazy_s if number % 4 < 2 else plain_s) * items)
        return trial.state

    assert decided(1.0, 2.0, 8) is TrialState.LAZY
    assert decided(0.9, 1.0, 8) is TrialState.LAZY
    assert decided(0.97, 1.0, 8) is TrialState.NOT_FASTER
    assert decided(0.9, 1.0, 1) is TrialState.MEASURING
    monkeypatch.setattr(lazy_trial, "ENOUGH_ITEMS", 4)
    assert decided(0.5, 1.0, 1) is TrialState.LAZY


def test_the_trial_counts_what_a_batch_costs_the_training_process() -> None:
    def decided(lazy_received_s: float, plain_received_s: float) -> TrialState | None:
        trial = Trial(1)
        for lazy, received_s in ((True, lazy_received_s), (False, plain_received_s)):
            trial.add_received(lazy=lazy, cpu_s=received_s / 2)
            trial.add_received(lazy=lazy, cpu_s=received_s / 2, batches=0)
        trial.add(0, lazy=True, items=100, cpu_s=50.0)
        return trial.add(0, lazy=False, items=100, cpu_s=100.0)

    assert decided(0.0, 0.0) is TrialState.LAZY
    assert decided(60.0, 10.0) is TrialState.NOT_FASTER
    assert decided(60.0, 200.0) is TrialState.LAZY


def test_what_a_batch_costs_the_training_process_is_measured(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_trial, "CLEAR", 0.0)
    paths = [path for path in paths_of(folder) if "class_0" in path and "image_001" not in path]
    loader = DataLoader(Noting(paths * 60), 48, num_workers=1)
    list(loader)
    plain_s, lazy_s = lazy_loader.trial_of(loader)._received_s()
    assert plain_s > 0 and lazy_s > 0


def test_the_trial_decides_early_only_where_lazy_items_clearly_cost_less() -> None:
    trial = Trial(2)
    assert trial.ordinary_items(64) == 12 and trial.ordinary_items(17) == 8 and trial.ordinary_items(15) == 0
    assert trial.add_divided(0, (1.2, 12), (2.0, 52)) is None
    assert trial.ordinary_items(64) == 12
    assert trial.add_divided(1, (1.2, 12), (2.0, 52)) is TrialState.LAZY
    slow = Trial(1)
    assert slow.ordinary_items(64) == 24
    assert slow.add_divided(0, (2.4, 24), (3.9, 40)) is None  # the collate function may make the difference
    assert slow.state is TrialState.MEASURING and slow.ordinary_items(64) == 0
    assert slow.add(0, lazy=True, items=64, cpu_s=3.0) is None
    assert slow.add(0, lazy=False, items=64, cpu_s=6.4) is TrialState.LAZY
    assert slow.cpu_share() == 3.0 / 6.4


class Noting(Images):
    """A dataset that notes which of its items are opened lazily."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            lazily = class_of(image) is OpenedJpeg
        return super().__getitem__(index)[0], lazily


@pytest.mark.parametrize("workers", [0, 1])
def test_a_few_ordinary_items_decide_where_lazy_ones_clearly_cost_less(
    workers: int, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [path for path in paths_of(folder) if "class_0" in path and "image_001" not in path]
    loader = DataLoader(Noting(paths * 30), 30, num_workers=workers)
    torch.manual_seed(6)
    theirs = own_batches(loader)
    monkeypatch.setattr(lazy_trial, "CLEAR", 1000.0)
    monkeypatch.setattr(lazy_trial, "CLEAR_SAVING_S", -1000.0)
    torch.manual_seed(6)
    ours = list(loader)
    assert described([images for images, _ in ours]) == described([images for images, _ in theirs])
    assert [lazily.tolist().count(False) for _, lazily in ours] == [0, 15, 15, 0]
    assert ours[1][1].tolist() == [False] * 15 + [True] * 15
    assert lazy_loader.trial_of(loader).state is TrialState.LAZY


def test_whole_batches_are_compared_where_a_few_items_do_not_decide(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [path for path in paths_of(folder) if "class_0" in path and "image_001" not in path]
    monkeypatch.setattr(lazy_trial, "CLEAR", 0.0)
    loader = DataLoader(Noting(paths * 60), 48, num_workers=1)
    assert [lazily.tolist().count(False) for _, lazily in loader] == [0, 24, 0, 48, 0]


def test_short_epochs_decide_together(folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_trial, "CLEAR", 0.0)
    monkeypatch.setattr(lazy_trial, "WORTHWHILE", 1000.0)
    monkeypatch.setattr(lazy_trial, "MOST_ITEMS", 4)
    loader = DataLoader(Noting(paths_of(folder)[:4]), 2, num_workers=1)  # two batches: one to warm up, one measured
    lazily = [[made.tolist().count(False) == 2 for _, made in loader] for _ in range(4)]
    assert [epoch[1] for epoch in lazily][1:] == [True, False, True], lazily
    assert lazy_loader.trial_of(loader).state is TrialState.LAZY


def test_an_error_and_an_early_end_within_a_divided_batch(folder: Path, taken_over: list[str]) -> None:
    path = paths_of(folder)[0]
    before = Image.OPEN["JPEG"]
    for bad in (20, 30):  # an ordinary item, and a lazy one
        batches = iter(DataLoader(Images([path] * bad + ["missing.jpg"] + [path] * 40), 18))
        next(batches)
        with pytest.raises(FileNotFoundError):
            next(batches)
        assert Image.OPEN["JPEG"] is before and len(next(batches)[1]) == 18
    for length in (20, 30):
        for drops in (False, True):
            loader = DataLoader(Stream([path] * length), 18, drop_last=drops)
            assert [len(images) for images in loader] == [18] + [length - 18] * (not drops)
            assert Image.OPEN["JPEG"] is before


@pytest.mark.usefixtures("reported_when_known")
def test_a_loader_that_does_not_gain_is_left_alone_and_says_so(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_trial, "MOST_ITEMS", 4)
    monkeypatch.setattr(lazy_trial, "WORTHWHILE", 0.0)
    monkeypatch.setattr(lazy_trial, "CLEAR", 0.0)
    loader = DataLoader(Images(paths_of(folder)), 2)
    list(loader)
    assert "Images not taken over" in taken_over[-1] and "CPU time here (measured: " in taken_over[-1]
    opened, lines = lazily_opened(), len(taken_over)
    list(loader)
    assert lazily_opened() == opened and len(taken_over) == lines


@pytest.mark.usefixtures("reported_when_known")
def test_items_without_a_jpeg_are_left_alone(tmp_path: Path, taken_over: list[str]) -> None:
    for number in range(8):
        Image.new("RGB", (60, 50), (number, 2, 3)).save(tmp_path / f"{number}.png")
    loader = DataLoader(Images([str(path) for path in sorted(tmp_path.iterdir())]), 1)
    list(loader)
    assert "Images not taken over" in taken_over[-1] and "open no JPEG with Pillow" in taken_over[-1]
    iter(DataLoader(TensorDataset(torch.zeros(3, 2)), 1))
    assert "not taken over" in taken_over[-1] and "TensorDataset" in taken_over[-1]


def test_tensor_transforms_and_v2(folder: Path, taken_over: list[str]) -> None:
    stack = v2.Compose(
        [v2.RandomHorizontalFlip(), v2.ToImage(), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32, scale=True)]
    )
    loader = DataLoader(Images(paths_of(folder), transform=stack), 4)
    torch.manual_seed(3)
    theirs = own_batches(loader)
    torch.manual_seed(3)
    assert_same(list(loader), theirs)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow_over_fifty_epochs(folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder), "views"), 5)
    for _ in range(10):
        list(loader)
    files, memory = open_files(), resident_bytes()
    for _ in range(50):
        list(loader)
    assert open_files() <= files
    assert resident_bytes() - memory < 8 << 20


def test_small_savings_are_not_clear_before_a_batch_has_been_received() -> None:
    trial = Trial(1)
    assert trial.add_divided(0, (0.0096, 24), (0.008, 40)) is None  # 0.4 ms and 0.2 ms an item
    assert trial.add(0, lazy=True, items=96, cpu_s=0.0192) is None
    trial.add_received(lazy=True, cpu_s=0.03)
    trial.add_received(lazy=False, cpu_s=0.001)
    assert trial.add(0, lazy=False, items=96, cpu_s=0.0384) is TrialState.NOT_FASTER
