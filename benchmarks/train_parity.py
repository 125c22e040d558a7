"""`headrace train` beside a plain PyTorch loop with the same options: accuracy and cost.

    python benchmarks/train_parity.py [--data FOLDER] [--model NAME] [--epochs N] [--seeds N] […]

Small images (CIFAR's size) on the CPU. One side is torchvision's ImageFolder, DataLoader and transforms, torch's SGD and
cross entropy; the other side is the trainer. Both have the same architecture, batches, augmentation, learning rate at every
step, weight decay and evaluation. Random draws differ, so the figures are compared over seeds. "Within noise" means that
the means differ by less than two standard errors of their difference. Default data:
$HEADRACE_TEST_DATA/cifar10-jpeg-14k.tar (12,000 images to train, 2,000 to test).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
import torch
from headrace.training.loop import Options, train
from headrace.training.models import factory
from headrace.training.settings.optimization import OptimizationOptions
from headrace.transforms import IMAGENET_MEAN, IMAGENET_STD
from sample import REPOSITORY
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

SIZE, BATCH, WORKERS = 32, 64, 2
RATE, MOMENTUM, DECAY, SMOOTHING = 0.1, 0.9, 5e-4, 0.1  # the rate is for BATCH images
PACKAGES = ["headrace", "torch", "torchvision", "pillow", "numpy"]


@dataclass(slots=True)
class Way:
    """One way to train, with the results of each seed: top-1 (a share), seconds, CPU seconds of the process and its workers."""

    name: str
    run: Callable[[int], float]
    top1: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def measure(self, seed: int) -> None:
        """Train once."""
        begun_s, cpu_s = time.perf_counter(), _cpu_s()
        self.top1.append(self.run(seed))
        self.seconds.append(time.perf_counter() - begun_s)
        self.cpu_s.append(_cpu_s() - cpu_s)
        print(f"{self.name}, seed {seed}: top-1 {self.top1[-1]:.2%}, {self.seconds[-1]:.0f} s", flush=True)

    def row(self) -> dict[str, Any]:
        """Return the row of the page."""
        mean, run_s, cpu_s = (statistics.mean(one) for one in (self.top1, self.seconds, self.cpu_s))
        return {"way": self.name, "top1_mean": mean, "top1": self.top1, "run_s": run_s, "run_cpu_s": cpu_s}


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def plain(data: Path, model_name: str, epochs: int, half: bool, seed: int) -> float:
    """Train by a loop as in PyTorch's tutorials. Return top-1 on `data`/test."""
    torch.manual_seed(seed)
    normalise = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    augment = [v2.RandomCrop(SIZE, padding=4), v2.RandomHorizontalFlip()]
    training = datasets.ImageFolder(data / "train", v2.Compose([*augment, *normalise]))
    testing = datasets.ImageFolder(data / "test", v2.Compose(normalise))
    loader = DataLoader(training, BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    model = factory.build_model(model_name, classes=len(training.classes), image_size=SIZE).to(
        memory_format=torch.channels_last
    )
    optimizer = torch.optim.SGD(_groups(model), lr=RATE, momentum=MOMENTUM, nesterov=True)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    total, warm_up = epochs * len(loader), round(min(5.0, epochs / 10) * len(loader))
    step = 0
    for _ in range(epochs):
        model.train()
        for images, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = RATE * _share_of_rate(step, warm_up, total)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        batches = DataLoader(testing, 256, num_workers=WORKERS)
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
    return right / len(testing)


def _groups(model: torch.nn.Module) -> list[dict[str, object]]:
    """Return the parameter groups: norms and biases do not decay."""
    parameters = list(model.parameters())
    return [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": DECAY},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]


def _share_of_rate(step: int, warm_up: int, total: int) -> float:
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))


def ours(data: Path, out: Path, model_name: str, epochs: int, half: bool, seed: int) -> float:
    """Train the same by `headrace train`. Return top-1 on `data`/test."""
    result = train(
        Options(
            model=model_name,
            data=str(data / "train"),
            val=str(data / "test"),
            out=str(out / f"seed-{seed}"),
            epochs=epochs,
            batch_size=BATCH,
            image_size=SIZE,
            device="cpu",
            precision="bf16" if half else "fp32",
            seed=seed,
            optimization=OptimizationOptions(
                learning_rate=RATE * 256 / BATCH, momentum=MOMENTUM, weight_decay=DECAY, label_smoothing=SMOOTHING
            ),
        )
    )
    assert result.scores is not None
    return result.scores.top1


def main() -> None:
    """Train both ways with each seed, print the page, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with train and test inside, class folders in both")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--torch-threads", type=int, default=1, metavar="N", help="more are slow where others use the cores")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error("--seeds must be at least 2: one says nothing of the noise")
    torch.set_num_threads(given.torch_threads)
    half = given.precision == "bf16"
    with tempfile.TemporaryDirectory() as folder:
        data, out = given.data or unpacked(Path(folder)), Path(folder) / "runs"
        ways = [
            Way("plain PyTorch loop", lambda seed: plain(data, given.model, given.epochs, half, seed)),
            Way("headrace train", lambda seed: ours(data, out, given.model, given.epochs, half, seed)),
        ]
        for seed in range(given.seeds):
            for way in ways:
                way.measure(seed)
    record.publish(document(ways, given), save=given.write)


def unpacked(folder: Path) -> Path:
    """Unpack the sample into `folder`. Raise SystemExit with a message when it is not there."""
    root = Path(os.environ.get("HEADRACE_TEST_DATA", str(REPOSITORY.parent / "shared" / "data")))
    archive = root / "cifar10-jpeg-14k.tar"
    if not archive.exists():
        raise SystemExit(f"no {archive}: pass --data FOLDER")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "data", filter="data")
    return folder / "data"


def document(ways: list[Way], given: argparse.Namespace) -> dict[str, Any]:
    """Return the results as a document."""
    reference, trainer = ways
    difference = statistics.mean(trainer.top1) - statistics.mean(reference.top1)
    error = math.sqrt(sum(statistics.variance(way.top1) / len(way.top1) for way in ways))
    settings = {
        "model": given.model,
        "epochs": given.epochs,
        "precision": given.precision,
        "batch_size": BATCH,
        "seeds": given.seeds,
    }
    return record.document(
        "train_parity",
        PACKAGES,
        settings=settings,
        rows=[way.row() for way in ways],
        difference_points=difference * 100,
        standard_error_points=error * 100,
        within_noise=abs(difference) < 2 * error,
    )


if __name__ == "__main__":
    main()
