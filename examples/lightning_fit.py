"""Lightning: the loader goes where a DataLoader goes.

    pip install lightning
    python examples/lightning_fit.py --data /data/photos

For several GPUs, make the loader in `train_dataloader` of the module, as here: Lightning calls it in each process, after
torch.distributed is initialised.
"""

from __future__ import annotations

import argparse
from typing import Any

import headrace as hr
import lightning
import torch
import torchvision


class Classifier(lightning.LightningModule):
    def __init__(self, data: str, batch_size: int, image_size: int) -> None:
        super().__init__()
        self.data, self.batch_size, self.image_size = data, batch_size, image_size
        self.model = torchvision.models.resnet18(num_classes=len(hr.open(data).classes))

    def train_dataloader(self) -> hr.Loader:
        transform = hr.transforms.imagenet_train(self.image_size, normalize=True)
        device = str(self.trainer.strategy.root_device)  # batches arrive on the right GPU: Lightning copies nothing
        return hr.Loader(self.data, self.batch_size, transform, device=device, dtype="float32", seed=0)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()

    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        use_distributed_sampler=False,  # the loader shares the records among the ranks itself
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(args.data, args.batch_size, args.image_size))
    print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
