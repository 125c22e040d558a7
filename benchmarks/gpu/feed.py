"""One GPU: the model alone, the loaders alone, and training with each loader: the page results/gpu.md.

For each model: compute-only (the same batch again and again), then training end to end from each loader. For each loader:
ingest-only (no model; batches end on the GPU). Training is a real step: forward, cross-entropy, backward, SGD with Nesterov
momentum, bf16 autocast, channels-last. Throughput is measured between synchronised points, after a warm-up of eight batches.
GPU utilisation is nvidia-smi's (share of time with a running kernel), sampled twice a second.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import record
import torch
from headrace.transforms.composition import IMAGENET_MEAN, IMAGENET_STD
from loader_peers import repeated

from gpu.setting import CORES, MODELS, Row, Run, endless, trainer

__all__ = ["feed", "utilisation"]

PACKAGES = ["headrace", "pillow", "torch", "torchvision", "triton", "numpy"]
Source = Callable[[Run, int, int], Iterator[Any]]


@contextlib.contextmanager
def utilisation() -> Iterator[list[float]]:
    """Collect the GPU utilisation in per cent that NVML reports, twice a second, while the block runs."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
    found: list[float] = []
    try:
        process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        process.terminate()
        output, _ = process.communicate()
        found += [float(line) for line in output.splitlines() if line.strip().isdigit()]


def _headrace(source: str, decode: str) -> Source:
    def make(run: Run, size: int, batch: int) -> Iterator[Any]:
        data = repeated(headrace.open(run.folder / source))
        transform = headrace.transforms.imagenet_train(size, normalize=True)
        dtype = "bfloat16" if run.is_gpu else "float32"
        how = decode if run.is_gpu else "auto"
        return endless(headrace.Loader(data, batch, transform, device=run.device, dtype=dtype, decode=how, threads=CORES))

    return make


def _torch(run: Run, size: int, batch: int) -> Iterator[Any]:
    """Yield batches of the usual script's loader: PIL transforms in worker processes, pinned memory, non-blocking copy."""
    from torch.utils.data import ConcatDataset, DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    loader = DataLoader(
        ConcatDataset([ImageFolder(str(run.folder / "folder"), transform)] * 20),
        batch,
        shuffle=True,
        num_workers=CORES,
        drop_last=True,
        pin_memory=run.is_gpu,
        persistent_workers=True,
    )
    for images, labels in endless(loader):
        yield (
            images.to(run.device, non_blocking=True, memory_format=torch.channels_last),
            labels.to(run.device, non_blocking=True),
        )


def _same(run: Run, size: int, batch: int) -> Iterator[Any]:
    pair = next(_headrace("pack", "cpu")(run, size, batch))
    while True:
        yield pair


SOURCES: dict[str, Source] = {
    "compute only": _same,
    "torch DataLoader": _torch,
    "headrace, image folder": _headrace("folder", "cpu"),
    "headrace, packed": _headrace("pack", "cpu"),
    "headrace, packed, GPU decode": _headrace("pack", "gpu"),
    "headrace, packed, split": _headrace("pack", "split"),
}


def _rate(run: Run, batches: Iterator[Any], step: Callable[[Any, Any], None] | None, batch: int) -> tuple[float, float | None]:
    """Return images per second and the median GPU utilisation in per cent."""

    def one() -> None:
        images, labels = next(batches)
        if step:
            step(images, labels)

    for _ in range(1 if run.is_tiny else 8):
        one()
    run.synchronize()
    count, began = 0, time.perf_counter()
    with utilisation() as busy:
        while count == 0 or time.perf_counter() - began < run.seconds:
            for _ in range(1 if run.is_tiny else 4):
                one()
                count += 1
            run.synchronize()
        img_s = count * batch / (time.perf_counter() - began)
    return img_s, statistics.median(busy) if busy else None


def feed(run: Run) -> list[Row]:
    """Measure all sources without and with each model, and leave the document of the page in the run's folder."""
    torch.backends.cudnn.benchmark = True
    size, batch = (32, 8) if run.is_tiny else (224, 256)
    rows: list[Row] = []
    for model in (None, *(MODELS[:1] if run.is_tiny else MODELS)):
        step, ceiling = None if model is None else trainer(run, model), 0.0
        for source, make in SOURCES.items():
            if model is None and source == "compute only":
                continue
            batches = make(run, size, batch)
            img_s, busy = _rate(run, batches, step, batch)
            del batches
            ceiling = ceiling or (img_s if model else 0.0)
            row: Row = {"model": model, "source": source, "img_s": img_s, "of_compute_only": img_s / ceiling if model else None}
            rows.append({**row, "gpu_utilisation": None if busy is None else busy / 100})
            run.note(rows)
            print(rows[-1], file=sys.stderr)
    photographs = len(list((run.folder / "folder").rglob("*.jpg")))
    settings = {"batch_size": batch, "size": size, "photographs": photographs, "workers": CORES}
    run.document("gpu", record.document("gpu", PACKAGES, settings=settings, rows=rows))
    return rows
