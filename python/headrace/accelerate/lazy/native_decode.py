"""Take over a loader in part: native code opens, decodes, crops and resizes the image files in the script's own workers.

One native call replaces the first steps of each item: open the file, decode it, crop a random box, resize. It decodes only
what the box needs. It runs where the item is made: in a worker of the script, or in the main process. The script's remaining
transforms and its collate function run as before. The script's own object draws the box from the script's own generator, so
each item stays equal bit for bit, random draws included. A few images are compared after these steps before the loader is
changed; nothing of the script is called for that.
"""

from __future__ import annotations

import copy
import io
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headrace._native import decode_into, image_size
from headrace.accelerate.lazy.partly_native import PartlyNative
from headrace.accelerate.runtime.unsupported import Refusal, Unsupported, required
from headrace.accelerate.script.loader_copies import loader_copy
from headrace.accelerate.script.quiet_files import is_quiet
from headrace.accelerate.script.replaced_functions import require_own_functions
from headrace.accelerate.transforms.names import V2, display_name, full_name, interpolation_name
from headrace.accelerate.whole.first_transform import FirstTransform
from headrace.accelerate.whole.folders import open_rgb
from headrace.accelerate.whole.recognition import Recognition
from headrace.accelerate.workers.randomness import separate_randomness
from headrace.system.text.sizes import count_text

__all__ = [
    "NativeImageLoader",
    "cuts_tensors",
    "equal_images",
    "require_equal_lazy_images",
    "with_native_decode",
]

#: Number of images compared with the script's before a loader is changed. `--check` compares more.
COMPARED_IMAGES = 3

#: Choose the images to compare from this many files of each folder dataset, spread over it.
MOST_COMPARED = 1024

#: The modes of a JPEG file whose `info` Pillow's `convert("RGB")` passes on as it is.
KEEPS_INFO = ("RGB", "L", "CMYK")

Box = tuple[int, int, int, int]


class NativeImageLoader:
    """Replacement of a folder dataset's image loader: takes a path, returns the cropped and resized Pillow image.

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
        # Pillow opens a file that it warns of once.
        info = _jpeg_info(data) if is_quiet(data) else None
        if info is None:
            return self.plain(path)
        width, height = image_size(data)
        box, (out_height, out_width), resample = self._draw(width, height)
        pixels = np.empty((1, out_height, out_width, 3), dtype=np.uint8)
        if decode_into([data], pixels, out_height, out_width, [box], None, 1, resample) == [0]:
            image = Image.fromarray(pixels[0])
            image.info = info
            return image
        image = self.plain_loader(path).crop((box[0], box[1], box[0] + box[2], box[1] + box[3]))
        return image.resize((out_width, out_height), Image.Resampling[resample.upper()]) if self.resized else image

    def decodes(self, path: Any) -> bool:
        """Return whether a file is a JPEG that is decoded natively."""
        with open(path, "rb") as file:
            return _jpeg_info(file.read()) is not None

    def plain(self, path: Any) -> Any:
        """Return the image of `__call__` as the script makes it: without native decode.

        A first transform that resizes tensors is not applied, only its crop.
        """
        image = self.plain_loader(path)
        if self.resized:
            return self.first(image)
        (left, top, width, height), _, _ = self._draw(*image.size)
        return image.crop((left, top, left + width, top + height))

    def _draw(self, width: int, height: int) -> tuple[Box, tuple[int, int], str]:
        """Draw box, result size (height, width) and filter by the script's own transform from its own generator."""
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


def _jpeg_info(data: bytes) -> dict[Any, Any] | None:
    """Return the `info` of a JPEG's image after `convert("RGB")`. None for other files, which Pillow decodes.

    Pillow's parser reads the header: a transform of the script may look at the EXIF data or the colour profile.
    """
    from PIL import Image

    try:
        header = Image.open(io.BytesIO(data), formats=("JPEG",))
    except (OSError, ValueError, SyntaxError):
        return None
    return header.info if header.format == "JPEG" and header.mode in KEEPS_INFO else None


class ResizeOnly:
    """The resize step of the script's RandomResizedCrop, for a tensor that is already cropped."""

    def __init__(self, crop: Any) -> None:
        self.crop = crop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResizeOnly) and other.crop is self.crop

    def __hash__(self) -> int:
        return id(self.crop)

    def __call__(self, image: Any) -> Any:
        """Resize as `RandomResizedCrop.forward` does after its crop."""
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
    """timm's ImageDataset with native decoding in place of opening the file and applying the first transform."""

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
        """Return an item. A file that cannot be opened is passed to timm's own `ImageDataset.__getitem__`."""
        path, target = self.dataset.reader.samples[index]
        try:
            image = self.image_loader(path)
        except OSError:
            return self.dataset[index]
        image = self.remaining(image)
        transform = self.dataset.target_transform
        return image, target if transform is None else transform(target)


class RemainingTransforms:
    """The script's transforms after the first one, applied in order."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.operations = tuple(operations)

    def __call__(self, image: Any) -> Any:
        """Return the script's transformed image, given an image of `NativeImageLoader`."""
        for operation in self.operations:
            image = operation(image)
        return image


@dataclass(frozen=True, slots=True)
class _ReplacedTransform:
    """The transform of one folder dataset, split into the step that is applied natively and the remaining ones."""

    image_loader: NativeImageLoader
    remaining: tuple[Any, ...]
    paths: tuple[str, ...]

    @property
    def native(self) -> tuple[Callable[[Any], Any], ...]:
        """The operations from a path to the first image that is compared."""
        return (self.image_loader,) if self.image_loader.resized else (self.image_loader, *self.remaining[:2])

    @property
    def plain(self) -> tuple[Callable[[Any], Any], ...]:
        """The script's operations from the opened image to the image that is compared."""
        first = self.image_loader.first
        return (first,) if self.image_loader.resized else (self.remaining[0], first)


#: The transforms with which the images of a loader were equal, and the result, so that the next epoch need not compare again.
_compared: WeakKeyDictionary[Any, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()
_lazily_compared: WeakKeyDictionary[Any, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()


def with_native_decode(recognition: Recognition, images: int = 0) -> PartlyNative:
    """Return a copy of the DataLoader that decodes natively, and the name of the transform that is applied natively.

    `images`: compare this many images with the script's first (default and least: 3). The script's own loader is not changed.
    Raise `Unsupported` if the first transform has no native equivalent, or if an image comes out different.
    """
    loader, transforms = recognition.loader, required(recognition.first_transforms)
    replaced = list(map(_replaced, transforms))
    require_own_functions()  # native code takes the place of `Image.open`, of the crop and of the resize
    operations = _operations(replaced)
    if loader not in _compared or _compared[loader][0] != operations:
        _compared[loader] = operations, _require_equal_images(replaced, max(images, COMPARED_IMAGES))
    changed = loader_copy(loader)
    # DataLoader's __setattr__ forbids it after __init__; this is a copy.
    changed.__dict__["dataset"] = _with_native_decode(loader.dataset, iter(replaced))
    return PartlyNative(changed, f"decode and {transforms[0].name}", _compared[loader][1])


def cuts_tensors(recognition: Recognition) -> bool:
    """Return whether native decode is possible, and the first transform crops and resizes tensors (not Pillow images)."""
    transforms = recognition.first_transforms
    return not isinstance(transforms, Refusal) and not transforms[0].resized


def require_equal_lazy_images(recognition: Recognition, count: int) -> str | None:
    """Compare `count` images of a folder dataset after its first transform, with and without lazy images, with equal draws.

    Return the result in words; None for an unknown dataset or first transform. Raise `Unsupported` if an image or a draw
    differs.
    """
    loader, transforms = recognition.loader, recognition.first_transforms
    if isinstance(transforms, Refusal):
        return None
    replaced = list(map(_replaced, transforms))
    operations = _operations(replaced)
    if loader not in _lazily_compared or _lazily_compared[loader][0] != operations:
        _lazily_compared[loader] = operations, _require_equal_images(replaced, count, lazily=True)
    return _lazily_compared[loader][1]


def _operations(replaced: Sequence[_ReplacedTransform]) -> tuple[Any, ...]:
    return tuple(operation for one in replaced for operation in (one.image_loader.first, *one.remaining))


def _replaced(transform: FirstTransform) -> _ReplacedTransform:
    """Return the native image loader for a folder dataset, and the transforms that remain for the script."""
    folder, (first, *others) = transform.folder, transform.operations
    image_loader = NativeImageLoader(transform.applied, folder.open_image, resized=transform.resized)
    remaining = others if transform.resized else [first, ResizeOnly(others[0]), *others[1:]]
    paths = tuple(str(folder.samples[at][0]) for at in _spread(len(folder.samples)))
    return _ReplacedTransform(image_loader, tuple(remaining), paths)


def _with_native_decode(dataset: Any, replaced: Iterator[_ReplacedTransform]) -> Any:
    """Return a copy of a dataset that decodes natively. `replaced`: for each folder dataset in it, in their order."""
    data = sys.modules["torch.utils.data"]
    if type(dataset) is data.Subset:
        changed = copy.copy(dataset)
        changed.dataset = _with_native_decode(dataset.dataset, replaced)
    elif type(dataset) is data.ConcatDataset:
        changed = copy.copy(dataset)
        changed.datasets = [_with_native_decode(part, replaced) for part in dataset.datasets]
    else:
        one = next(replaced)
        remaining = RemainingTransforms(one.remaining)
        if one.image_loader.plain_loader is open_rgb:
            return NativeDecodeDataset(dataset, one.image_loader, remaining)
        changed = copy.copy(dataset)
        changed.loader, changed.transform = one.image_loader, remaining
    return changed


def _spread(count: int) -> list[int]:
    return sorted({int(at) for at in np.linspace(0, count - 1, min(count, MOST_COMPARED))})


def _require_equal_images(replaced: Sequence[_ReplacedTransform], count: int, *, lazily: bool = False) -> str:
    """Compare `count` images after the first transform with the script's, with equal draws. Return the result in words.

    `lazily`: compare lazy images, not native decode. Only functions of libraries and a copy of the first transform are called,
    nothing of the script. Raise `Unsupported` if an image or a draw differs, or if native decode finds no JPEG among the files.
    """
    images = [(one, path) for one in replaced for path in one.paths]
    chosen = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64))
    compared, jpegs = 0, 0
    for number in chosen:
        one, path = images[number]
        native, plain = copy.deepcopy((one.plain if lazily else one.native, one.plain))
        try:
            with separate_randomness(int(number)):
                theirs = _applied(plain, one.image_loader.plain_loader(path))
                after = _generator_states()
        except OSError:  # a broken file raises its error in the script, as ever
            continue
        with separate_randomness(int(number)):
            ours = _lazily_applied(native, one.image_loader.plain_loader, path) if lazily else _applied(native, path)
            same_draws = after == _generator_states()
        if not same_draws or not equal_images(ours, theirs):
            raise Unsupported(f"image {path} came out different after {display_name(one.image_loader.first)}")
        compared += 1
        jpegs += one.image_loader.decodes(path)
    if compared and not jpegs and not lazily:
        raise Unsupported("none of its first files is a JPEG")
    return f"{count_text(compared, 'image')} and the random draws equal"


def _applied(operations: Sequence[Callable[[Any], Any]], image: Any) -> Any:
    for operation in operations:
        image = operation(image)
    return image


def _lazily_applied(operations: Sequence[Callable[[Any], Any]], open_image: Callable[[Any], Any], path: str) -> Any:
    from headrace.accelerate.lazy.opening import lazy_images

    with lazy_images():
        image = _applied(operations, open_image(path))
    getattr(image, "im", None)  # the pixels are made: the image is an ordinary one from here on
    return image


def _generator_states() -> tuple[bytes, Any, bytes]:
    state: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), state[1].tobytes() + repr(state[2:]).encode()


def equal_images(ours: Any, theirs: Any) -> bool:
    """Return whether two images are equal: Pillow's by class, mode, size, pixels and `info`, tensors by class, type and values.

    `Image.__eq__` compares other things too, such as palettes that are not used.
    """
    if isinstance(ours, torch.Tensor):
        return bool(type(ours) is type(theirs) and ours.dtype == theirs.dtype and torch.equal(ours, theirs))
    if type(ours) is not type(theirs) or ours.mode != theirs.mode or ours.size != theirs.size:
        return False
    return bool(np.array_equal(np.asarray(ours), np.asarray(theirs))) and bool(ours.info == theirs.info)
