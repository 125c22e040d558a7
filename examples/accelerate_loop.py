"""Hugging Face Accelerate: the loop of its documentation; only the loader is not given to `prepare`.

    pip install accelerate
    accelerate launch examples/accelerate_loop.py --data /data/photos

`prepare` would put a sampler and device copies around a DataLoader. headrace.Loader has both: rank and world size are those of
torch.distributed, which Accelerator initialises, and `device` is the accelerator's.
"""

from __future__ import annotations

import argparse

import headrace as hr
import torch
import torchvision
from accelerate import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images on each process")
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()

    accelerator = Accelerator()  # before the Loader, which asks torch.distributed for the rank
    transform = hr.transforms.imagenet_train(args.image_size, normalize=True)
    loader = hr.Loader(args.data, args.batch_size, transform, device=str(accelerator.device), dtype="float32", seed=0)
    model = torchvision.models.resnet18(num_classes=len(loader.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    for epoch in range(args.epochs):
        for images, labels in loader:
            with accelerator.accumulate(model), accelerator.autocast():
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {accelerator.gather(loss.detach()).mean().item():.3f}")


if __name__ == "__main__":
    main()
