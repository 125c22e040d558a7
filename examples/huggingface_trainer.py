"""Hugging Face's Trainer: override `get_train_dataloader`, and give it batches as dictionaries.

pip install transformers accelerate
python examples/huggingface_trainer.py --data /data/photos --out runs/vit
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import headrace as hr
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


class Batches:
    """A loader whose batches are the keyword arguments of the model."""

    def __init__(self, loader: hr.Loader) -> None:
        self.loader, self.set_epoch = loader, loader.set_epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for images, labels in self.loader:
            yield {"pixel_values": images, "labels": labels}


class ImageTrainer(Trainer):
    def __init__(self, data: str, image_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.data, self.image_size = data, image_size

    def get_train_dataloader(self) -> Any:
        transform = hr.transforms.imagenet_train(self.image_size, normalize=True)
        device, batch_size = str(self.args.device), self.args.per_device_train_batch_size
        return Batches(hr.Loader(self.data, batch_size, transform, device=device, dtype="float32", seed=self.args.seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    labels = dict(enumerate(hr.open(args.data).classes))
    config = ViTConfig(image_size=args.image_size, num_hidden_layers=args.layers, id2label=labels)
    trainer = ImageTrainer(
        args.data,
        args.image_size,
        model=ViTForImageClassification(config),
        args=TrainingArguments(
            args.out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            save_strategy="no",
            report_to=[],
        ),
    )
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
