"""Rules by which `headrace run` takes over a DataLoader over folders of images.

`Recognition.folders` (`recognition.py`) applies the rules in this order. Each raises `Unsupported` with its reason.

1. The dataset of the loader is indexed (not an IterableDataset), torch's default device is the CPU, and `batch_size` is not
   None. No code looks inside torch's iterators.
2. The collate function is torch's `default_collate` or timm's `fast_collate`, and there is no `target_transform`. Code of the
   script is proven before it runs in the main process (`script_code.calls`): `whole.items` takes such a loader.
3. With workers, a `worker_init_fn` only seeds random generators (`seeding.py`).
4. The dataset is torchvision's `ImageFolder` or `DatasetFolder`, timm's `ImageDataset` over folders, or a `Subset` or
   `ConcatDataset` of these. The dataset is not empty, and Pillow opens its images. A subclass does not override `__getitem__`
   or `__len__`.
5. All parts of the dataset share one transform.
6. Each step of the transform has an exact native equivalent (`translate.py`).
7. The transform fixes the size of the images.
8. At most 2 % of the files have a format that is not decoded natively.
9. The value-by-value steps (ToTensor, Normalize, …) give the same result for equal values (`pointwise.py`), in a value type
   that the native engine writes.

`--check` (`check.py`) then refuses a loader whose images differ. A loader that fails a rule may still be decoded natively
inside its own workers (`native_decode.py`). `hook.py` calls all of these in turn, and `recognition_hook.py` asks the rules
only. Nothing here changes the loader, or calls code of the script that may draw random numbers.
"""

from __future__ import annotations

import copy
import inspect
import io
import multiprocessing
import operator
import pathlib
import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.iterator_watchers import looks_at_iterators
from headrace.accelerate.script.library_code import is_installed
from headrace.accelerate.script.seeding import only_seeds
from headrace.accelerate.script_code.calls import has_own_default_collate
from headrace.accelerate.script_code.deep_copies import is_unchangeable
from headrace.accelerate.transforms.names import display_name, full_name
from headrace.accelerate.transforms.pointwise import ValueTable
from headrace.accelerate.transforms.translate import TransformParts
from headrace.accelerate.workers.settings import PILLOWS_PIXEL_LIMIT, changed_setting
from headrace.system.text.sizes import percent_text

__all__ = [
    "CollateKind",
    "FolderDataset",
    "Locate",
    "RecognisedLoader",
    "as_folder_dataset",
    "collate_kind",
    "describe",
    "kept_indices",
    "locate",
    "one_transform",
    "open_rgb",
    "require_batches_of_indices",
    "require_fixed_size",
    "require_native_endings",
    "require_native_values",
    "require_no_code_of_targets",
    "require_no_pixel_limit",
    "require_plain_indices",
    "require_seeding_only",
    "require_settings_of_workers",
    "require_unwatched_iterators",
    "sampled_paths",
    "start_method",
]

#: Kinds of collate functions: torch's `default_collate`, timm's `fast_collate`, or code of the script.
CollateKind = Literal["list", "timm", "code"]

#: File extensions of the formats that the native decoder decodes exactly as Pillow does.
NATIVE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm")

#: The dtypes of tensors that the native engine can write.
NATIVE_DTYPES = frozenset({"uint8", "float32", "float16", "bfloat16"})

#: Refuse a dataset if more than this share of its files has other extensions: the script's slower code loads such files.
MAX_OTHER_SHARE = 0.02

#: Methods of a dataset that Python calls when an attribute is read, and when a copy is made or ends.
CALLED_UNSEEN = (
    "__getattribute__",
    "__getattr__",
    "__copy__",
    "__del__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
)

#: Estimate the share of other extensions (`MAX_OTHER_SHARE`) from this many paths.
SAMPLED_PATHS = 4096


@dataclass(frozen=True, slots=True)
class FolderDataset:
    """One folder dataset (such as `ImageFolder`) inside the loader's dataset.

    `samples` is the dataset's own list of (path, target). Its first sample is number `first` among the samples of all folder
    datasets. `open_image` is the function with which the dataset opens a path as a Pillow image.
    """

    dataset: Any
    first: int
    samples: Sequence[tuple[str, Any]]
    open_image: Callable[[Any], Any]
    target_transform: Callable[[Any], Any] | None


Locate = Callable[[int], tuple[FolderDataset, int]]
"""Function from an index of the loader's dataset to a folder dataset and the position in it."""


@dataclass(frozen=True, slots=True)
class RecognisedLoader:
    """A DataLoader over folders of images to which all rules apply.

    `locate(index)` returns the folder dataset and the position in it for an index of the loader's dataset. `collate` is the
    kind of the collate function: "list" for `default_collate`, "timm" for timm's tuple with int64 targets. ("code", any other
    function, is only for items: `whole.items`.)
    """

    folders: tuple[FolderDataset, ...]
    locate: Locate
    transform: TransformParts
    value_table: ValueTable
    collate: CollateKind


def one_transform(folders: Sequence[FolderDataset]) -> Any:
    """Return the transform that all folder datasets share. Raise `Unsupported` if they have different ones."""
    transform = folders[0].dataset.transform
    for folder in folders[1:]:
        if folder.dataset.transform is not transform:
            raise Unsupported("its parts have different transforms", "one transform for all")
    return transform


def require_native_values(values: ValueTable, collate: CollateKind) -> None:
    """Raise `Unsupported` if the native engine cannot write tensors of these values and dtype."""
    if collate == "timm" and not values.identity:
        raise Unsupported("timm's fast_collate gets values that are not uint8 pixels")
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in NATIVE_DTYPES or (dtype == "uint8" and not values.identity):
        raise Unsupported(f"its transform yields {values.dtype} values that are not stored natively")


def describe(dataset: Any) -> str:
    """Return a dataset's name for messages: `ImageFolder(/data/train)`, `Subset of ImageFolder(/data/train)`."""
    data, name = sys.modules["torch.utils.data"], type(dataset).__name__
    if type(dataset) is data.Subset:
        return f"Subset of {describe(dataset.dataset)}"
    if type(dataset) is data.ConcatDataset:
        return f"ConcatDataset of {len(dataset.datasets)}"
    # What the object holds itself: reading an attribute may run code of the script.
    held = getattr(dataset, "__dict__", {})
    for root in (held.get("root"), getattr(held.get("reader"), "__dict__", {}).get("root")):
        if type(root) in (str, pathlib.PosixPath, pathlib.WindowsPath):
            return f"{name}({root})"
    return name


def locate(dataset: Any, folders: list[FolderDataset], *, kept: bool = False) -> Locate:
    """Return a function that maps an index of `dataset` to a folder dataset and the position in it.

    The folder datasets found are appended to `folders`. `Subset` and `ConcatDataset` may be nested. `kept`: the function uses
    the indices that each `Subset` has now, as worker processes do, even if they change. Raise `Unsupported` for any other
    dataset.
    """
    data = sys.modules["torch.utils.data"]
    if type(dataset) is data.Subset:
        inner, indices = locate(dataset.dataset, folders, kept=kept), dataset.indices
        if kept:
            indices = kept_indices(indices)
        return lambda index: inner(indices[index])
    if type(dataset) is data.ConcatDataset:
        return _locate_in_parts(dataset, folders, kept=kept)
    folder = as_folder_dataset(dataset, sum(len(folder.samples) for folder in folders))
    folders.append(folder)
    count = len(folder.samples)

    def find(index: int) -> tuple[FolderDataset, int]:
        position = operator.index(index)  # a Subset's indices may be a tensor's or an array's elements
        return folder, position + count if position < 0 else position

    return find


def kept_indices(indices: Any) -> Any:
    """Return a copy of the indices of a `Subset`."""
    return indices.clone() if hasattr(indices, "clone") else copy.copy(indices)  # a copied tensor shares its memory


def _locate_in_parts(dataset: Any, folders: list[FolderDataset], *, kept: bool) -> Locate:
    inner = [locate(part, folders, kept=kept) for part in dataset.datasets]
    ends = list(dataset.cumulative_sizes)

    def find(index: int) -> tuple[FolderDataset, int]:
        if index < 0:
            if -index > ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index += ends[-1]
        part = bisect_right(ends, index)
        return inner[part](index - (ends[part - 1] if part else 0))

    return find


def as_folder_dataset(dataset: Any, first: int) -> FolderDataset:
    """Return a dataset as a `FolderDataset`. Raise `Unsupported` if code of the script opens its images."""
    if full_name(dataset) == "timm.data.dataset.ImageDataset":
        return _timm_folder(dataset, first)
    folder_module = sys.modules.get("torchvision.datasets.folder")
    name = type(dataset).__name__
    if folder_module is None or not isinstance(dataset, folder_module.DatasetFolder):
        raise Unsupported(
            f"dataset {name} is not an image folder", "torchvision's ImageFolder or timm's ImageDataset", kind="code"
        )
    for method in ("__getitem__", "__len__"):
        if getattr(type(dataset), method) is not getattr(folder_module.DatasetFolder, method):
            raise Unsupported(f"dataset {name} has its own {method}", "the library's own", kind="code")
    if getattr(dataset, "__getitems__", None) is not None:
        raise Unsupported(f"dataset {name} has its own __getitems__", "the library's own", kind="code")
    _require_plain_attributes(dataset, name)
    _require_pillow_loader(dataset, folder_module)
    if not dataset.samples:
        raise Unsupported(f"dataset {name} is empty", kind="code")
    return FolderDataset(dataset, first, dataset.samples, dataset.loader, dataset.target_transform)


def _require_plain_attributes(dataset: Any, name: str) -> None:
    """Raise `Unsupported` if reading an attribute of a folder dataset, or copying it, may call code of the script."""
    for method in CALLED_UNSEEN:
        if any(method in vars(parent) for parent in type(dataset).__mro__ if parent is not object):
            raise Unsupported(f"dataset {name} has its own {method}", "the library's own", kind="code")
    for attribute in ("samples", "loader", "transform", "target_transform"):
        if attribute not in vars(dataset) or any(attribute in vars(parent) for parent in type(dataset).__mro__):
            raise Unsupported(f"dataset {name} has its own {attribute}", "the library's own", kind="code")


def _timm_folder(dataset: Any, first: int) -> FolderDataset:
    """Read timm's ImageDataset over its folder reader, which opens, converts to RGB, transforms (`timm/data/dataset.py`)."""
    reader = dataset.reader
    if full_name(reader) != "timm.data.readers.reader_image_folder.ReaderImageFolder":
        raise Unsupported(f"dataset ImageDataset reads with timm's {type(reader).__name__}, not from a folder")
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or getattr(dataset, "additional_features", None) is not None:
        raise Unsupported("dataset ImageDataset yields other things than RGB images and targets")
    if not reader.samples:
        raise Unsupported("dataset ImageDataset is empty", kind="code")
    return FolderDataset(dataset, first, reader.samples, open_rgb, dataset.target_transform)


def open_rgb(source: Any) -> Any:
    """Open a file, given by path or bytes, as an RGB Pillow image, as timm's ImageDataset does."""
    from PIL import Image

    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        return Image.open(file).convert("RGB")


def _require_pillow_loader(dataset: Any, folder_module: Any) -> None:
    torchvision = sys.modules["torchvision"]
    pillow = dataset.loader is folder_module.pil_loader or (
        dataset.loader is folder_module.default_loader and torchvision.get_image_backend() == "PIL"
    )
    if not pillow:
        display_name = getattr(dataset.loader, "__name__", type(dataset.loader).__name__)
        raise Unsupported(
            f"its image loader is {display_name}, not torchvision's Pillow loader", "torchvision's default loader", kind="code"
        )


def require_batches_of_indices(loader: Any) -> None:
    """Raise `Unsupported` unless the loader makes batches of a dataset with indices, on the CPU."""
    if isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset):
        raise Unsupported("its dataset is iterable, without indices", "a dataset with __getitem__ and __len__")
    if sys.modules["torch"].get_default_device().type != "cpu":
        raise Unsupported("torch's default device is not the CPU", "the default device")
    if loader.batch_sampler is None:
        raise Unsupported("it has batch_size=None and makes no batches", "a batch size")
    begin = getattr(type(loader.batch_sampler), "__iter__", None)
    is_own = isinstance(begin, types.FunctionType) and not is_installed(begin.__code__.co_filename)
    if loader.num_workers > 0 and is_own and not inspect.isgeneratorfunction(begin):  # it may change what workers start with
        raise Unsupported("the __iter__ of its batch sampler runs code of the script", "an __iter__ that yields")


def require_unwatched_iterators() -> None:
    """Raise `Unsupported` if a module looks inside torch's iterators, which would then find another one."""
    if module := looks_at_iterators():
        raise Unsupported(f"{module} looks inside torch's iterator or for its workers")


def require_no_pixel_limit() -> None:
    """Raise `Unsupported` if Pillow would warn of large images that the native decoder accepts."""
    pillow: Any = sys.modules.get("PIL.Image")
    if pillow is not None and (pillow.MAX_IMAGE_PIXELS or PILLOWS_PIXEL_LIMIT) < PILLOWS_PIXEL_LIMIT:
        raise Unsupported("the script has lowered PIL.Image.MAX_IMAGE_PIXELS", "Pillow's own limit")


def require_seeding_only(loader: Any) -> None:
    """Raise `Unsupported` if the loader has workers whose `worker_init_fn` may do more than seed random generators."""
    own = loader.worker_init_fn if loader.num_workers > 0 else None
    if own is not None and not only_seeds(own, forked=start_method(loader) in ("", "fork")):
        raise Unsupported("its worker_init_fn may do more than seed random generators", "one that only seeds random generators")


def start_method(loader: Any) -> str:
    """Return how the workers of a loader are started: "fork", "spawn" or "forkserver"; an empty text if it has none."""
    context = loader.multiprocessing_context or multiprocessing
    return str(context.get_start_method()) if loader.num_workers > 0 else ""


def require_settings_of_workers(loader: Any, *, own_transforms: bool) -> None:
    """Raise `Unsupported` if workers that are not forked may have other settings or variables than this process has now.

    They import the script anew: what its `main` has set does not reach them. `own_transforms`: code of the script is among the
    transforms.
    """
    method = start_method(loader)
    if method in ("", "fork"):
        return
    if own_transforms:
        raise Unsupported(f"its workers are started by {method} and have variables of their own", "workers that are forked")
    if (setting := changed_setting()) is not None:
        raise Unsupported(
            f"its workers are started by {method}, and the script has changed {setting}", "workers that are forked"
        )


def require_plain_indices(dataset: Any) -> None:
    """Raise `Unsupported` if the indices of a `Subset` are not numbers: reading them would call code of the script."""
    data, torch = sys.modules["torch.utils.data"], sys.modules["torch"]
    if type(dataset) is data.ConcatDataset:
        for part in dataset.datasets:
            require_plain_indices(part)
    elif type(dataset) is data.Subset:
        indices = dataset.indices
        kinds = set(map(type, indices)) if type(indices) in (list, tuple) else {int}
        is_plain = type(indices) in (list, tuple, range, torch.Tensor, np.ndarray)
        if not is_plain or not all(kind in (int, torch.Tensor) or is_unchangeable(kind) for kind in kinds):
            raise Unsupported(
                f"dataset Subset has indices of the type {type(indices).__name__}", "a list of numbers", kind="code"
            )
        if isinstance(indices, torch.Tensor) and indices.is_shared():  # workers would see what the loop writes
            raise Unsupported("dataset Subset has indices in shared memory", "a list of numbers", kind="code")
        require_plain_indices(dataset.dataset)


def require_no_code_of_targets(folders: Sequence[FolderDataset]) -> None:
    """Raise `Unsupported` if a folder dataset calls code of the script with its targets."""
    for folder in folders:
        if folder.target_transform is not None:
            raise Unsupported(f"its target_transform {display_name(folder.target_transform)} is not known", "none", kind="code")


def collate_kind(collate: Any) -> CollateKind:
    """Return "list" for `default_collate`, "timm" for timm's `fast_collate`. Raise `Unsupported` for any other."""
    if collate is sys.modules["torch.utils.data"].default_collate:
        if has_own_default_collate():
            raise Unsupported("the script has added types to torch's default_collate")
        return "list"
    timm = sys.modules.get("timm.data.loader")
    if timm is not None and collate is timm.fast_collate:
        return "timm"
    raise Unsupported(f"collate_fn {display_name(collate)} is not known", "torch's default_collate", kind="code")


def require_fixed_size(parts: TransformParts) -> None:
    """Raise `Unsupported` unless a step fixes the image size: `default_collate` stacks images of one size only."""
    for step in reversed(parts.geometry):
        if step.name in ("RandomResizedCrop", "CenterCrop", "RandomCrop"):
            return
        if step.name == "Resize" and isinstance(step.arguments["size"], tuple):
            return
    raise Unsupported("its transform does not fix the image size", "CenterCrop, RandomCrop or RandomResizedCrop in it")


def sampled_paths(folders: Sequence[FolderDataset]) -> list[str]:
    """Return up to `SAMPLED_PATHS` paths of each folder dataset, spread over it."""
    return [str(folder.samples[i][0]) for folder in folders for i in _spread(len(folder.samples))]


def require_native_endings(paths: Sequence[str]) -> None:
    """Raise `Unsupported` if more than 2 % of these file names have extensions of formats without a native decoder."""
    others = sum(not path.lower().endswith(NATIVE_ENDINGS) for path in paths)
    if others > MAX_OTHER_SHARE * len(paths):
        reason = f"{percent_text(others / len(paths))} of its files are in formats that are not decoded natively"
        raise Unsupported(reason, "JPEG, PNG, WebP, BMP, TIFF or GIF files")


def _spread(count: int) -> range:
    return range(0, count, max(1, count // SAMPLED_PATHS))
