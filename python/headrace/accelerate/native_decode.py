"""Native decode inside the script's own workers, for a loader that cannot be taken over as a whole.

One native call replaces the first steps of each item: open the file, decode it, crop a random box, resize. It decodes only
what the box needs. It runs where the item is made: in a worker of the script, or in the main process. The script's remaining
transforms and its collate function run as before. The script's own object draws the box from the script's own generator, so
each item stays equal bit for bit, random draws included. A few items are compared before the loader is changed.
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
from headrace.accelerate.randomness import holds_generator, separate_randomness
from headrace.accelerate.recognise import FolderDataset, as_folder_dataset, open_rgb, require_native_formats
from headrace.accelerate.translate import (
    PILLOW_FILTERS,
    TIMM,
    V1,
    V2,
    Unsupported,
    display_name,
    flatten,
    full_name,
    interpolation_name,
)

__all__ = ["NativeDecodePart", "NativeImageLoader", "recognise_native_decode", "with_native_decode"]

#: Compare this many items with the script's own before a loader is changed.
COMPARED_ITEMS = 3

Box = tuple[int, int, int, int]


class NativeImageLoader:
    """The image loader that replaces that of a folder dataset: path -> Pillow image, cropped and resized.

    `first`: the script's first transform, which is applied here. `plain_loader`: the dataset's own image loader, for files that
    are not decoded natively. `resized`: False if only the crop is applied here, because the script resizes tensors, whose
    arithmetic differs.
    """

    def __init__(self, first: Any, plain_loader: Callable[[Any], Any], *, resized: bool) -> None:
        self.first = first
        self.plain_loader = plain_loader
        self.resized = resized

    def __call__(self, path: Any) -> Any:
        """Return the image that the script's image loader and its first transform would make of a file."""
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
        """Draw box, result size (height, width) and filter by the script's own object from its own generator."""
        kind = type(self.first).__name__
        if kind == "Resize":
            return (0, 0, width, height), _resized_size(self.first, width, height), interpolation_name(self.first.interpolation)
        # One byte, viewed as a whole image: only the size matters. A meta tensor would cost a second of imports the first time.
        image = torch.empty((), dtype=torch.uint8).expand(3, height, width)
        if full_name(self.first).startswith(V2):
            drawn = self.first.make_params([image])
            box = (drawn["left"], drawn["top"], drawn["width"], drawn["height"])
        else:
            top, left, cut_height, cut_width = self.first.get_params(image, self.first.scale, self.first.ratio)
            box = (left, top, cut_width, cut_height)
        if not self.resized:
            return box, (box[3], box[2]), "bilinear"
        size, resample = self.first.size, self.first.interpolation
        if isinstance(resample, tuple | list):  # timm's interpolation="random", drawn after the box
            resample = random.choice(resample)
        return box, (int(size[0]), int(size[-1])), interpolation_name(resample)


class ResizeOnly:
    """The resize of the script's RandomResizedCrop, on a tensor that is already cropped."""

    def __init__(self, crop: Any) -> None:
        self.crop = crop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResizeOnly) and other.crop is self.crop

    def __hash__(self) -> int:
        return id(self.crop)

    def __call__(self, image: Any) -> Any:
        """Resize as the transform's own `forward` does after its crop."""
        is_v2 = full_name(self.crop).startswith(V2)
        package = "torchvision.transforms.v2.functional" if is_v2 else "torchvision.transforms.functional"
        crop = self.crop
        return sys.modules[package].resize(image, list(crop.size), interpolation=crop.interpolation, antialias=crop.antialias)


def _resized_size(resize: Any, width: int, height: int) -> tuple[int, int]:
    """Return (height, width) after torchvision's Resize (`_compute_resized_output_size`)."""
    functional = sys.modules["torchvision.transforms.functional"]
    size = [resize.size] if isinstance(resize.size, int) else list(resize.size)
    out_height, out_width = functional._compute_resized_output_size((height, width), size, resize.max_size)
    return int(out_height), int(out_width)


class NativeDecodeDataset(torch.utils.data.Dataset[Any]):
    """timm's ImageDataset, with native decode in place of opening the file and the first transform."""

    def __init__(self, dataset: Any, image_loader: NativeImageLoader, remaining: RemainingTransforms) -> None:
        self.dataset = dataset
        self.image_loader = image_loader
        self.remaining = remaining

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # absent while the object is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return an item as `ImageDataset.__getitem__` does, which is called where a file cannot be opened."""
        path, target = self.dataset.reader.samples[index]
        try:
            image = self.image_loader(path)
        except OSError:
            return self.dataset[index]
        image = self.remaining(image)
        transform = self.dataset.target_transform
        return image, target if transform is None else transform(target)


class RemainingTransforms:
    """The script's transforms after the first, applied one after the other."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.operations = tuple(operations)

    def __call__(self, image: Any) -> Any:
        """Return the result of the script's whole transform for an image of `NativeImageLoader`."""
        for operation in self.operations:
            image = operation(image)
        return image


@dataclass(frozen=True, slots=True)
class _ReplacedTransform:
    """The transform of one folder dataset: the step that is applied natively, and the remaining steps."""

    first: Any
    remaining: tuple[Any, ...]
    resized: bool


#: The transforms with which the items of a loader were equal, so that the next epoch need not compare again.
_compared: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()


def with_native_decode(loader: Any) -> tuple[Any, str]:
    """Return a copy of the DataLoader that decodes natively, and the name of the transform that is applied natively.

    The script's own loader is not changed. Raise `Unsupported` if the first transform has no native equivalent, or if an item
    comes out different.
    """
    dataset, replaced = _natively_decoded(loader)
    operations = tuple(operation for one in replaced for operation in (one.first, *one.remaining))
    if _compared.get(loader) != operations:
        _require_equal_items(loader.dataset, dataset)
        _compared[loader] = operations
    changed = copy.copy(loader)
    changed.__dict__["dataset"] = dataset  # DataLoader's __setattr__ forbids it after __init__; this is a copy
    return changed, _part(replaced).first


@dataclass(frozen=True, slots=True)
class NativeDecodePart:
    """What native decode applies of a loader: the name of the `first` transform, and whether it also resizes the image."""

    first: str
    resized: bool


def recognise_native_decode(loader: Any) -> NativeDecodePart:
    """Apply the rules of `with_native_decode` without comparing items, so that no code of the script runs.

    Raise `Unsupported` if native decode does not fit the loader. `with_native_decode` may still find an item different.
    """
    return _part(_natively_decoded(loader)[1])


def _part(replaced: Sequence[_ReplacedTransform]) -> NativeDecodePart:
    crop_only = "" if replaced[0].resized else " (the crop only)"
    return NativeDecodePart(f"{display_name(replaced[0].first)}{crop_only}", replaced[0].resized)


def _natively_decoded(loader: Any) -> tuple[Any, list[_ReplacedTransform]]:
    """Return a copy of the loader's dataset that decodes natively, and the transform of each folder dataset in it."""
    if isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset):
        raise Unsupported("its dataset is iterable, without indices")
    replaced: list[_ReplacedTransform] = []
    return _with_native_decode(loader.dataset, replaced), replaced


def _with_native_decode(dataset: Any, replaced: list[_ReplacedTransform]) -> Any:
    data = sys.modules["torch.utils.data"]
    changed = copy.copy(dataset)
    if type(dataset) is data.Subset:
        changed.dataset = _with_native_decode(dataset.dataset, replaced)
    elif type(dataset) is data.ConcatDataset:
        changed.datasets = [_with_native_decode(part, replaced) for part in dataset.datasets]
    else:
        folder = as_folder_dataset(dataset, 0)
        require_native_formats([folder])
        image_loader, remaining = _split_transform(folder)
        for operation in (*remaining, folder.target_transform):
            if holds_generator(operation):
                # To compare items would advance it, and the script's workers would inherit that.
                raise Unsupported(f"transform {display_name(operation)} has a random generator of its own")
        if folder.open_image is open_rgb:
            changed = NativeDecodeDataset(dataset, image_loader, RemainingTransforms(remaining))
        else:
            changed.loader, changed.transform = image_loader, RemainingTransforms(remaining)
        replaced.append(_ReplacedTransform(image_loader.first, tuple(remaining), image_loader.resized))
    return changed


def _split_transform(folder: FolderDataset) -> tuple[NativeImageLoader, list[Any]]:
    """Return the native image loader for a folder dataset, and the transforms that remain for the script."""
    operations = list(flatten(folder.dataset.transform))
    names = [full_name(operation) for operation in operations]
    if not operations:
        raise Unsupported("it has no transform")
    crops = (V1 + "RandomResizedCrop", V2 + "RandomResizedCrop")
    if names[0] in (*crops, V1 + "Resize", V2 + "Resize", TIMM + "transforms.RandomResizedCropAndInterpolation"):
        filters = interpolation_name(operations[0].interpolation)
        if not set(filters.split(" or ")) <= PILLOW_FILTERS:
            raise Unsupported(f"interpolation {filters}")
        return NativeImageLoader(operations[0], folder.open_image, resized=True), operations[1:]
    to_tensor = (V2 + "ToImage", V2 + "PILToTensor", V1 + "PILToTensor")
    if len(names) > 1 and names[0] in to_tensor and names[1] in crops:
        image_loader = NativeImageLoader(operations[1], folder.open_image, resized=False)
        return image_loader, [operations[0], ResizeOnly(operations[1]), *operations[2:]]
    raise Unsupported(f"transform {display_name(operations[0])} comes first")


def _require_equal_items(plain: Any, native: Any) -> None:
    """Compare a few items with the script's own, with equal draws. Raise `Unsupported` if an item differs."""
    count = len(plain)
    for seed, index in enumerate(sorted({0, count // 2, count - 1})[:COMPARED_ITEMS]):
        with separate_randomness(seed):
            theirs = plain[index]
            after = torch.get_rng_state()
        with separate_randomness(seed):
            ours = native[index]
            same_draws = torch.equal(after, torch.get_rng_state())
        if not same_draws or not _equal(ours, theirs):
            raise Unsupported(f"item {index} came out different")


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
