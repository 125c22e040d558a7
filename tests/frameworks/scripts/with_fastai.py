"""fastai: ImageDataLoaders over a folder. fastai makes its batches itself, behind a stand-in for DataLoader."""

import sys

import torch
from batch_digest import say, say_generators
from fastai.vision.all import Callback, ImageDataLoaders, Learner, Resize, accuracy, nn, set_seed


class Watching(Callback):
    def before_batch(self):
        say("train" if self.training else "validation", [torch.Tensor(self.x), torch.Tensor(self.y)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(4, reproducible=True)
    loaders = ImageDataLoaders.from_folder(
        sys.argv[1], valid_pct=0.25, seed=4, item_tfms=Resize(32), bs=4, num_workers=1, device=torch.device("cpu")
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(64, 3))
    learner = Learner(loaders, model, metrics=accuracy, cbs=Watching(), path=sys.argv[2])
    with learner.no_bar(), learner.no_logging():
        learner.fit(2, 0.01)
    say_generators()
