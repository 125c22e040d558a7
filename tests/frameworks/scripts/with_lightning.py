"""Lightning: a DataModule with a Dataset class of its own for training, and an ImageFolder for validation."""

import sys
from pathlib import Path

import lightning as L
import torch
from batch_digest import say, say_generators
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


class Pictures(Dataset):
    def __init__(self, root, transform):
        self.files = sorted(Path(root).rglob("*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        with Image.open(file) as image:
            picture = self.transform(image.convert("RGB"))
        return {"picture": picture, "label": self.classes.index(file.parent.name), "name": file.stem}


class Data(L.LightningDataModule):
    def __init__(self, root):
        super().__init__()
        self.root = root

    def setup(self, stage):
        values = [T.ToTensor(), T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]
        self.train = Pictures(self.root, T.Compose([T.RandomResizedCrop(48), T.RandomHorizontalFlip(), *values]))
        self.held_out = ImageFolder(self.root, T.Compose([T.Resize(56), T.CenterCrop(48), *values]))

    def train_dataloader(self):
        return DataLoader(self.train, 5, shuffle=True, num_workers=2, persistent_workers=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, 7, num_workers=1)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    def training_step(self, batch, number):
        say("order", [batch["label"], batch["name"]])
        say("train", batch)
        return nn.functional.cross_entropy(self.layers(batch["picture"]), batch["label"])

    def validation_step(self, batch, number):
        say("validation", batch)
        self.log("loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


if __name__ == "__main__":
    L.seed_everything(7, workers=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[2],
    )
    model = Classifier()
    trainer.fit(model, Data(sys.argv[1]))
    say("weights", list(model.parameters()))
    say_generators()
