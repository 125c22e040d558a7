"""The loaders that trials compare, one function each: a cell and a folder of images → one pass over batches.

Each does the work of its cell's list of operations, with as many workers or threads as the cell says. In `faithful` cells
each side does what the article's script did, which is not the same work (`headrace.trials.measuring.peers`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from headrace.datasets.open import open as open_dataset
from headrace.loading.loader import Loader
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import Source, workers_of
from headrace.trials.experiment.transforms import headrace_transform, torchvision_transform
from headrace.trials.inputs.article_datasets import article_dataset
from headrace.trials.inputs.storage import open_stored
from headrace.trials.measuring import peers

__all__ = ["NEEDS", "gpu_name", "has_gpu", "missing", "open_loader"]

NEEDS: dict[str, tuple[tuple[str, ...], bool]] = {
    "pytorch": (("torch", "torchvision", "PIL"), False),
    "run": (("torch", "torchvision", "PIL"), False),
    "headrace": (("torch",), False),
    "headrace-exact": (("torch",), False),
    "headrace-packed": (("torch",), False),
    "headrace-gpu": (("torch",), True),
    "torchvision-gpu": (("torch", "torchvision"), True),
    "dali-cpu": (("nvidia.dali",), False),
    "dali-gpu": (("nvidia.dali",), True),
    "tfdata": (("tensorflow",), False),
}
"""Loader → the packages that it needs besides headrace, and whether it needs a CUDA GPU."""


REFUSED = {"ffcv": "refused, not the same work: it has no rotation, and resizes with OpenCV's area average"}
"""Loaders that cannot do the operations of any list of transforms, each with the reason."""


def missing(loader: str, data: str = "folder") -> str | None:
    """Return why a loader cannot be measured here (a package, a GPU, the same operations), in words; None if it can."""
    if loader in REFUSED:
        return REFUSED[loader]
    packages, gpu = NEEDS[loader]
    for package in (*packages, "obstore") if data == "s3" else packages:
        if not _installed(package):
            return f"{package.replace('nvidia.dali', 'nvidia-dali')} is not installed"
    if gpu and not has_gpu():
        return "needs a CUDA GPU"
    return None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def has_gpu() -> bool:
    """Return whether there is an NVIDIA GPU with a driver."""
    return gpu_name() is not None


def gpu_name() -> str | None:
    """Return the name of the first NVIDIA GPU, or None where there is none with a driver."""
    from headrace.system.hardware.nvml import find_driver

    driver, _ = find_driver()
    return driver.gpus[0].name if driver and driver.gpus else None


def open_loader(cell: Cell, source: Source) -> Iterable[Any]:
    """Return an iterable over the (images, labels) of one pass. Images are float32 (N, 3, H, W), or uint8 with `fixed`."""
    makers: dict[str, Callable[[Cell, Source], Iterable[Any]]] = {
        "pytorch": _pytorch,
        "run": _pytorch,
        "headrace": _headrace,
        "headrace-exact": _headrace,
        "headrace-packed": _headrace,
        "headrace-gpu": _headrace,
    }
    if cell.loader in makers:
        return makers[cell.loader](cell, source)
    return peers.open_peer(cell, source)


def _pytorch(cell: Cell, source: Source) -> Iterable[Any]:
    import torch
    from torch.utils.data import DataLoader

    transform = torchvision_transform(cell.transform, cell.load, validation=source.validation, fixed=source.fixed)
    loader: Iterable[Any] = DataLoader(
        article_dataset(cell, source.path, transform),
        batch_size=cell.batch_size,
        # The article's script passes a sampler only to several hosts and no `shuffle`, so one host reads class after class.
        shuffle=not (source.fixed or source.validation or cell.mode == "faithful"),
        num_workers=workers_of(cell),
        pin_memory=torch.cuda.is_available(),
    )
    return loader


def _headrace(cell: Cell, source: Source) -> Iterable[Any]:
    on_gpu = cell.loader == "headrace-gpu"
    loader: Iterable[Any] = Loader(
        open_stored(source.path, cell.data) if cell.data in ("s3", "pipe") else open_dataset(source.path),
        cell.batch_size,
        headrace_transform(cell.transform, cell.load, validation=source.validation, fixed=source.fixed),
        shuffle="block:64MiB" if cell.data == "pipe" else not (source.fixed or source.validation),
        drop_last=False,
        rank=0,
        world_size=1,
        threads=max(1, workers_of(cell)),
        device="cuda" if on_gpu else "cpu" if source.fixed else source.device,
        decode="auto" if on_gpu else "cpu",
        dtype="uint8" if source.fixed else "float32",
        fuse="off" if cell.loader == "headrace-exact" else "geometry",
    )
    return loader
