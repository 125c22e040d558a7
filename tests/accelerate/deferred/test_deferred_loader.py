"""Loaders with deferred items: the script's own batches, computed by native threads in the training process."""

from __future__ import annotations

import gc
import io
import os
import pickle
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deferred_helpers import WORKER_ENDED, always_lazy, both_ways, described, seeded, wait_for_dead_workers
from headrace.accelerate.deferred import batch as deferred_batch
from headrace.accelerate.deferred import loader as deferred_loader
from headrace.accelerate.deferred.batch import DescribedBatch
from headrace.accelerate.deferred.functions import deferred_tensors
from headrace.accelerate.deferred.shared_bytes import SharedBytes
from headrace.accelerate.deferred.tensor import real
from headrace.accelerate.lazy import trial as lazy_trial
from headrace.accelerate.lazy.loader import trial_of
from headrace.accelerate.lazy.opening import lazy_images
from headrace.accelerate.lazy.trial import TrialState
from headrace.accelerate.runtime import batch_memory
from headrace.accelerate.runtime.unsupported import Refusal
from headrace.accelerate.whole.recognition import Recognition
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torchvision import transforms as v1
from torchvision.transforms import v2

pytestmark = pytest.mark.usefixtures("items_refused")

STACK = v1.Compose([v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
V2_STACK = v2.Compose([v2.RandomResizedCrop(96), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
V2_IMAGE = v2.Compose(
    [v2.RandomResizedCrop(96), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])]
)


@pytest.fixture(autouse=True)
def taken_over_in_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to take a loader over as a whole: its draws would be others."""
    refusal = Refusal("this test looks at loaders that are taken over in part")
    monkeypatch.setattr(Recognition, "folders", refusal)


def paths_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.jpg"))


class Images(Dataset[Any]):
    """A dataset as people write it. `kind`: what an item is."""

    def __init__(self, paths: list[str], kind: str = "pair", transform: Any = STACK) -> None:
        self.paths, self.kind, self.transform = paths, kind, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        source = io.BytesIO(Path(path).read_bytes()) if self.kind == "bytes" else path
        image = Image.open(source).convert("RGB")
        tensor = self.transform(image)
        if self.kind == "views":
            return [tensor, self.transform(image)], random.random()
        if self.kind == "dict":
            return {"image": tensor, "path": path, "size": image.size, "draw": np.random.rand(2)}
        if self.kind == "batched":
            return tensor.unsqueeze(0), index
        if self.kind == "noisy":
            return tensor + torch.rand(3, 96, 96), index
        return tensor, index


class Sample:
    """A batch of a class that nobody knows."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels


def by_hand(items: list[Any]) -> Any:
    images, labels = zip(*items, strict=True)
    return torch.stack(images), torch.tensor(labels)


def in_a_list(items: list[Any]) -> Any:
    return [item[0] for item in items], [item[1] for item in items]


def looking(items: list[Any]) -> Any:
    images, labels = default_collate(items)
    return images - images.mean(dim=(0, 2, 3), keepdim=True), labels


def in_a_class(items: list[Any]) -> Any:
    return Sample(*by_hand(items))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["pair", "bytes", "views", "dict", "batched", "noisy"])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_kind_of_item(kind: str, workers: int, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder), kind), 3, shuffle=True, num_workers=workers)
    theirs, ours = both_ways(loader, epochs=2)
    assert ours == theirs
    assert "taken over in part" in taken_over[0]


@pytest.mark.parametrize("collate", [by_hand, in_a_list, looking, in_a_class])
def test_each_kind_of_collate_function(collate: Any, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder)), 4, num_workers=2, collate_fn=collate)
    if collate is not in_a_class:
        theirs, ours = both_ways(loader)
        assert ours == theirs
        return
    plain = DataLoader(loader.dataset, 4, num_workers=2, collate_fn=by_hand)
    seeded(5)
    batches = list(always_lazy(loader))
    assert described([[(batch.images, batch.labels) for batch in batches]]) == both_ways(plain)[0][0]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "transform", [V2_STACK, V2_IMAGE, v2.ToImage(), v1.Compose([v1.RandomCrop(32), v1.PILToTensor()]), v1.ToTensor()]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_transforms_and_single_items(transform: Any, workers: int, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder), "pair", transform), None, num_workers=workers)
    theirs, ours = both_ways(loader)
    assert ours == theirs


class Counting:
    """What crosses the queue."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Counting:
        own = DescribedBatch.open
        monkeypatch.setattr(DescribedBatch, "open", lambda batch, *rest: self.batches.append(batch) or own(batch, *rest))
        return self


@pytest.mark.parametrize("kind", ["pair", "bytes"])
def test_descriptions_cross_the_queue_and_bytes_the_shared_memory(
    kind: str, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Counting().watch(monkeypatch)
    paths = [path for path in paths_of(folder) if "class_0" in path and "image_001" not in path]
    loader = always_lazy(DataLoader(Images(paths * 4, kind), 8, num_workers=1))
    assert sum(len(images) for images, _ in loader) == len(paths) * 4
    assert seen.batches
    for batch in seen.batches:
        assert not any(isinstance(one, torch.Tensor) for one in batch.tensors)
        assert batch.place is not None and batch.place[2] == batch.sources[-1][1]
        assert all(end - start in {Path(path).stat().st_size for path in paths} for start, end in batch.sources)
        described_bytes = len(pickle.dumps((batch.data, batch.sources, batch.tensors[0][3])))
        assert described_bytes < 400 * 8 + 1000


class Repainting:
    """A transform of the script's own that looks at pixels, as policies do, and changes the image later."""

    def __init__(self, then: Any) -> None:
        self.then = then

    def __call__(self, image: Any) -> Any:
        painted = ImageOps.equalize(image.resize((96, 72)))
        tensor = self.then(painted)
        painted.paste((1, 2, 3), (0, 0, 96, 72))
        return tensor


@pytest.mark.matrix
@pytest.mark.parametrize(
    "then",
    [
        v1.Compose([v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3), v1.RandomErasing(0.5)]),
        v1.PILToTensor(),
        v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]),
        v2.Compose([v2.ToImage(), v2.RandomCrop(64), v2.ToDtype(torch.float32, scale=True)]),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_that_a_transform_has_made(then: Any, workers: int, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder), "pair", Repainting(then)), 3, shuffle=True, num_workers=workers)
    theirs, ours = both_ways(loader, epochs=2)
    assert ours == theirs
    assert "taken over in part" in taken_over[0]


def test_pixels_that_a_transform_has_made_cross_the_queue_as_bytes(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Counting().watch(monkeypatch)
    transform = Repainting(v1.Compose([v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]))
    loader = always_lazy(DataLoader(Images(paths_of(folder)[:4], "pair", transform), 4, num_workers=1))
    assert len(list(loader)) == len(seen.batches) == 1
    (batch,) = seen.batches
    assert 4 * 96 * 72 * 3 < batch.place[2] < 4 * (96 * 72 * 3 + 20)
    assert not any(isinstance(one, torch.Tensor) for one in batch.tensors)


@pytest.mark.parametrize("context", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))])
def test_start_methods_and_persistent_workers(context: str, folder: Path, taken_over: list[str]) -> None:
    loader = DataLoader(Images(paths_of(folder)), 3, num_workers=2, multiprocessing_context=context, persistent_workers=True)
    always_lazy(loader)
    torch.manual_seed(1)
    ours = described([*loader, *loader, next(iter(loader)), *loader])
    plain = DataLoader(loader.dataset, 3, num_workers=2, multiprocessing_context="fork")
    from accelerate_helpers import own_batches

    torch.manual_seed(1)
    first = described(own_batches(plain))
    assert ours[: len(first)] == first and len(ours) == 1 + 3 * (len(first) - 1) + 1


class Broken(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise ValueError("item 7 is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_arrives_at_its_batch(workers: int, folder: Path, taken_over: list[str]) -> None:
    loader = always_lazy(DataLoader(Broken(paths_of(folder)), 3, num_workers=workers))
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(ValueError, match="item 7 is broken"):
        next(batches)
    assert len(next(batches)[1]) == 3 if workers else True


class Spoiled(Images):
    """A dataset whose files change as soon as an item is made. `how`: what happens to them."""

    def __getitem__(self, index: int) -> Any:
        path = Path(self.paths[index])
        copy = path.with_suffix(f".{os.getpid()}.copy")
        copy.write_bytes(path.read_bytes())
        tensor = self.transform(Image.open(copy).convert("RGB"))
        if self.kind == "removed":
            copy.unlink()
        elif self.kind == "replaced":
            copy.with_suffix(".new").write_bytes(Path(self.paths[index - 1]).read_bytes())
            copy.with_suffix(".new").replace(copy)
        elif self.kind == "rewritten":
            copy.write_bytes(Path(self.paths[index - 1]).read_bytes())
        elif self.kind == "cut":
            os.truncate(copy, 100)
        elif self.kind == "touched":
            os.utime(copy)
        else:
            copy.rename(copy.with_suffix(".moved"))
        return tensor, index


@pytest.mark.parametrize("how", ["removed", "replaced", "rewritten", "cut", "touched", "moved"])
def test_files_that_change_behind_the_worker(how: str, folder: Path, taken_over: list[str]) -> None:
    theirs, ours = both_ways(DataLoader(Spoiled(paths_of(folder), how), 4, num_workers=2))
    assert ours == theirs
    assert "taken over in part" in taken_over[0]


def test_the_images_of_a_list_share_one_block_whatever_their_sizes(folder: Path, taken_over: list[str]) -> None:
    """Memory for each of them would be mapped anew for each batch: they have more sizes than there are kept ones."""
    loader = always_lazy(
        DataLoader(Images(paths_of(folder) * 3, "pair", v1.ToTensor()), 6, collate_fn=in_a_list, num_workers=2)
    )
    before = set(batch_memory._blocks.rings)
    found = [images for images, _ in loader]
    assert len(set(batch_memory._blocks.rings) - before) <= 3
    for images in found:
        places = sorted((image.data_ptr(), image.nbytes) for image in images)
        assert places[-1][0] + places[-1][1] - places[0][0] < sum(size + 64 for _, size in places)
        assert all(place % 64 == 0 for place, _ in places)


def test_batches_are_filled_ahead_within_a_limit(folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_loader, "BYTES_AHEAD", 1)
    seen = Counting().watch(monkeypatch)
    loader = always_lazy(DataLoader(Images(paths_of(folder)), 2, num_workers=1, prefetch_factor=8))
    batches = iter(loader)
    next(batches)
    time.sleep(3)
    assert len(seen.batches) <= 1 + deferred_loader.BATCHES_AHEAD
    began_s = time.monotonic()
    del batches  # its thread waits for room
    assert time.monotonic() - began_s < 4.5
    assert sum(len(labels) for _, labels in loader) == len(loader.dataset)


class Small(Images):
    """A dataset whose tensors are smaller than the files of their images."""

    def __getitem__(self, index: int) -> Any:
        return v1.ToTensor()(Image.open(self.paths[index]).convert("RGB").resize((24, 20))), index


def test_tensors_that_are_smaller_than_their_files_are_computed_in_the_worker(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Counting().watch(monkeypatch)
    theirs, ours = both_ways(DataLoader(Small(paths_of(folder)), 4, num_workers=2))
    assert ours == theirs
    assert seen.batches and all(batch.place is None and not batch.sources for batch in seen.batches)


def test_without_shared_memory_the_worker_computes_the_tensors(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedBytes, "put", lambda *arguments: None)
    seen = Counting().watch(monkeypatch)
    theirs, ours = both_ways(DataLoader(Images(paths_of(folder), "views"), 4, num_workers=2))
    assert ours == theirs
    assert all(batch.place is None for batch in seen.batches)


class Dying(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_that_dies_ends_the_loader(folder: Path, taken_over: list[str]) -> None:
    loader = always_lazy(DataLoader(Dying(paths_of(folder)), 3, num_workers=1))
    with pytest.raises(WORKER_ENDED):
        try:
            list(loader)
        finally:
            wait_for_dead_workers()


class Stream(IterableDataset[Any]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Any:
        for path in self.paths:
            yield STACK(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_iterable_datasets(batch_size: int | None, folder: Path, taken_over: list[str]) -> None:
    theirs, ours = both_ways(DataLoader(Stream(paths_of(folder)), batch_size, num_workers=2))
    assert ours == theirs


def receiving_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-receive"]


def test_a_loader_that_is_left_early_ends_its_thread(folder: Path, taken_over: list[str]) -> None:
    gc.collect()
    before = set(receiving_threads())
    loader = always_lazy(DataLoader(Images(paths_of(folder)), 2, num_workers=2))
    for _ in loader:
        break
    batches = iter(loader)
    next(batches)
    mine = set(receiving_threads()) - before
    del batches
    gc.collect()
    assert mine and not mine & set(receiving_threads())


def test_batches_that_are_kept_do_not_change(folder: Path, taken_over: list[str]) -> None:
    loader = always_lazy(DataLoader(Images(paths_of(folder)), 2, num_workers=2))
    kept, copies = [], []
    for _ in range(3):
        for images, _ in loader:
            kept.append(images)
            copies.append(images.clone())
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_of_the_inference_mode_of_the_loop(persistent: bool, both: Any, folder: Path) -> None:
    def script() -> Any:
        loader = always_lazy(DataLoader(Images(paths_of(folder)), 5, num_workers=1, persistent_workers=persistent))
        found = []
        for is_on in (False, True):
            with torch.inference_mode(is_on):
                found += [batch[0].is_inference() for batch in loader]
        return found

    assert both(script)[0][1:] == [False] * 4 + [True] * 4


def test_a_fork_while_batches_are_filled(folder: Path, taken_over: list[str]) -> None:
    loader = always_lazy(DataLoader(Images(paths_of(folder)), 2, num_workers=2))
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert done[1] == 0
    assert len(list(batches)) == len(loader) - 1


def test_the_trial_counts_what_a_batch_costs_the_training_process(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_trial, "MOST_ITEMS", 6)
    monkeypatch.setattr(lazy_trial, "CLEAR", 0.0)
    monkeypatch.setattr(deferred_loader, "cost_s", lambda batch: 1000.0)
    loader = DataLoader(Images(paths_of(folder)), 3, num_workers=1)
    list(loader)
    assert trial_of(loader).state is TrialState.NOT_FASTER and trial_of(loader).cpu_share() > 100
    list(loader)
    assert "not taken over" in taken_over[-1] and "does not save CPU time" in taken_over[-1]


def test_the_cost_of_a_batch_is_that_of_all_its_images(folder: Path) -> None:
    paths = [path for path in paths_of(folder) if "class_0" in path and "image_001" not in path] * 10
    dataset = Images(paths)
    with lazy_images(), deferred_tensors():
        images = torch.stack([dataset[number][0] for number in range(len(paths))])
        began = time.process_time()
        cost_s = deferred_batch.cost_s({"of": Sample((images, 3), 0)})
    spent_s = time.process_time() - began
    assert 0 < cost_s < 100 * spent_s
    assert deferred_batch.cost_s([real(images), "text"]) == 0


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def worker_files(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_and_files_of_workers_and_main_process_do_not_grow_over_fifty_epochs(
    folder: Path, taken_over: list[str]
) -> None:
    loader = always_lazy(DataLoader(Images(paths_of(folder), "views"), 5, num_workers=1, persistent_workers=True))
    for _ in range(10):
        list(loader)
    worker = loader._iterator._workers[0].pid
    before = open_files(), resident_bytes(os.getpid()), resident_bytes(worker), worker_files(worker)
    for _ in range(50):
        list(loader)
    assert open_files() <= before[0] + 2
    assert worker_files(worker) <= before[3] + 2
    assert resident_bytes(os.getpid()) - before[1] < 8 << 20
    assert resident_bytes(worker) - before[2] < 8 << 20


def test_pinned_memory_comes_from_torch_and_batches_are_whole(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's thread for pinned memory runs, on an accelerator that is only claimed."""
    pinned: list[tuple[int, ...]] = []
    later: list[torch.Size] = []
    theirs = both_ways(DataLoader(Images(paths_of(folder), "dict"), 4, num_workers=1))[0]

    def own_memory(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        pinned.append(shape)
        return torch.empty(shape, dtype=dtype)

    def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        later.append(tensor.shape)
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(deferred_loader, "_pinned_tensor", own_memory)
    loader = always_lazy(DataLoader(Images(paths_of(folder), "dict"), 4, num_workers=1, pin_memory=True))
    seeded(5)
    batches = iter(loader)
    ours = described([list(batches)])
    assert [one[1:] for one in ours[1:]] == [one[1:] for one in theirs[0][1:]]
    assert pinned and all(shape[1:] == (3, 96, 96) for shape in pinned)
    assert torch.Size([4, 3, 96, 96]) in later and torch.Size([4, 2]) in later
    threads = set(receiving_threads())
    del batches
    gc.collect()
    deadline = time.monotonic() + 60
    while threads & set(receiving_threads()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
