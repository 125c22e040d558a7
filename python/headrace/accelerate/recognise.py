"""What a DataLoader's work is, and whether headrace can do the same work exactly.

`recognise` reads a `torch.utils.data.DataLoader` and returns a `Recognition` (the records, the transform taken apart, the value
table), or raises `Refused` with the reason in words. It looks at exact types and at the functions that would really run, so a
subclass that changes what an item is, is left alone. It never changes the loader.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.accelerate.pointwise import ValueTable, tabulate
from headrace.accelerate.translate import Expressed, Refused, name_of, shown, translate

__all__ = ["Folder", "Recognition", "Refused", "describe", "find_folder", "locate", "recognise", "refuse_other_formats"]

Pack = Literal["list", "timm", "own"]

#: Endings of files that the native side decodes exactly as Pillow does.
NATIVE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm")

#: Share of files that may be others: they go through the script's own path one by one, which is only fast if they are few.
MAX_OTHER_SHARE = 0.02

#: How many paths are looked at to estimate that share.
SAMPLED_PATHS = 4096

#: Modules, and attributes of theirs, that a worker_init_fn may name if all it does is seed generators that the native path does
#: not use.
SEEDED_MODULES = frozenset({"random", "numpy", "numpy.random", "torch", "torch.random", "torch.utils.data"})
SEEDING_NAMES = frozenset(
    {"initial_seed", "seed", "manual_seed", "get_worker_info", "random", "utils", "data", "id", "seed_all", "numpy", "torch"}
)

#: worker_init_fns of frameworks, known to seed only (functools.partial of them too).
FRAMEWORK_SEEDING = frozenset(
    {
        "lightning.fabric.utilities.seed.pl_worker_init_function",
        "lightning_fabric.utilities.seed.pl_worker_init_function",
        "timm.data.loader._worker_init",
    }
)


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder dataset (`ImageFolder` and kin) below the loader's dataset.

    `samples` is the dataset's own list of (path, target); its first one is record number `first` of all folders together.
    `open_image` is what the dataset itself makes a Pillow image of a path with.
    """

    dataset: Any
    first: int
    samples: Sequence[tuple[str, Any]]
    open_image: Callable[[Any], Any]
    target_transform: Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True)
class Recognition:
    """A DataLoader whose work is understood.

    `locate(index)` gives the folder and the position in it of an index of the loader's dataset. `pack` says what the collate
    function makes of images and targets: a list of the batch and default_collate's targets, timm's tuple with int64, or what
    the script's own function makes of the items ("own").
    """

    folders: tuple[Folder, ...]
    locate: Callable[[int], tuple[Folder, int]]
    expressed: Expressed
    table: ValueTable
    pack: Pack


def recognise(loader: Any) -> Recognition:
    """Understands a DataLoader's work, or raises `Refused`."""
    _refuse_loader(loader)
    folders: list[Folder] = []
    find = locate(loader.dataset, folders)
    transform = folders[0].dataset.transform
    for folder in folders[1:]:
        if folder.dataset.transform is not transform:
            raise Refused("its parts have different transforms")
    expressed = translate(transform)
    _refuse_open_size(expressed)
    refuse_other_formats(folders)
    return Recognition(tuple(folders), find, expressed, tabulate(expressed.pointwise), _pack(loader.collate_fn))


def describe(dataset: Any) -> str:
    """A dataset in a few words: `ImageFolder(/data/train)`, `Subset of ImageFolder(/data/train)`."""
    name = type(dataset).__name__
    if name == "Subset":
        return f"Subset of {describe(dataset.dataset)}"
    if name == "ConcatDataset":
        return f"ConcatDataset of {len(dataset.datasets)}"
    root = getattr(dataset, "root", None) or getattr(getattr(dataset, "reader", None), "root", None)
    return f"{name}({root})" if isinstance(root, str | os.PathLike) else name


def locate(dataset: Any, folders: list[Folder]) -> Callable[[int], tuple[Folder, int]]:
    """A function from an index of `dataset` to (folder, position in it); the folders found are added to `folders`.

    Understands `Subset` and `ConcatDataset` (nested) of folder datasets; raises `Refused` for anything else.
    """
    data = sys.modules["torch.utils.data"]
    if type(dataset) is data.Subset:
        inner, indices = locate(dataset.dataset, folders), dataset.indices
        return lambda index: inner(indices[index])
    if type(dataset) is data.ConcatDataset:
        return _locate_in_parts(dataset, folders)
    folder = find_folder(dataset, sum(len(folder.samples) for folder in folders))
    folders.append(folder)
    count = len(folder.samples)

    def find(index: int) -> tuple[Folder, int]:
        position = operator.index(index)  # a Subset's indices may be a tensor's or an array's elements
        return folder, position + count if position < 0 else position

    return find


def _locate_in_parts(dataset: Any, folders: list[Folder]) -> Callable[[int], tuple[Folder, int]]:
    inner = [locate(part, folders) for part in dataset.datasets]
    ends = list(dataset.cumulative_sizes)

    def find(index: int) -> tuple[Folder, int]:
        if index < 0:
            if -index > ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index += ends[-1]
        part = bisect_right(ends, index)
        return inner[part](index - (ends[part - 1] if part else 0))

    return find


def find_folder(dataset: Any, first: int) -> Folder:
    """The dataset as a folder of images that torchvision's own `__getitem__` reads with Pillow, or `Refused`."""
    if name_of(dataset) == "timm.data.dataset.ImageDataset":
        return _timm_folder(dataset, first)
    folder_module = sys.modules.get("torchvision.datasets.folder")
    name = type(dataset).__name__
    if folder_module is None or not isinstance(dataset, folder_module.DatasetFolder):
        raise Refused(f"dataset {name} is not an image folder")
    for method in ("__getitem__", "__len__"):
        if getattr(type(dataset), method) is not getattr(folder_module.DatasetFolder, method):
            raise Refused(f"dataset {name} has its own {method}")
    if getattr(dataset, "__getitems__", None) is not None:
        raise Refused(f"dataset {name} has its own __getitems__")
    _refuse_image_loader(dataset, folder_module)
    if not dataset.samples:
        raise Refused(f"dataset {name} is empty")
    return Folder(dataset, first, dataset.samples, dataset.loader, dataset.target_transform)


def _timm_folder(dataset: Any, first: int) -> Folder:
    """timm's ImageDataset over its folder reader: opens, converts to RGB, transforms (`timm/data/dataset.py`)."""
    reader = dataset.reader
    if name_of(reader) != "timm.data.readers.reader_image_folder.ReaderImageFolder":
        raise Refused(f"timm's {type(reader).__name__}")
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or getattr(dataset, "additional_features", None) is not None:
        raise Refused("timm's ImageDataset with other than RGB images and targets")
    if not reader.samples:
        raise Refused("dataset ImageDataset is empty")
    return Folder(dataset, first, reader.samples, open_rgb, dataset.target_transform)


def open_rgb(path: Any) -> Any:
    """A file as an RGB Pillow image, as timm's ImageDataset opens it."""
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def _refuse_image_loader(dataset: Any, folder_module: Any) -> None:
    torchvision = sys.modules["torchvision"]
    pillow = dataset.loader is folder_module.pil_loader or (
        dataset.loader is folder_module.default_loader and torchvision.get_image_backend() == "PIL"
    )
    if not pillow:
        shown = getattr(dataset.loader, "__name__", type(dataset.loader).__name__)
        raise Refused(f"its image loader is {shown}, not torchvision's Pillow loader")


def _refuse_loader(loader: Any) -> None:
    data = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, data.IterableDataset):
        raise Refused("its dataset is iterable, without indices")
    if sys.modules["torch"].get_default_device().type != "cpu":
        raise Refused("torch's default device is not the CPU")
    if loader.batch_sampler is None:
        raise Refused("batch_size=None")
    _pack(loader.collate_fn)
    if loader.num_workers > 0 and loader.worker_init_fn is not None and not only_seeds(loader.worker_init_fn):
        raise Refused("worker_init_fn may do more than seed")


def _pack(collate: Any) -> Pack:
    if collate is sys.modules["torch.utils.data"].default_collate:
        return "list"
    if f"{getattr(collate, '__module__', '')}.{getattr(collate, '__qualname__', '')}" == "timm.data.loader.fast_collate":
        return "timm"
    if _begins_with_default(collate):
        return "own"
    raise Refused(f"collate_fn {shown(collate)}")


def _begins_with_default(collate: Any) -> bool:
    """True if a script's collate function names torch's default_collate and no worker: then it takes a list of (image, target)
    like any other and works on the whole batch, as mixup and cutmix do, and may be called in the main process."""
    function = collate if hasattr(collate, "__code__") else vars(type(collate)).get("__call__")
    code = getattr(function, "__code__", None)
    if code is None or function is None or "get_worker_info" in code.co_names:
        return False
    default = sys.modules["torch.utils.data"].default_collate
    captured = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    named = [function.__globals__.get(name) for name in code.co_names]
    return any(value is default for value in captured + named) or "default_collate" in code.co_names


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False


def only_seeds(function: Any) -> bool:
    """True if a worker_init_fn can do nothing but seed generators.

    Either it is a framework's known one, or every name in its code is a seeding module, a function of one that seeds or asks
    for a seed, or a plain number.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    if f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', '')}" in FRAMEWORK_SEEDING:
        return True
    code = getattr(function, "__code__", None)
    if code is None or any(isinstance(value, type(code)) for value in code.co_consts):
        return False
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    named = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    attributes = {name for name in code.co_names if name not in function.__globals__}
    return all(_seeds_or_number(value) for value in captured + named) and attributes <= SEEDING_NAMES


def _seeds_or_number(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in SEEDED_MODULES
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    return isinstance(value, int | float) or (
        name in SEEDING_NAMES and str(module).split(".")[0] in ("torch", "numpy", "random")
    )


def _refuse_open_size(expressed: Expressed) -> None:
    """default_collate stacks, so every image must have one size: the last sizing step fixes it."""
    for step in reversed(expressed.geometry):
        if step.name in ("RandomResizedCrop", "CenterCrop", "RandomCrop"):
            return
        if step.name == "Resize" and isinstance(step.arguments["size"], tuple):
            return
    raise Refused("its transform does not fix the image size")


def refuse_other_formats(folders: Sequence[Folder]) -> None:
    """Raises `Refused` if more than a few of the files, by their names, are in formats that the native side does not decode."""
    paths = [str(folder.samples[i][0]) for folder in folders for i in _spread(len(folder.samples))]
    others = sum(not path.lower().endswith(NATIVE_ENDINGS) for path in paths)
    if others > MAX_OTHER_SHARE * len(paths):
        raise Refused(f"{others / len(paths):.0%} of its files are in formats that are not decoded natively")


def _spread(count: int) -> range:
    return range(0, count, max(1, count // SAMPLED_PATHS))
