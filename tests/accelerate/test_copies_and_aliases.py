"""Objects that end, objects that are two names of one, and classes that a script sets: each plain and under the hook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deferred_helpers import OwnImages, always_lazy
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

Both = Callable[[Callable[[], Any]], tuple[Any, list[str]]]
FIXED = transforms.Compose([transforms.Resize((24, 24)), transforms.ToTensor()])
RANDOM = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
CUT_TENSORS = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(24), v2.RandomPerspective(), v2.ToDtype(torch.float32)])


def as_they_are(batch: Any) -> Any:
    return batch


class _Ending:
    """Counts how often an object of the class ends, as datasets do that close a database then."""

    ended = 0

    def __del__(self) -> None:
        type(self).ended += 1


class EndingImages(_Ending, OwnImages):
    pass


class EndingFolder(_Ending, ImageFolder):
    pass


class CopiedFolder(ImageFolder):
    copied = 0

    def __copy__(self) -> Any:
        type(self).copied += 1
        return self


class EndingLoader(_Ending, DataLoader[Any]):
    pass


@pytest.mark.parametrize(("transform", "workers"), [(RANDOM, 1), (CUT_TENSORS, 0)])
@pytest.mark.parametrize("kind", [EndingImages, EndingFolder, CopiedFolder, EndingLoader])
def test_no_copy_of_the_scripts_objects_runs_their_code(
    kind: Any, transform: Any, workers: int, both: Both, folder: Path
) -> None:
    def script() -> Any:
        dataset = (ImageFolder if kind is EndingLoader else kind)(folder, transform)
        loader = (kind if kind is EndingLoader else DataLoader)(dataset, 5, num_workers=workers)
        before = vars(kind).get("ended"), vars(kind).get("copied")
        found = [list(loader), list(loader)]
        during = vars(kind).get("ended"), vars(kind).get("copied")
        assert dataset.transform is transform
        return found, before == during

    both(script)


class Twice(OwnImages):
    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.open(self.paths[index]).convert("RGB"))
        return {"image": image, "original": image, "number": index}


class Continued(OwnImages):
    """Its second tensor is the first one, or a flip of it, as the generator decides."""

    flip = transforms.RandomHorizontalFlip(0.2)

    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.open(self.paths[index]).convert("RGB"))
        return {"image": image, "original": self.flip(image), "number": index}


@pytest.mark.parametrize(("kind", "workers"), [(Twice, 0), (Twice, 1), (Continued, 0)])
@pytest.mark.parametrize("collate", [as_they_are, None])
def test_a_tensor_that_stands_twice_in_an_item_is_one(collate: Any, kind: Any, workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        found = []
        for batch in DataLoader(kind(folder, FIXED), 5, num_workers=workers, collate_fn=collate):
            for item in batch if collate else [batch]:
                item["image"].mul_(2)
                found.append((item["original"], item["image"] is item["original"]))
        return found

    both(script)


def noted(image: Any, index: int) -> Any:
    image.path = index
    return image


def of_own_class(image: Any, index: int) -> Any:
    image.__class__ = Named
    return [type(image).__name__, image.kind(), image.tobytes()]


class Named(Image.Image):
    def kind(self) -> str:
        return "the script's own"


def unsqueezed(image: Any, index: int) -> Any:
    image.unsqueeze_(0)
    return image


def first_normalize(image: Any, index: int) -> Any:
    made = functional.normalize(image, [0.5] * 3, [0.2] * 3)
    return [made, image, isinstance(made, type(image))]


def first_normalize_in_place(image: Any, index: int) -> Any:
    made = functional.normalize(image, [0.5] * 3, [0.2] * 3, inplace=True)
    return [made, image, isinstance(made, type(image))]


def without_such_a_method(image: Any, index: int) -> Any:
    try:
        return image.no_such_method()
    except AttributeError as error:
        return str(error), type(image).__name__, str(type(image))


BY_CLASS = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
COLOURS = {tv_tensors.Image: (200.0, 100.0, 0.0), "others": 0}


def by_class(image: Any, index: int) -> Any:
    return v2.ToDtype(BY_CLASS, scale=True)(image)


def filled_by_class(image: Any, index: int) -> Any:
    return v2.Pad(3, fill=COLOURS)(image), v2.RandomRotation(30, fill=COLOURS)(image)


PIXELS = transforms.Resize((64, 64))
TENSORS = transforms.Compose([PIXELS, transforms.ToTensor()])
IMAGES = v2.Compose([v2.Resize((64, 64)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class Used(OwnImages):
    def __init__(self, root: Path, transform: Any, use: Any) -> None:
        super().__init__(root, transform)
        self.use = use

    def __getitem__(self, index: int) -> Any:
        return self.use(self.transform(Image.open(self.paths[index]).convert("RGB")), index)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("transform", "use"),
    [
        (TENSORS, noted),
        (PIXELS, of_own_class),
        (IMAGES, noted),
        (IMAGES, unsqueezed),
        (IMAGES, first_normalize),
        (IMAGES, first_normalize_in_place),
        (v2.ToImage(), by_class),
        (v2.ToImage(), filled_by_class),
        (TENSORS, without_such_a_method),
        (IMAGES, without_such_a_method),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_items_do_with_lazy_images_and_deferred_tensors(
    workers: int, transform: Any, use: Any, both: Both, folder: Path, items_refused: None
) -> None:
    def script() -> Any:
        found = []
        loader = always_lazy(DataLoader(Used(folder, transform, use), 5, num_workers=workers, collate_fn=as_they_are))
        for batch in loader:
            found += [(item, getattr(item, "path", None)) for item in batch]
        return found

    both(script)


class CachedTensors(OwnImages):
    def __init__(self, root: Path) -> None:
        super().__init__(root, FIXED)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


def test_tensors_that_the_dataset_keeps_are_stacked_to_torchs_own(both: Both, folder: Path) -> None:
    def script() -> Any:
        dataset = CachedTensors(folder)
        for _ in always_lazy(DataLoader(dataset, 5)):
            pass
        batch = torch.stack([dataset[number][0] for number in range(5)])
        kept = torch.nn.Parameter(batch.clone() * 2, requires_grad=False)
        return batch, [len(type(one).__mro__) for one in (batch, batch.clone(), batch + 1)], kept

    both(script)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hook_of_all_modules_sees_each_transform(workers: int, both: Both, folder: Path) -> None:
    def script() -> Any:
        calls: list[str] = []
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(str(module)))
        try:
            return list(DataLoader(ImageFolder(str(folder), CUT_TENSORS), 5, num_workers=workers)), calls
        finally:
            hook.remove()

    both(script)
