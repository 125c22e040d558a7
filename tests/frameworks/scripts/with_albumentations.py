"""albumentations on images that OpenCV reads, in a Dataset class as its documentation shows it."""

import random
import sys
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from batch_digest import say, say_generators, seed_all
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, root, transform):
        self.files = sorted(Path(root).rglob("*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        image = cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"], self.classes.index(file.parent.name)


def seed_worker(number):
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


if __name__ == "__main__":
    cv2.setNumThreads(0)
    seed_all(6)
    steps = [A.RandomResizedCrop((48, 48)), A.HorizontalFlip(), A.RandomBrightnessContrast(), A.CoarseDropout()]
    train = Pictures(sys.argv[1], A.Compose([*steps, A.Normalize(), ToTensorV2()], seed=11))
    held_out = Pictures(sys.argv[1], A.Compose([A.SmallestMaxSize(56), A.CenterCrop(48, 48), A.Normalize(), ToTensorV2()]))
    for workers in (0, 2):
        loader = DataLoader(train, 5, shuffle=True, num_workers=workers, worker_init_fn=seed_worker)
        for epoch in range(2):
            for batch in loader:
                say(f"train, {workers} workers, epoch {epoch}", batch)
        for batch in DataLoader(held_out, 5, num_workers=workers):
            say(f"validation, {workers} workers", batch)
    say_generators()
