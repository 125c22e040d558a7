"""The second best: the script keeps its workers and its transforms, and only the head of each item is native.

Where a transform or a collate function is not one that headrace can express, the first steps often still are: open the file,
decode it, cut a random box, resize. Those are done by one native call inside the script's own worker process (or its main
process), which decodes only what the box needs; the script's remaining transforms and its collate function run as ever. The
parameters of the cut are drawn by the script's own object from the script's own generator, so every item is the same as without
us, bit for bit, random draws included. A few items are compared before anything is changed.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headrace._native import decode_into, image_size
from headrace.accelerate.randomness import separate_randomness
from headrace.accelerate.recognise import Folder, find_folder, open_rgb, refuse_other_formats
from headrace.accelerate.translate import (
    PILLOW_FILTERS,
    TIMM,
    V1,
    V2,
    Refused,
    flatten,
    interpolation_name,
    name_of,
    shown,
)

__all__ = ["Headed", "with_native_head"]

#: Items compared with the script's own before a loader is changed.
PROVED_ITEMS = 3

Box = tuple[int, int, int, int]


class Headed:
    """A stand-in for a folder dataset's image loader: path -> Pillow image, already cut and resized.

    `first` is the script's own transform that is done here; `plain_loader` its own image loader, for files that the native side
    does not decode. `resized` is false where only the cut is done here (the script resizes tensors, with other arithmetic).
    """

    def __init__(self, first: Any, plain_loader: Callable[[Any], Any], *, resized: bool) -> None:
        self.first = first
        self.plain_loader = plain_loader
        self.resized = resized

    def __call__(self, path: Any) -> Any:
        """The image that the script's loader and its first transform would make of a file."""
        from PIL import Image

        with open(path, "rb") as file:
            data = file.read()
        try:
            width, height = image_size(data)
        except ValueError:
            image = self.plain_loader(path)
            width, height = image.size
        else:
            image = None
        box, (out_height, out_width), resample = self._draw(width, height)
        if image is None:
            pixels = np.empty((1, out_height, out_width, 3), dtype=np.uint8)
            if decode_into([data], pixels, out_height, out_width, [box], None, 1, resample) == [0]:
                return Image.fromarray(pixels[0])
            image = self.plain_loader(path)
        image = image.crop((box[0], box[1], box[0] + box[2], box[1] + box[3]))
        return image.resize((out_width, out_height), Image.Resampling[resample.upper()]) if self.resized else image

    def _draw(self, width: int, height: int) -> tuple[Box, tuple[int, int], str]:
        """(box, (height, width) of the result, filter), from the script's own object and its own generator."""
        kind = type(self.first).__name__
        if kind == "Resize":
            return (0, 0, width, height), _resized_size(self.first, width, height), interpolation_name(self.first.interpolation)
        # One byte, seen as a whole image: only its size is asked for. (A meta tensor costs a second of imports the first time.)
        stand_in = torch.empty((), dtype=torch.uint8).expand(3, height, width)
        if name_of(self.first).startswith(V2):
            drawn = self.first.make_params([stand_in])
            box = (drawn["left"], drawn["top"], drawn["width"], drawn["height"])
        else:
            top, left, cut_height, cut_width = self.first.get_params(stand_in, self.first.scale, self.first.ratio)
            box = (left, top, cut_width, cut_height)
        if not self.resized:
            return box, (box[3], box[2]), "bilinear"
        size, resample = self.first.size, self.first.interpolation
        if isinstance(resample, tuple | list):  # timm's interpolation="random", drawn after the box
            resample = random.choice(resample)
        return box, (int(size[0]), int(size[-1])), interpolation_name(resample)


class ResizeOnly:
    """The resize of a RandomResizedCrop whose cut is already done: the script's own, on a tensor."""

    def __init__(self, crop: Any) -> None:
        self.crop = crop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResizeOnly) and other.crop is self.crop

    def __hash__(self) -> int:
        return id(self.crop)

    def __call__(self, image: Any) -> Any:
        """Resizes as the crop's own `forward` does after cutting."""
        package = (
            "torchvision.transforms.v2.functional" if name_of(self.crop).startswith(V2) else "torchvision.transforms.functional"
        )
        crop = self.crop
        return sys.modules[package].resize(image, list(crop.size), interpolation=crop.interpolation, antialias=crop.antialias)


def _resized_size(resize: Any, width: int, height: int) -> tuple[int, int]:
    """(height, width) after torchvision's Resize of one int or two (`_compute_resized_output_size`)."""
    functional = sys.modules["torchvision.transforms.functional"]
    size = [resize.size] if isinstance(resize.size, int) else list(resize.size)
    out_height, out_width = functional._compute_resized_output_size((height, width), size, resize.max_size)
    return int(out_height), int(out_width)


class HeadedImageDataset(torch.utils.data.Dataset[Any]):
    """timm's ImageDataset, with a native head in place of opening the file and the first transform."""

    def __init__(self, dataset: Any, head: Headed, rest: Rest) -> None:
        self.dataset = dataset
        self.head = head
        self.rest = rest

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """An item as `ImageDataset.__getitem__` gives it, which also takes over where a file cannot be opened."""
        path, target = self.dataset.reader.samples[index]
        try:
            image = self.head(path)
        except OSError:
            return self.dataset[index]
        image = self.rest(image)
        transform = self.dataset.target_transform
        return image, target if transform is None else transform(target)


class Rest:
    """The script's remaining transforms, one after the other."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.operations = tuple(operations)

    def __call__(self, image: Any) -> Any:
        """What the script's whole transform returns, given the head's image."""
        for operation in self.operations:
            image = operation(image)
        return image


@dataclass(frozen=True, slots=True)
class _Done:
    first: Any
    rest: tuple[Any, ...]
    resized: bool


#: The operations with which a loader's items were found equal, so that the next epoch need not compare again.
_proved: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()


def with_native_head(loader: Any) -> tuple[Any, str]:
    """(a copy of the DataLoader whose items have a native head, what the head does); the script's own loader is not changed.

    Raises `Refused` where there is no head to do, or where an item comes out different.
    """
    data = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, data.IterableDataset):
        raise Refused("its dataset is iterable, without indices")
    done: list[_Done] = []
    dataset = _headed(loader.dataset, done)
    operations = tuple(operation for head in done for operation in (head.first, *head.rest))
    if _proved.get(loader) != operations:
        _prove(loader.dataset, dataset)
        _proved[loader] = operations
    changed = copy.copy(loader)
    changed.__dict__["dataset"] = dataset  # DataLoader's __setattr__ forbids it after __init__; this is a copy
    return changed, f"{shown(done[0].first)}{'' if done[0].resized else ' (its cut)'}"


def _headed(dataset: Any, done: list[_Done]) -> Any:
    data = sys.modules["torch.utils.data"]
    changed = copy.copy(dataset)
    if type(dataset) is data.Subset:
        changed.dataset = _headed(dataset.dataset, done)
    elif type(dataset) is data.ConcatDataset:
        changed.datasets = [_headed(part, done) for part in dataset.datasets]
    else:
        folder = find_folder(dataset, 0)
        refuse_other_formats([folder])
        head, rest = _split(folder)
        if folder.open_image is open_rgb:
            changed = HeadedImageDataset(dataset, head, Rest(rest))
        else:
            changed.loader, changed.transform = head, Rest(rest)
        done.append(_Done(head.first, tuple(rest), head.resized))
    return changed


def _split(folder: Folder) -> tuple[Headed, list[Any]]:
    """The head of a folder dataset's transform and the operations that remain."""
    operations = list(flatten(folder.dataset.transform))
    names = [name_of(operation) for operation in operations]
    if not operations:
        raise Refused("it has no transform")
    crops = (V1 + "RandomResizedCrop", V2 + "RandomResizedCrop")
    if names[0] in (*crops, V1 + "Resize", V2 + "Resize", TIMM + "transforms.RandomResizedCropAndInterpolation"):
        filters = interpolation_name(operations[0].interpolation)
        if not set(filters.split(" or ")) <= PILLOW_FILTERS:
            raise Refused(f"interpolation {filters}")
        return Headed(operations[0], folder.open_image, resized=True), operations[1:]
    to_tensor = (V2 + "ToImage", V2 + "PILToTensor", V1 + "PILToTensor")
    if len(names) > 1 and names[0] in to_tensor and names[1] in crops:
        head = Headed(operations[1], folder.open_image, resized=False)
        return head, [operations[0], ResizeOnly(operations[1]), *operations[2:]]
    raise Refused(f"transform {shown(operations[0])} comes first")


def _prove(plain: Any, headed: Any) -> None:
    """Compares a few items with the script's own, with the same draws; raises `Refused` if they are not equal."""
    count = len(plain)
    for seed, index in enumerate(sorted({0, count // 2, count - 1})[:PROVED_ITEMS]):
        with separate_randomness(seed):
            theirs = plain[index]
            after = torch.get_rng_state()
        with separate_randomness(seed):
            ours = headed[index]
            same_draws = torch.equal(after, torch.get_rng_state())
        if not same_draws or not _equal(ours, theirs):
            raise Refused(f"item {index} came out different")


def _equal(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return bool(ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs))
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_equal(ours[key], theirs[key]) for key in ours)
    if hasattr(ours, "__array__"):
        return bool(np.array_equal(np.asarray(ours), np.asarray(theirs)))
    return bool(ours == theirs)
