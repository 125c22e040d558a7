"""The scripts whose input `benchmarks/run.py` measures: datasets as people write them, each with its files and its loader."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headrace.system.hardware import machine
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

__all__ = ["BATCH", "CORES", "JOBS", "Job", "photographs_as", "usable_jobs"]

BATCH = 64
CORES = max(1, round(machine.cores().usable))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CROP, FLIP = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
FLOATS = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
JITTER = transforms.ColorJitter(0.4, 0.4, 0.4)


@dataclass(frozen=True, slots=True)
class Job:
    """A script. `loader`: makes its loader over the folder of images.

    `files`: which images it reads ("jpeg", "png", "small": JPEGs of 32 pixels). `gains`: False for a script that `run` is not
    expected to make faster: it must not become slower. `needs`: packages without which the job is left out.
    """

    loader: Callable[[Path], DataLoader[Any]]
    gains: bool = True
    files: str = "jpeg"
    needs: tuple[str, ...] = ()


class Images(Dataset[Any]):
    """A dataset of a script's own: paths, numbers, a transform."""

    def __init__(self, root: Path, steps: list[Any], views: int = 1) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.*"))
        self.transform = transforms.Compose(steps)
        self.views = views

    def __len__(self) -> int:
        return len(self.paths)

    def value(self, index: int) -> float:
        """Return what an item has beside its image."""
        return index

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        if self.views > 1:
            return [self.transform(image) for _ in range(self.views)], self.value(index)
        return self.transform(image), self.value(index)


class DrawingImages(Images):
    """As `Images`. Its items draw a random number of their own."""

    def value(self, index: int) -> float:
        """Return a random number."""
        return random.random()


class ReadByOpenCV(Dataset[Any]):
    """A dataset on `cv2.imread` and albumentations."""

    def __init__(self, root: Path) -> None:
        import albumentations
        from albumentations.pytorch import ToTensorV2

        self.paths = sorted(str(path) for path in root.rglob("*.*"))
        steps = [albumentations.RandomResizedCrop((224, 224)), albumentations.HorizontalFlip(), albumentations.Normalize()]
        self.transform = albumentations.Compose([*steps, ToTensorV2()], seed=0)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import cv2

        image = cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"], index


def hugging_face(root: Path) -> Any:
    """Return a dataset of Hugging Face with `set_transform`."""
    import datasets

    steps = transforms.Compose([CROP, FLIP, *FLOATS])

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": [steps(image.convert("RGB")) for image in batch["image"]]}

    found = datasets.Dataset.from_dict({"image": sorted(str(path) for path in root.rglob("*.*"))})
    return found.cast_column("image", datasets.Image()).with_transform(transform)


def look(tensor: Any) -> Any:
    """Look at a tensor, so that it is not deferred."""
    tensor[0, 0, 0].item()
    return tensor


def loading(dataset: Any, workers: int = CORES, batch: int = BATCH) -> DataLoader[Any]:
    """Return the loader of a script over its dataset."""
    return DataLoader(dataset, batch, shuffle=True, num_workers=workers)


def folder(*steps: Any) -> Job:
    """Return the job of an ImageFolder with transforms."""
    return Job(lambda root: loading(ImageFolder(str(root), transforms.Compose(steps))))


def own(*steps: Any, views: int = 1, draws: bool = False, **options: Any) -> Job:
    """Return the job of a dataset of a script's own with transforms."""
    kind = DrawingImages if draws else Images
    return Job(lambda root: loading(kind(root, [*steps], views)), **options)


def short(job: Job) -> Job:
    """Return a job whose epochs have 250 images: starts, comparisons and first uses of memory count most there."""

    def loader(root: Path) -> DataLoader[Any]:
        return loading(Subset(job.loader(root).dataset, range(250)), batch=16)

    return replace(job, loader=loader)


class Segmented(Dataset[Any]):
    """Images with masks by way of NumPy, as training scripts of a U-Net make them."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.rglob("*.*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        mask = image.convert("L").resize((320, 240), Image.Resampling.NEAREST)
        image = image.resize((320, 240), Image.Resampling.BICUBIC)
        values = np.asarray(image).transpose((2, 0, 1)) / 255.0
        labels = (np.asarray(mask) > 127).astype(np.int64)
        return {"pixel_values": torch.as_tensor(values.copy()).float().contiguous(), "mask": torch.as_tensor(labels)}


def timm_policy(words: str) -> Job:
    """Return the job of an ImageFolder with timm's training transform and one of its automatic augmentations."""

    def loader(root: Path) -> DataLoader[Any]:
        from timm.data import create_transform

        return loading(ImageFolder(str(root), create_transform(224, is_training=True, auto_augment=words)))

    return Job(loader, needs=("timm",))


def article(workers: int) -> Job:
    """Return the job of the article on Caltech-256: whole images to 224 × 224, in batches of 32."""
    steps = [transforms.Resize((224, 224)), *FLOATS]
    return Job(lambda root: loading(Images(root, steps), workers, 32))


def in_memory(root: Path) -> DataLoader[Any]:
    """Return the loader of a script that has its images in memory."""
    return loading(TensorDataset(torch.zeros(2000, 3, 224, 224, dtype=torch.uint8)), batch=256)


JOBS: dict[str, Job] = {
    "crop, flip, normalise": folder(CROP, FLIP, *FLOATS),
    "crop, flip, uint8": folder(CROP, FLIP, transforms.PILToTensor()),
    "with colour jitter 0.4": folder(CROP, FLIP, JITTER, *FLOATS),
    "with RandAugment": folder(CROP, FLIP, transforms.RandAugment(), *FLOATS),
    "evaluation": folder(transforms.Resize(256), transforms.CenterCrop(224), *FLOATS),
    "own dataset: crop, flip, normalise": own(CROP, FLIP, *FLOATS),
    "own dataset that draws numbers: crop, flip, normalise": own(CROP, FLIP, *FLOATS, draws=True),
    "own dataset that draws numbers: two crops": own(CROP, FLIP, *FLOATS, views=2, draws=True),
    "own dataset that draws numbers: resize 256, random crop": own(
        transforms.Resize(256), transforms.RandomCrop(224), FLIP, *FLOATS, draws=True
    ),
    "own dataset, looks at each tensor": own(CROP, FLIP, *FLOATS, transforms.Lambda(look)),
    "own dataset: resize 256, random crop": own(transforms.Resize(256), transforms.RandomCrop(224), FLIP, *FLOATS),
    "own dataset: two crops": own(CROP, FLIP, *FLOATS, views=2),
    "own dataset: two crops of SimCLR": own(
        CROP,
        FLIP,
        transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], p=0.5),
        transforms.ToTensor(),
        views=2,
    ),
    "own dataset: resize 224×224, 1 worker": article(1),
    "own dataset: resize 224×224, 7 workers": article(7),
    "own dataset: colour jitter 0.4": own(CROP, FLIP, JITTER, *FLOATS, gains=False),
    "own dataset: PNG": own(CROP, FLIP, *FLOATS, gains=False, files="png"),
    "own dataset: JPEGs of 32 pixels": own(FLIP, *FLOATS, gains=False, files="small"),
    "timm: rand-m7-mstd0.5": timm_policy("rand-m7-mstd0.5"),
    "timm: rand-m9": timm_policy("rand-m9"),
    "250 images: crop, flip, normalise": short(folder(CROP, FLIP, *FLOATS)),
    "250 images: own dataset that draws numbers: crop, flip, normalise": short(own(CROP, FLIP, *FLOATS, draws=True)),
    "250 images: own dataset, looks at each tensor": short(own(CROP, FLIP, *FLOATS, transforms.Lambda(look))),
    "250 images: image and mask by NumPy": short(Job(lambda root: loading(Segmented(root)), gains=False)),
    "TensorDataset": Job(in_memory, gains=False),
    "OpenCV and albumentations": Job(lambda root: loading(ReadByOpenCV(root)), needs=("cv2", "albumentations")),
    "Hugging Face datasets": Job(lambda root: loading(hugging_face(root)), needs=("datasets",)),
}
"""The jobs, by name. ImageFolders and most datasets of the script's own are taken over as a whole.

Taken over in part: datasets that draw numbers or look at their tensors, OpenCV and Hugging Face datasets.
"""


def usable_jobs(words: list[str] | None) -> dict[str, Job]:
    """Return the jobs whose packages are installed, and whose name holds one of the words (None: all)."""
    return {
        name: job
        for name, job in JOBS.items()
        if all(importlib.util.find_spec(package) for package in job.needs)
        and (not words or any(word in name for word in words))
    }


def photographs_as(kind: str, files: list[Path], root: Path, copies: int) -> Path:
    """Write the photographs as a job's `files` says into class folders below `root`. Return the folder.

    Each is there `copies` times, as a hard link.
    """
    target = root / kind
    if target.exists():
        return target
    for number, file in enumerate(files):
        parent = target / f"c{number % 10}"
        parent.mkdir(parents=True, exist_ok=True)
        first = parent / f"{number:05d}-0.{'png' if kind == 'png' else 'jpg'}"
        if kind == "jpeg":
            first.write_bytes(file.read_bytes())
        else:
            with Image.open(file) as image:
                side = 32 if kind == "small" else 256
                image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR).save(
                    first, "PNG" if kind == "png" else "JPEG"
                )
        for copy in range(1, copies):
            first.with_name(first.name.replace("-0.", f"-{copy}.")).hardlink_to(first)
    return target
