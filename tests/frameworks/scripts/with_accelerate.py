"""Accelerate: both loaders go through prepare(), which shares the batches among the processes of the job."""

import sys

import torch
from accelerate import Accelerator
from batch_digest import say, say_generators, seed_all
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


class WithPath(ImageFolder):
    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label, path


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_all(3)
    accelerator = Accelerator(cpu=True)
    values = [T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)]
    train = WithPath(sys.argv[1], T.Compose([T.RandomResizedCrop(40), T.RandomHorizontalFlip(), *values]))
    held_out = ImageFolder(sys.argv[1], T.Compose([T.Resize(48), T.CenterCrop(40), *values]))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4800, 3))
    model, optimizer, loader, validation = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), 0.001),
        DataLoader(train, 4, shuffle=True, num_workers=1),
        DataLoader(held_out, 6, num_workers=1),
    )
    rank = accelerator.process_index
    for epoch in range(2):
        for images, labels, paths in loader:
            say(f"rank {rank} order", [images.dtype, images.shape, images.stride(), labels, paths])
            say(f"rank {rank} epoch {epoch}", [images, labels, paths])
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        for images, labels in validation:
            say(f"rank {rank} validation", accelerator.gather_for_metrics((images, labels)))
    if accelerator.num_processes == 1:
        say_generators()
    accelerator.end_training()
