"""One GPU: the model alone, the loaders alone, and training with each loader. Needs CUDA.

    python benchmarks/gpu_feed.py [--images FOLDER] [--models resnet18 resnet50 …] [--seconds S] [--write]

For each model: compute-only (the same batch again and again), then training end to end from torch's DataLoader and from
headrace. For each loader: ingest-only (no model; batches end on the GPU). Training is a real step: forward, cross-entropy,
backward, SGD with Nesterov momentum, bf16 autocast, channels-last. Throughput is measured between synchronised points over
at least `--seconds`, after a warm-up. GPU utilisation is nvidia-smi's (share of time with a running kernel), sampled twice
a second.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import headrace
import loaders as loaders_benchmark
import record
import torch
from torchvision import models as torchvision_models

BATCH = 256


class Utilisation:
    """The GPU utilisation that nvidia-smi reports while a `with` block runs."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._stop.wait(0.5):
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                self.samples.append(float(run.stdout.splitlines()[0]))

    def __enter__(self) -> Utilisation:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def median(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None


def headrace_batches(source: str) -> Callable[[Path], Iterator[Any]]:
    def make(root: Path) -> Iterator[Any]:
        data = loaders_benchmark.repeated(headrace.open(root / source))
        transform = headrace.transforms.imagenet_train(224, normalize=True)
        loader = headrace.Loader(data, BATCH, transform, device="cuda", dtype="bfloat16", threads=loaders_benchmark.CORES)
        while True:
            yield from loader

    return make


def torch_batches(root: Path) -> Iterator[Any]:
    """Yield batches of the usual script's loader: PIL transforms in worker processes, pinned memory, non-blocking copy."""
    from torch.utils.data import DataLoader

    base = loaders_benchmark.pytorch(root, True)
    assert isinstance(base, DataLoader)
    loader = DataLoader(
        base.dataset,
        BATCH,
        shuffle=True,
        num_workers=loaders_benchmark.CORES,
        drop_last=True,
        pin_memory=True,
        persistent_workers=True,
    )
    while True:
        for images, labels in loader:
            yield images.to("cuda", non_blocking=True, memory_format=torch.channels_last), labels.to("cuda", non_blocking=True)


def same_batch(root: Path) -> Iterator[Any]:
    images, labels = next(headrace_batches("pack")(root))
    while True:
        yield images, labels


SOURCES: dict[str, Callable[[Path], Iterator[Any]]] = {
    "compute only": same_batch,
    "torch DataLoader": torch_batches,
    "headrace, image folder": headrace_batches("folder"),
    "headrace, packed": headrace_batches("pack"),
}


def trainer(name: str) -> Callable[[Any, Any], None]:
    model = getattr(torchvision_models, name)().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def rate(batches: Iterable[Any], step: Callable[[Any, Any], None] | None, seconds: float) -> tuple[float, float | None]:
    """Return images per second and the median GPU utilisation in per cent."""
    iterator = iter(batches)
    for _ in range(8):
        images, labels = next(iterator)
        if step:
            step(images, labels)
    torch.cuda.synchronize()
    count, began = 0, time.perf_counter()
    with Utilisation() as utilisation:
        while time.perf_counter() - began < seconds:
            for _ in range(4):
                images, labels = next(iterator)
                if step:
                    step(images, labels)
            count += 4
            torch.cuda.synchronize()
        wall = time.perf_counter() - began
    return count * BATCH / wall, utilisation.median()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="a folder of JPEG photographs (default: the test sample)")
    parser.add_argument("--models", nargs="+", default=["resnet18", "resnet50", "resnet152"])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE instead, without pages")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; this benchmark measures a real GPU or nothing")
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        count = loaders_benchmark.prepare(args.images, root)
        for source in list(SOURCES)[1:]:
            img_s, _ = rate(SOURCES[source](root), None, args.seconds)
            rows.append({"model": None, "source": source, "img_s": img_s, "of_compute_only": None, "gpu_utilisation": None})
            print(rows[-1], file=sys.stderr)
        for model in args.models:
            step, ceiling = trainer(model), 0.0
            for source, make in SOURCES.items():
                img_s, busy = rate(make(root), step, args.seconds)
                ceiling = ceiling or img_s
                row = {"model": model, "source": source, "img_s": img_s, "of_compute_only": img_s / ceiling}
                rows.append({**row, "gpu_utilisation": None if busy is None else busy / 100})
                print(rows[-1], file=sys.stderr)
            del step
            torch.cuda.empty_cache()
    settings = {"batch_size": BATCH, "size": 224, "photographs": count, "workers": loaders_benchmark.CORES}
    record.publish(
        record.document("gpu", loaders_benchmark.PACKAGES, settings=settings, rows=rows), save=args.write, file=args.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
