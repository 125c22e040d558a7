"""Train ResNet-18 on a folder of images, one sub-folder per class.

On a machine without a GPU, `--device sim:a100` gives every step the time it would take on an A100. The model is then a small
stand-in whose loss and gradients are real, and each step waits until 1/2,470 s per image has passed. That is the rate of
ResNet-50 in mixed precision on one A100 (NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, measured with 21.03).
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

SIMULATED_IMAGES_PER_SECOND = 2470
WARM_UP_STEPS = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with one sub-folder per class")
    parser.add_argument("--images", type=int, default=10_000, help="images to train on after the warm-up")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "sim:a100")
    parser.add_argument("--log", help="write the measurements to this file, as JSON")
    return parser.parse_args()


class StandIn(nn.Module):
    """A linear classifier on a 7 × 7 grid of pixels: a model for simulated GPUs that learns and costs almost no CPU time."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 7 * 7, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images[:, :, 16::32, 16::32].flatten(1))


def make_loader(args: argparse.Namespace) -> DataLoader:
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    return DataLoader(
        datasets.ImageFolder(args.data, augment),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.workers > 0,
        drop_last=True,
    )


def make_model(device: torch.device, classes: int, *, simulated: bool) -> nn.Module:
    if simulated:
        torch.set_num_threads(1)  # the stand-in needs no more, and the loader's workers need the cores
        return StandIn(classes)
    return models.resnet18(num_classes=classes).to(device)


def train(loader: DataLoader, device: torch.device, name: str, *, steps: int, simulated: bool) -> dict[str, object]:
    """Train for `steps` steps; return losses, batch shapes, and the time after the warm-up."""
    model = make_model(device, len(loader.dataset.classes), simulated=simulated)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    step, losses, shapes = 0, [], set()
    started = waited = printed = 0.0
    while step < steps:
        ready = time.perf_counter()
        for images, labels in loader:
            now = time.perf_counter()
            if step == WARM_UP_STEPS:
                started, waited = ready, 0.0
            waited += now - ready
            shapes.add((tuple(images.shape), str(images.dtype), tuple(labels.shape), str(labels.dtype)))
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=not simulated):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if simulated:
                time.sleep(max(0.0, now + len(images) / SIMULATED_IMAGES_PER_SECOND - time.perf_counter()))
            step += 1
            if step % 10 == 0 or step == steps:
                losses.append(loss.item())
            ready = time.perf_counter()
            if ready - printed > 2 or step == steps:
                printed = ready
                print(f"{name}: step {step}/{steps}  loss {loss.item():.3f}", flush=True)
            if step == steps:
                break
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "wait_share": waited / seconds, "losses": losses, "batches": sorted(shapes)}


def main() -> None:
    args = parse_arguments()
    loader = make_loader(args)
    if len(loader) == 0:
        raise SystemExit(f"{args.data}: fewer images than one batch of {args.batch_size}")
    simulated = args.device.startswith("sim:")
    device = torch.device("cpu" if simulated else args.device)
    name = "simulated A100" if simulated else str(device)
    steps = WARM_UP_STEPS + math.ceil(args.images / args.batch_size)
    measured = train(loader, device, name, steps=steps, simulated=simulated)
    images, seconds = (steps - WARM_UP_STEPS) * args.batch_size, measured["seconds"]
    print(f"{name}: {images} images in {seconds:.1f} s = {images / seconds:.0f} img/s", flush=True)
    if args.log:
        facts = {"device": name, "images": images, "steps": steps, "img_s": images / seconds, **measured}
        Path(args.log).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
