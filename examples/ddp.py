"""Distributed data parallel, one process a GPU; without GPUs on the CPU with gloo.

    torchrun --nproc-per-node 8 examples/ddp.py --data /data/packed/train

The loader takes rank and world size from torch.distributed: no DistributedSampler, and every rank has equally many batches.
"""

from __future__ import annotations

import argparse
import os

import headrace as hr
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images on each rank")
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")  # before the Loader, which asks it for the rank
    torch.manual_seed(0)
    loader = hr.Loader(
        args.data,
        args.batch_size,
        hr.transforms.imagenet_train(args.image_size, normalize=True),
        device=device,
        dtype="float32",
        seed=0,  # the same on all ranks: together they read each record once an epoch
    )
    network = torchvision.models.resnet18(num_classes=len(loader.classes)).to(device)
    model = DistributedDataParallel(network, device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * dist.get_world_size(), momentum=0.9)
    for epoch in range(args.epochs):
        images_seen = 0
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            images_seen += len(labels)
        total = torch.tensor([images_seen], device=device)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item()} images on {dist.get_world_size()} ranks, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
