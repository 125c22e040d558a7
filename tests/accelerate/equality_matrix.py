"""The loaders, datasets, transforms and collate functions of the equality matrix, as people write them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, SequentialSampler, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
UNIT = v2.ToDtype(torch.float32, scale=True)
BICUBIC = v1.InterpolationMode.BICUBIC


class Thumbnail:
    """A transform of the script's own that changes the image in place."""

    def __call__(self, image: Any) -> Any:
        image = image.copy()
        image.thumbnail((20, 20))
        return ImageOps.pad(image, (16, 16))


class NumpyCrop:
    """A transform with numpy's generator that leaves Pillow."""

    def __call__(self, image: Any) -> Any:
        left, top = np.random.randint(0, 8, 2)
        values = np.asarray(image.crop((left, top, left + 16, top + 16)))
        return torch.from_numpy(values[:, ::-1].copy()).permute(2, 0, 1).float() / 255


class Turned:
    """Shears, shifts and turns by Pillow, as timm's augmentations have them, and between them what looks at pixels."""

    def __call__(self, image: Any) -> Any:
        affine, shear = Image.Transform.AFFINE, random.uniform(-0.3, 0.3)
        image = image.transform(image.size, affine, (1, shear, 0, 0, 1, 0), random.choice([2, 3]), fillcolor=(124, 116, 104))
        if random.random() < 0.5:
            image = ImageOps.autocontrast(image)
        image = image.rotate(random.uniform(-30, 30), random.choice([0, 2, 3]))
        return image.transform(image.size, affine, (1, 0, 0, 0, 1, random.randint(-5, 5)))


class Noise:
    """Additive random noise, after ToTensor."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.randn(tensor.shape) * random.random()


class Blur:
    """SimCLR's blur by Pillow."""

    def __call__(self, image: Any) -> Any:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class Mixed:
    """Arithmetic that mixes what stays deferred and what does not."""

    def __call__(self, image: Any) -> Any:
        tensor = v1.functional.to_tensor(image)
        first = tensor.clone().mul_(2).sub_(1)
        return torch.cat([first[:, :8], tensor[:, 8:]], 1).half()


def stacked(crops: Any) -> torch.Tensor:
    return torch.stack([v1.functional.to_tensor(crop) for crop in crops])


def floats() -> list[Any]:
    return [v1.ToTensor(), v1.Normalize(MEAN, STD)]


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "imagenet": lambda: v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), *floats()]),
    "evaluation": lambda: v1.Compose([v1.Resize(20), v1.CenterCrop(16), *floats()]),
    "resize and random crop": lambda: v1.Compose([v1.Resize((24, 20)), v1.RandomCrop(16), v1.PILToTensor()]),
    "padded crop": lambda: v1.Compose([v1.RandomCrop(16, 4, pad_if_needed=True), v1.RandomVerticalFlip(), v1.ToTensor()]),
    "jitter": lambda: v1.Compose([v1.RandomResizedCrop(16, interpolation=BICUBIC), v1.ColorJitter(0.4, 0.4, 0.4), *floats()]),
    "rotation": lambda: v1.Compose([v1.Resize((16, 16)), v1.RandomRotation(30), *floats()]),
    "blur and gray": lambda: v1.Compose([v1.RandomResizedCrop(16), v1.RandomGrayscale(0.5), v1.GaussianBlur(3), v1.ToTensor()]),
    "erasing": lambda: v1.Compose([v1.RandomResizedCrop(16), *floats(), v1.RandomErasing(0.5, value="random")]),
    "augment": lambda: v1.Compose([v1.Resize((16, 16)), v1.RandAugment(), v1.PILToTensor(), v1.ConvertImageDtype(torch.half)]),
    "wide": lambda: v1.Compose([v1.Resize((18, 18)), v1.TrivialAugmentWide(), v1.CenterCrop(16), v1.ToTensor()]),
    "five crops": lambda: v1.Compose([v1.Resize((24, 24)), v1.FiveCrop(16), stacked]),
    "numpy": NumpyCrop,
    "v2 image last": lambda: v2.Compose(
        [v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(), UNIT, v2.Normalize(MEAN, STD)]
    ),
    "v2 image first": lambda: v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip(), UNIT]
    ),
    "v2 image only": lambda: v2.Compose([v2.RandomCrop(16, pad_if_needed=True), v2.ToImage(), v2.RandomHorizontalFlip()]),
    "v2 half": lambda: v2.Compose([v2.Resize((16, 16)), v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True)]),
    "v2 jitter on tensors": lambda: v2.Compose([v2.RandomCrop(16, pad_if_needed=True), v2.ToImage(), v2.ColorJitter(0.3, 0.3)]),
    "moco": lambda: v1.Compose(
        [v1.RandomResizedCrop(16), v1.RandomApply([v1.ColorJitter(0.4)], 0.8), v1.RandomApply([Blur()], 0.5), *floats()]
    ),
    "tensor resize": lambda: v1.Compose([v1.ToTensor(), v1.Resize((16, 16)), v1.Normalize(0.5, 0.5)]),
    "turned": lambda: v1.Compose([v1.RandomResizedCrop(16), Turned(), v1.RandomHorizontalFlip(), *floats()]),
    "policy": lambda: v1.Compose([v1.RandomResizedCrop(16), v1.AutoAugment(interpolation=BICUBIC, fill=99), *floats()]),
    "v2 policy": lambda: v2.Compose([v2.Resize((18, 16)), v2.AugMix(), v2.ToImage(), UNIT]),
    "affine": lambda: v1.Compose([v1.Resize((16, 16)), v1.RandomAffine(10), v1.RandomPerspective(0.3), *floats()]),
    "noise": lambda: v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), Noise()]),
    "thumbnail": lambda: v1.Compose([Thumbnail(), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "inplace": lambda: v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)]),
    "mixed": lambda: v1.Compose([v1.RandomResizedCrop(16), Mixed()]),
    "choice": lambda: v1.Compose(
        [v1.RandomChoice([v1.RandomResizedCrop(16), v1.Resize((16, 16))]), v1.RandomInvert(), v1.RandomPosterize(3), *floats()]
    ),
    "lambda": lambda: v1.Compose([v1.Resize((16, 16), BICUBIC), v1.ToTensor(), v1.Lambda(twice)]),
}  # fmt: skip


def twice(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2 - 1


class Images(Dataset[Any]):
    """A dataset of a script's own. `kind`: how a file is opened and what an item is."""

    def __init__(self, paths: list[str], transform: Any, kind: str) -> None:
        self.paths, self.transform, self.kind = paths, transform, kind
        self.calls = 0

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> Any:
        path = self.paths[index]
        if self.kind == "bytes":
            return Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")
        if self.kind == "file":
            with open(path, "rb") as file:
                return Image.open(file).convert("RGB")
        if self.kind == "upright":
            return ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        return Image.open(path).convert("RGB")

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        image = self.image(index)
        tensor = self.transform(image)
        if self.kind == "views":
            return [tensor, self.transform(image)], index
        if self.kind == "dict":
            return {"pixel_values": tensor, "label": index % 3, "path": self.paths[index], "draw": random.random()}
        if self.kind == "mask":
            mask = Image.open(self.paths[index]).convert("L").resize((16, 16), 0)
            return tensor, torch.from_numpy(np.array(mask)), np.float32(self.calls)
        if self.kind == "tensor":
            return tensor
        return tensor, index


class Batched(Images):
    """A dataset that is asked for a whole batch, as those of Hugging Face."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Cached(Images):
    """A dataset that keeps its items."""

    kept: dict[int, Any]

    def __getitem__(self, index: int) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        if index % 4 not in kept:
            kept[index % 4] = super().__getitem__(index)
        return kept[index % 4]


class Wrapper(Dataset[Any]):
    """A `Subset` with a transform of its own, as scripts write it behind `random_split`."""

    def __init__(self, subset: Any, transform: Any) -> None:
        self.subset, self.transform = subset, transform

    def __len__(self) -> int:
        return len(self.subset)

    def __getitem__(self, index: int) -> Any:
        image, label = self.subset[index]
        return self.transform(image), label


class WithPaths(ImageFolder):
    """The subclass of ImageFolder that also returns the path."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), self.imgs[index][0])


class Stream(IterableDataset[Any]):
    def __init__(self, paths: list[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for path in self.paths[start::step]:
            yield self.transform(Image.open(path).convert("RGB")), random.random()


def _identity(image: Any) -> Any:
    return image


DATASETS: dict[str, Callable[[Path, list[str], Any], Any]] = {
    **{
        kind: lambda root, paths, transform, kind=kind: Images(paths, transform, kind)
        for kind in ("pair", "bytes", "file", "upright", "views", "dict", "mask", "tensor")
    },
    "batched": lambda root, paths, transform: Batched(paths, transform, "pair"),
    "cached": lambda root, paths, transform: Cached(paths, transform, "pair"),
    "split": lambda root, paths, transform: Wrapper(Subset(ImageFolder(str(root)), range(1, 14)), transform),
    "folder": lambda root, paths, transform: ImageFolder(str(root), transform),
    "with paths": lambda root, paths, transform: WithPaths(str(root), transform),
    "joined": lambda root, paths, transform: ConcatDataset(
        [Images(paths[:5], transform, "pair"), Images(paths[5:12], transform, "bytes")]
    ),
    "stream": lambda root, paths, transform: Stream(paths, transform),
}


def zipped(items: list[Any]) -> Any:
    images, labels = zip(*items, strict=True)
    return torch.stack(images), torch.tensor(labels)


def named(items: list[Any]) -> Any:
    return {"images": torch.stack([item[0] for item in items], dim=0), "labels": [item[1] for item in items]}


def listed(items: list[Any]) -> Any:
    return list(items)


def scaled(items: list[Any]) -> Any:
    images, labels = zipped(items)
    return images.float() / 2, labels


def channels_last(items: list[Any]) -> Any:
    images, labels = zipped(items)
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images, labels


COLLATE = {
    "default": None,
    "zipped": zipped,
    "named": named,
    "listed": listed,
    "scaled": scaled,
    "channels last": channels_last,
}
PAIRS = ("pair", "bytes", "file", "upright", "batched", "cached", "split", "joined", "folder")

LOADERS: dict[str, dict[str, Any]] = {
    "main": {"batch_size": 4},
    "main, shuffled": {"batch_size": 5, "shuffle": True},
    "main, no batch": {"batch_size": None},
    "main, last dropped": {"batch_size": 3, "shuffle": True, "drop_last": True},
    "one worker": {"batch_size": 4, "shuffle": True, "num_workers": 1},
    "two workers": {"batch_size": 3, "num_workers": 2, "prefetch_factor": 3},
    "persistent": {"batch_size": 4, "shuffle": True, "num_workers": 1, "persistent_workers": True},
    "worker, no batch": {"batch_size": None, "num_workers": 1},
    "own generator": {"batch_size": 4, "shuffle": True, "num_workers": 1, "generator": 7},
    "batch sampler": {"batch_sampler": 5, "num_workers": 1},
    "out of order": {"batch_size": 6, "num_workers": 1, "in_order": False, "timeout": 300},
}


class Case(NamedTuple):
    """One combination, by names."""

    loader: str
    dataset: str
    transform: str
    collate: str
    seed: int


def cases(count: int, seed: int) -> list[Case]:
    """Return `count` different combinations. Each transform, dataset and loader is in several."""
    rng = random.Random(seed)
    found: dict[tuple[str, ...], Case] = {}
    while len(found) < count:
        number = len(found)
        transform = list(TRANSFORMS)[number % len(TRANSFORMS)]
        # A third has workers: starting them is most of the time.
        loaders = [name for name in LOADERS if name.startswith("main") == (rng.random() < 0.67)]
        if not loaders:
            continue
        loader = rng.choice(loaders)
        dataset = rng.choice(list(DATASETS))
        collate = rng.choice(list(COLLATE)) if dataset in PAIRS and "no batch" not in loader else "default"
        if dataset == "stream" and ("shuffle" in LOADERS[loader] or "batch_sampler" in LOADERS[loader]):
            continue
        found.setdefault((loader, dataset, transform, collate), Case(loader, dataset, transform, collate, number))
    return list(found.values())


def loader_of(case: Case, root: Path, paths: list[str]) -> Any:
    """Return a new loader of a combination."""
    dataset = DATASETS[case.dataset](root, paths, TRANSFORMS[case.transform]())
    options = dict(LOADERS[case.loader])
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    if "batch_sampler" in options:
        options["batch_sampler"] = BatchSampler(SequentialSampler(dataset), options["batch_sampler"], drop_last=False)
    return DataLoader(dataset, collate_fn=COLLATE[case.collate], **options)
