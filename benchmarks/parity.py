"""Learning parity: the same training, fed by torchvision's DataLoader and by headrace, with several seeds each.

    python benchmarks/parity.py [--data TAR_OR_FOLDER] [--epochs N] [--seeds N] [--write]

torchvision's unmodified ResNet-18 learns to classify small photographs: a folder or a tar that holds train/CLASS/*.jpg and
test/CLASS/*.jpg; by default the CIFAR-10 JPEGs of the optional test data. Random area crops and mirror images, SGD with
Nesterov momentum, one cycle, bf16 autocast. Only the input differs: ImageFolder, PIL transforms and DataLoader on one side,
`headrace.Loader` on the other. The same torchvision evaluation scores both. Parity means that the mean final accuracies
differ by no more than the standard error of the difference plus 0.5 points. `--runs FILE` stores finished runs, so an
interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import headrace
import machine_facts
import record
import torch
from torchvision import datasets, models, transforms

SIZE = 32
BATCH = 256
SCALE = (0.35, 1.0)  # crops of at least a third of so small an image
RATE, DECAY, SMOOTHING = 0.1, 5e-4, 0.1
MEAN, STD = headrace.transforms.IMAGENET_MEAN, headrace.transforms.IMAGENET_STD
Batches = Callable[[int], Iterable[tuple[Any, Any]]]  # of one epoch


def torchvision_input(folder: Path, seed: int) -> tuple[Batches, int]:
    """Return the usual input of a PyTorch script: batches of an epoch, and their number."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=SCALE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    torch.manual_seed(seed)
    data = datasets.ImageFolder(str(folder), transform)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, drop_last=True)
    return lambda epoch: loader, len(loader)


def headrace_input(folder: Path, seed: int) -> tuple[Batches, int]:
    """Return the same input made by headrace."""
    make = headrace.transforms
    transform = make.Compose(
        [make.RandomResizedCrop(SIZE, scale=SCALE), make.RandomHorizontalFlip(), make.Normalize(MEAN, STD)]
    )
    loader = headrace.Loader(str(folder), BATCH, transform=transform, seed=seed, dtype="float32", threads=1)

    def batches(epoch: int) -> Iterable[tuple[Any, Any]]:
        loader.set_epoch(epoch)
        return loader

    return batches, len(loader)


INPUTS = {"torchvision": torchvision_input, "headrace": headrace_input}


def accuracy_of(name: str, data: Path, seed: int, epochs: int) -> float:
    """Train once; return the final accuracy on the test images in per cent."""
    batches, steps = INPUTS[name](data / "train", seed)
    torch.manual_seed(1000 + seed)
    model = models.resnet18(num_classes=sum(1 for _ in (data / "train").iterdir())).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=DECAY, nesterov=True, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    for epoch in range(epochs):
        model.train()
        for images, labels in batches(epoch):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model(images.contiguous(memory_format=torch.channels_last)), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"{name} seed {seed} epoch {epoch + 1}/{epochs}: loss {loss.item():.3f}", flush=True)
    return _score(model.eval(), data / "test")


def _score(model: Any, folder: Path) -> float:
    transform = transforms.Compose([transforms.Resize(SIZE), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    right = seen = 0
    with torch.inference_mode():
        for images, labels in torch.utils.data.DataLoader(datasets.ImageFolder(str(folder), transform), 256):
            right += int((model(images).argmax(1) == labels).sum())
            seen += len(labels)
    return 100 * right / seen


def document(runs: list[dict[str, Any]], epochs: int) -> dict[str, Any]:
    """Return the results as a document."""
    found = {name: [run["accuracy"] for run in runs if run["input"] == name] for name in INPUTS}
    means = {name: statistics.mean(values) for name, values in found.items()}
    spreads = {name: statistics.stdev(values) for name, values in found.items()}
    error = math.sqrt(sum(spreads[name] ** 2 / len(found[name]) for name in INPUTS))
    difference = means["headrace"] - means["torchvision"]
    settings = {
        "size": SIZE,
        "epochs": epochs,
        "batch_size": BATCH,
        "rate": RATE,
        "weight_decay": DECAY,
        "label_smoothing": SMOOTHING,
        "crop_scale": SCALE,
    }
    return record.document(
        "parity",
        ["torch", "torchvision", "pillow"],
        settings=settings,
        rows=[
            {"input": name, "accuracy": values, "mean": means[name], "deviation": spreads[name]}
            for name, values in found.items()
        ],
        difference=difference,
        standard_error=error,
        within=abs(difference) <= error + 0.5,
    )


def _unpacked(data: Path, into: Path) -> Path:
    if data.is_dir():
        return data
    with tarfile.open(data) as tar:
        tar.extractall(into, filter="data")
    return next(path.parent for path in into.rglob("train") if path.is_dir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.environ.get("HEADRACE_TEST_DATA", str(machine_facts.REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(root) / "cifar10-jpeg-14k.tar")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("parity-runs.jsonl"), help="finished runs, a JSON line each")
    parser.add_argument("--write", action="store_true", help="write the results and the pages")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    runs = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        data = _unpacked(arguments.data, Path(folder))
        for seed in range(arguments.seeds):
            for name in INPUTS:
                if any((run["input"], run["seed"], run["epochs"]) == (name, seed, arguments.epochs) for run in runs):
                    continue
                began = time.perf_counter()
                accuracy = accuracy_of(name, data, seed, arguments.epochs)
                runs.append(
                    {
                        "input": name,
                        "seed": seed,
                        "epochs": arguments.epochs,
                        "accuracy": accuracy,
                        "seconds": time.perf_counter() - began,
                    }
                )
                with arguments.runs.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(f"{name} seed {seed}: {accuracy:.2f} % in {runs[-1]['seconds']:.0f} s", flush=True)
    found = document([run for run in runs if run["epochs"] == arguments.epochs], arguments.epochs)
    record.publish(found, save=arguments.write)


if __name__ == "__main__":
    main()
