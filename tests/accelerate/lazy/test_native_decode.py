"""Native decode inside the script's own workers changes no value and no random draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate_helpers import assert_same, own_batches
from headrace.accelerate import hook
from headrace.accelerate.deferred import loader as deferred_loader
from headrace.accelerate.lazy import native_decode
from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.whole.iterator import NativeIterator
from headrace.accelerate.whole.recognition import Recognition
from PIL import Image, UnidentifiedImageError
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
STACKS: dict[str, tuple[Any, str]] = {
    "colour": (
        v1.Compose([v1.RandomResizedCrop(40), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomPerspective(), v1.ToTensor()]),
        "RandomPerspective",
    ),
    "AugMix": (
        v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.AugMix(), v1.PILToTensor()]),
        "AugMix",
    ),
    "lambda": (v1.Compose([v1.Resize((40, 50)), v1.ToTensor(), v1.Lambda(lambda image: image * 2)]), "<lambda>"),
    "perspective": (v1.Compose([v1.RandomResizedCrop(40), v1.RandomPerspective(), v1.ToTensor()]), "RandomPerspective"),
    "two resizes": (
        v1.Compose([v1.Resize(60), v1.RandomResizedCrop(40), v1.RandomPerspective(), v1.ToTensor()]),
        "RandomPerspective",
    ),
    "tensors, v2": (
        v2.Compose([v2.ToImage(), v2.RandomResizedCrop((40, 30), antialias=True), v2.ColorJitter(0.4), TO_FLOAT]),
        "on a tensor",
    ),
    "tensors, v1": (
        v1.Compose([v1.PILToTensor(), v1.RandomResizedCrop(40, antialias=True), v1.ConvertImageDtype(torch.float)]),
        "on a tensor",
    ),
    "v2, bicubic": (
        v2.Compose([v2.RandomResizedCrop(40, interpolation=InterpolationMode.BICUBIC), v2.RandomPerspective(), v2.ToImage()]),
        "RandomPerspective",
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", STACKS)
def test_each_item_equals_the_scripts_own(
    name: str, workers: int, folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (native_decode.with_native_decode,))
    transform, reason = STACKS[name]
    loader = DataLoader(ImageFolder(str(folder), transform), 7, shuffle=True, num_workers=workers)
    torch.manual_seed(4)
    theirs = [*own_batches(loader), *own_batches(loader)]
    torch.manual_seed(4)
    ours = [*loader, *loader]
    assert_same(ours, theirs)
    (line,) = taken_over
    assert "taken over in part: decode and " in line and reason in line, line


@pytest.mark.parametrize("name", STACKS)
def test_folders_get_deferred_items_unless_they_cut_tensors(name: str, folder: Path, taken_over: list[str]) -> None:
    iter(DataLoader(ImageFolder(str(folder), STACKS[name][0]), 7))
    native = "decode and RandomResizedCrop (the crop only) are" if name.startswith("tensors") else "the decode, crop and resize"
    assert f"taken over in part: {native} " in taken_over[-1]


def test_the_check_compares_lazy_images_of_a_folder(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(ImageFolder(str(folder), STACKS["AugMix"][0]), 7)
    assert deferred_loader.with_deferred_items(Recognition(loader), 9).check.startswith("9 images and the random draws equal; ")
    calls: list[str] = []
    own = native_decode._lazily_applied
    monkeypatch.setattr(native_decode, "_lazily_applied", lambda *rest: calls.append(rest[2]) or own(*rest))
    deferred_loader.with_deferred_items(Recognition(loader), 9)
    assert not calls  # in the next epoch
    monkeypatch.setattr(native_decode, "_lazily_applied", lambda *rest: own(*rest).rotate(90))
    other = DataLoader(ImageFolder(str(folder), STACKS["AugMix"][0]), 7)
    with pytest.raises(Unsupported, match=r"image_000.jpg came out different after RandomResizedCrop"):
        deferred_loader.with_deferred_items(Recognition(other), 9)


def test_own_collate_nested_datasets_and_persistent_workers(folder: Path, taken_over: list[str]) -> None:
    def collate(batch: list[Any]) -> dict[str, Any]:
        images, labels = zip(*batch, strict=True)
        return {"pixels": torch.stack(images) * torch.rand(()), "labels": torch.tensor(labels)}

    def make() -> Any:
        data = ImageFolder(str(folder), v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()]))
        both = ConcatDataset([Subset(data, [3, 7, 19]), data])
        return DataLoader(both, 8, num_workers=1, collate_fn=collate, persistent_workers=True)

    torch.manual_seed(1)
    loader = make()
    theirs = own_batches(loader)
    torch.manual_seed(1)
    loader = make()
    ours = list(loader)
    assert len(ours) == 3 and "collate_fn" in taken_over[-1] and "in part" in taken_over[-1]
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine["pixels"], other["pixels"]) and torch.equal(mine["labels"], other["labels"])
    assert len(list(loader)) == 3


def test_the_scripts_dataset_is_not_changed(folder: Path, taken_over: list[str]) -> None:
    transform = STACKS["colour"][0]
    data = ImageFolder(str(folder), transform)
    loader = DataLoader(data, 7)
    before = data.loader
    list(loader)
    assert data.loader is before and data.transform is transform and loader.dataset is data


def test_bad_files_raise_the_scripts_own_error(folder: Path, taken_over: list[str]) -> None:
    data = ImageFolder(str(folder), STACKS["colour"][0])
    Path(data.samples[3][0]).write_bytes(b"no image")
    with pytest.raises(UnidentifiedImageError, match="cannot identify"):
        list(DataLoader(data, 5, num_workers=1))
    assert "in part" in taken_over[-1]


def test_an_item_that_differs_leaves_the_loader_alone(
    folder: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = native_decode.NativeImageLoader.__call__

    def darker(self: Any, path: Any) -> Any:
        return Image.fromarray(np.asarray(call(self, path)) // 2)

    monkeypatch.setattr(native_decode.NativeImageLoader, "__call__", darker)
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (native_decode.with_native_decode,))
    iterator = iter(DataLoader(ImageFolder(str(folder), STACKS["colour"][0]), 5))
    assert type(iterator) is _SingleProcessDataLoaderIter
    assert (
        "not taken over: transform RandomPerspective has no exact native equivalent; not in part either: image "
        in taken_over[-1]
    )
    assert "image_000.jpg came out different after RandomResizedCrop" in taken_over[-1]


NO_NATIVE_FIRST_STEP: dict[str, Callable[[], Any]] = {
    "flip first": lambda: v1.Compose([v1.RandomHorizontalFlip(), v1.Resize((8, 8)), v1.RandomPerspective(), v1.ToTensor()]),
    "nearest": lambda: v1.Compose([v1.Resize((8, 8), InterpolationMode.NEAREST), v1.ToTensor()]),
    "no transform": lambda: None,
}


@pytest.mark.parametrize("name", NO_NATIVE_FIRST_STEP)
def test_loaders_without_a_native_first_step_get_lazy_images(name: str, folder: Path, taken_over: list[str]) -> None:
    iterator = iter(DataLoader(ImageFolder(str(folder), NO_NATIVE_FIRST_STEP[name]()), 5, collate_fn=list))
    assert not isinstance(iterator, NativeIterator)
    assert len(next(iterator)) == 5
    assert "taken over in part: the decode, crop and resize of JPEGs that Pillow opens" in taken_over[-1]


class Noise:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + torch.rand(image.shape, generator=self.generator)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_of_the_scripts_own_makes_the_same_draws(folder: Path, taken_over: list[str], workers: int) -> None:
    def loader(noise: Noise) -> Any:
        data = ImageFolder(str(folder), v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), noise]))
        return DataLoader(data, 5, num_workers=workers)

    noise, other = Noise(), Noise()
    before = noise.generator.get_state()
    iterator = iter(loader(noise))
    assert torch.equal(noise.generator.get_state(), before)
    list(iterator)
    (line,) = taken_over
    assert "taken over in part" in line and "transform Noise has no exact native equivalent" in line
    fresh = Noise()
    torch.manual_seed(2)
    theirs = own_batches(loader(other))
    torch.manual_seed(2)
    assert_same(list(loader(fresh)), theirs)
    assert torch.equal(fresh.generator.get_state(), other.generator.get_state())
    assert torch.equal(fresh.generator.get_state(), before) == bool(workers)


def test_native_decode_is_not_claimed_of_files_that_are_no_jpegs(
    tmp_path: Path, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "PARTIAL_WAYS", (native_decode.with_native_decode,))
    (tmp_path / "a").mkdir()
    for number in range(6):
        Image.new("RGB", (60, 50), (number, 2, 3)).save(tmp_path / f"a/{number}.png")
    iter(DataLoader(ImageFolder(str(tmp_path), STACKS["colour"][0]), 2))
    assert "not taken over" in taken_over[-1] and "none of its first files is a JPEG" in taken_over[-1]
