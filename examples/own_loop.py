"""A training loop of your own, with a checkpoint that continues in the middle of an epoch.

    python examples/own_loop.py --data /data/photos --checkpoint last.pt

`--data` is an image folder (FOLDER/CLASS/*.jpg) or a packed dataset. Start the same command again after a kill: it continues
at the next batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import headrace as hr
import torch
import torchvision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--checkpoint", type=Path, default=Path("last.pt"))
    parser.add_argument("--checkpoint-steps", type=int, default=100)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    loader = hr.Loader(
        args.data,
        args.batch_size,
        hr.transforms.imagenet_train(args.image_size, normalize=True),
        device=device,  # uint8 crosses the bus; the GPU normalises
        dtype="float32",
        seed=0,
    )
    model = torchvision.models.resnet18(num_classes=len(loader.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-5)
    step = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # epoch and batch; refused in words if the data is another
        step = saved["step"]
        print(f"continues at step {step}, epoch {loader.epoch}")

    while loader.epoch < args.epochs:
        for images, labels in loader:  # one pass is one epoch, or the rest of one after a restart
            loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.checkpoint_steps == 0:
                print(f"step {step}: loss {loss.item():.3f}")
                save(args.checkpoint, model, optimizer, loader, step)
        print(f"epoch {loader.epoch} of {args.epochs} done, loss {loss.item():.3f}")
        save(args.checkpoint, model, optimizer, loader, step)
    print(loader.stats())


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: hr.Loader, step: int) -> None:
    """Write a checkpoint in one piece: a kill leaves the old one or the new one."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "step": step}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
