"""MONAI: dictionary transforms, its Dataset, CacheDataset and DataLoader."""

import sys
from pathlib import Path

from batch_digest import say, say_generators, seed_all
from monai.data import CacheDataset, DataLoader, Dataset, PILReader
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    Lambdad,
    LoadImaged,
    RandFlipd,
    RandGaussianNoised,
    RandRotate90d,
    Resized,
    ScaleIntensityd,
    ToTensord,
)
from monai.utils import set_determinism


def plain(batch):
    return [type(batch["image"]).__name__, batch["image"].as_tensor(), batch["label"]]


if __name__ == "__main__":
    set_determinism(9)
    seed_all(9)
    files = sorted(Path(sys.argv[1]).rglob("*.jpg"))
    classes = sorted({file.parent.name for file in files})
    rows = [{"image": str(file), "label": classes.index(file.parent.name)} for file in files]
    first = [
        LoadImaged("image", reader=PILReader(converter=lambda image: image.convert("RGB"))),
        EnsureChannelFirstd("image"),
        Resized("image", (40, 40)),
        ScaleIntensityd("image"),
    ]
    then = [RandFlipd("image", 0.5, 0), RandRotate90d("image", 0.5), RandGaussianNoised("image", 0.5), ToTensord("image")]
    for kind, data in (
        ("Dataset", Dataset(rows, Compose([*first, *then]))),
        ("CacheDataset", CacheDataset(rows, Compose([*first, Lambdad("label", int), *then]), progress=False)),
    ):
        for workers in (0, 2):
            for epoch in range(2):
                for batch in DataLoader(data, batch_size=5, shuffle=True, num_workers=workers):
                    say(f"{kind}, {workers} workers, epoch {epoch}", plain(batch))
    say_generators()
