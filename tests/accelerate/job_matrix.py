"""Jobs as scripts write them: their loaders, the order in which these are read, their files, items and targets.

A job returns all that a script can see of it: batches, warnings, errors, the states of the generators, the files that are left,
how often foreign reducers ran, and in which process its items were made.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from deferred_helpers import described, generator_states, seeded
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

NEAREST = v1.InterpolationMode.NEAREST
COUNT = 10
"""Images of a job."""

TRANSFORMS: dict[str, Callable[[], Any]] = {
    "training": lambda: v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "mask": lambda: v1.Compose([v1.RandomResizedCrop(24, interpolation=NEAREST), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "gray first": lambda: v1.Compose([v1.Grayscale(3), v1.RandomResizedCrop(24), v1.ToTensor(), v1.Normalize(0.5, 0.5)]),
    "evaluation": lambda: v1.Compose([v1.Resize(28), v1.CenterCrop(24), v1.ToTensor()]),
    "colours": lambda: v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.PILToTensor()]),
    "policy": lambda: v1.Compose([v1.Resize((24, 24)), v1.TrivialAugmentWide(), v1.ToTensor(), v1.RandomErasing(0.4)]),
    "own draws": lambda: v1.Compose([v1.RandomResizedCrop(24), Flipped(), v1.ToTensor()]),
    "a set": lambda: v1.Compose([v1.RandomResizedCrop(24), v1.RandomGrayscale(0.5), v1.RandomRotation(9), v1.ToTensor()]),
}


class Flipped:
    """A transform of the script's own, with Python's and NumPy's generators."""

    def __call__(self, image: Any) -> Any:
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image.transpose(Image.Transpose.ROTATE_90) if np.random.rand() < 0.3 else image


class Label:
    """A target whose reducer has a side effect: it is counted, and it numbers the copies."""

    reduced = 0

    def __init__(self, value: int, copies: int = 0) -> None:
        self.value, self.copies = value, copies

    def __reduce__(self) -> Any:
        Label.reduced += 1
        return Label, (self.value, Label.reduced)


class Named(NamedTuple):
    """A target that is a tuple with names."""

    value: int
    path: str


class Counted:
    """A `target_transform` with state: its workers count on their own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, target: int) -> int:
        self.calls += 1
        return 100 * self.calls + target


def in_worker(target: int) -> int:
    """Return a target that depends on the process which makes it."""
    info = get_worker_info()
    return 1000 + 10 * info.id + target if info else target


def shifted(target: int) -> int:
    return target + 1


class Own(Dataset[Any]):
    """A dataset of the script's own. `kind`: what its targets are."""

    def __init__(self, root: str, transform: Any, kind: str) -> None:
        self.paths = sorted(str(path) for path in Path(root).rglob("*.jpg"))
        self.transform, self.kind, self.seen = transform, kind, 0

    def __len__(self) -> int:
        return len(self.paths)

    def target(self, index: int) -> Any:
        self.seen += 1
        info = get_worker_info()
        if self.kind == "seen":
            return self.seen
        if self.kind == "worker":
            return (info.id, info.num_workers, info.seed % 1000, os.getpid() == MAIN) if info else (os.getpid() == MAIN,)
        if self.kind == "drawn":
            return random.random(), float(np.random.rand()), float(torch.rand(1))
        if self.kind == "reduced":
            return Label(index)
        return Named(index, self.paths[index]) if self.kind == "named" else index % 3

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), self.target(index)


MAIN = os.getpid()


def labelled(items: list[Any]) -> Any:
    """A collate function that leaves foreign objects alone."""
    return torch.stack([image for image, _ in items]), [target for _, target in items]


DATASETS: dict[str, Callable[[Path, Any], Any]] = {
    "folder": lambda root, transform: ImageFolder(str(root), transform),
    "folder, targets shifted": lambda root, transform: ImageFolder(str(root), transform, target_transform=shifted),
    "folder, targets counted": lambda root, transform: ImageFolder(str(root), transform, target_transform=Counted()),
    "folder, targets of the worker": lambda root, transform: ImageFolder(str(root), transform, target_transform=in_worker),
    "subset": lambda root, transform: Subset(ImageFolder(str(root), transform), range(COUNT - 1, 1, -1)),
    **{
        f"own, {kind}": lambda root, transform, kind=kind: Own(str(root), transform, kind)
        for kind in ("plain", "seen", "worker", "drawn", "reduced", "named")
    },
}


def seed_worker(worker: int) -> None:
    """Seed as PyTorch's page on reproducibility says."""
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed() % 2**32)


def seed_alike(worker: int) -> None:
    """Seed all workers alike, so that an augmentation is fixed."""
    torch.manual_seed(0)
    random.seed(0)


LOADERS: dict[str, dict[str, Any]] = {
    "main": {},
    "one worker": {"num_workers": 1},
    "two workers": {"num_workers": 2, "drop_last": True},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "seeded workers": {"num_workers": 2, "worker_init_fn": seed_worker, "prefetch_factor": 1},
    "workers seeded alike": {"num_workers": 1, "worker_init_fn": seed_alike},
}
STARTS = ("spawn", "forkserver")
"""Further ways to start workers: seconds each, so they have few cells."""


class Job(NamedTuple):
    """A job by names; the fields are the axes."""

    order: str
    loader: str
    generator: str
    dataset: str
    transform: str
    files: str
    warned: str
    start: str = "fork"


def loaders(job: Job, root: Path) -> tuple[Any, Any]:
    """Return the two loaders of a job: for training, and what belongs to it."""
    shared = torch.Generator().manual_seed(3)
    made = []
    for number in range(2):
        transform = job.transform
        if number and job.order.startswith("mask"):
            transform = "mask"
        options = dict(LOADERS[job.loader])
        if job.start != "fork" and options.get("num_workers"):
            options["multiprocessing_context"] = job.start
        if job.generator == "one each, alike":
            options["generator"] = torch.Generator().manual_seed(3)
        elif job.generator == "shared":
            options["generator"] = shared
        if "own" in job.dataset:
            options["collate_fn"] = labelled
        dataset = DATASETS[job.dataset](root, TRANSFORMS[transform]())
        made.append(DataLoader(dataset, batch_size=3, shuffle=number == 0 or "mask" in job.order, **options))
    return made[0], made[1]


def alone(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    yield from first


def in_turn(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    yield from first
    yield from second


def zipped(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    yield from zip(first, second, strict=False)


def nested(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    for number, batch in enumerate(first):
        yield batch
        if number == 1:
            yield from second


def seeded_before_each(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    for loader in (first, second):
        torch.manual_seed(epoch)
        random.seed(epoch)
        yield from loader


def left_early(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    for number, batch in enumerate(first):
        yield batch
        if number == epoch:
            break
    yield from second


def with_draws_between(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    for batch in first:
        yield batch, torch.rand(2), random.random(), float(np.random.rand())
        if epoch:
            torch.manual_seed(11)


def two_iterators(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    if getattr(first, "persistent_workers", False):
        yield from first  # torch itself mixes two passes of persistent workers up
        return
    one, other = iter(first), iter(first)
    yield from zip(one, other, strict=True)


def changed_between(first: Any, second: Any, epoch: int, root: Path) -> Iterator[Any]:
    yield from first
    dataset = first.dataset.dataset if isinstance(first.dataset, Subset) else first.dataset
    dataset.transform = TRANSFORMS["evaluation"]()


ORDERS: dict[str, Callable[[Any, Any, int, Path], Iterator[Any]]] = {
    "alone": alone,
    "in turn": in_turn,
    "zipped": zipped,
    "nested": nested,
    "seeded before each": seeded_before_each,
    "mask: seeded before each": seeded_before_each,
    "mask: zipped": zipped,
    "left early": left_early,
    "draws between": with_draws_between,
    "two iterators": two_iterators,
    "transform changed": changed_between,
}


def make_files(root: Path, kind: str) -> None:
    """Write the images of a job."""
    rng = np.random.default_rng(7)
    for number in range(COUNT):
        path = root / f"class {number % 3}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height = int(rng.integers(30, 60)), int(rng.integers(30, 60))
        values = rng.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
        if kind == "odd" and number in (2, 5):
            image = image.convert({2: "L", 5: "CMYK"}[number])
        if kind == "odd" and number == 7:
            image.save(path, "PNG")
        elif kind == "warning" and number == 4:
            colours = image.quantize(8)
            colours.save(path, "PNG", transparency=bytes(range(8)))
        else:
            image.save(path, "JPEG", quality=90, subsampling=number % 3)
        if kind == "damaged" and number == 6:
            path.write_bytes(path.read_bytes()[:200])


def change_files(root: Path, kind: str, epoch: int) -> None:
    """Change the files after an epoch, as a script or another program does."""
    files = sorted(root.rglob("*.jpg"))
    if kind == "replaced":
        for one, other in zip(files[:3], files[3:6], strict=True):
            new = one.with_suffix(".new")
            shutil.copyfile(other, new)
            new.replace(one)
    elif kind == "rewritten in place":
        files[1].write_bytes(files[8].read_bytes())
    elif kind == "touched":
        for file in files:
            os.utime(file, (epoch, epoch))
    elif kind == "deleted":
        files[4].unlink()


FILES = ("calm", "odd", "damaged", "warning", "replaced", "rewritten in place", "touched", "deleted")
WARNED = ("recorded", "errors", "default")
GENERATORS = ("default", "one each, alike", "shared")


def outcome(job: Job, root: Path) -> Any:
    """Run a job on the files of `root`. Return all that its script can see."""
    make_files(root, job.files)
    Label.reduced = 0
    seen: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter({"recorded": "always", "errors": "error", "default": "default"}[job.warned])
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of fork beside threads, of torch's own
        seeded(41)
        first, second = loaders(job, root)
        for epoch in range(2 if job.start == "fork" else 1):
            try:
                seen.extend(described(_plain(batch)) for batch in ORDERS[job.order](first, second, epoch, root))
            except Exception as error:
                seen.append((type(error), _text(error)))
                # torch's error refers to itself through its frame. Of an iterator that the garbage collector ends, each worker
                # misses the end, and torch waits five seconds for it.
                traceback.clear_frames(error.__traceback__)
            change_files(root, job.files, epoch)
        seen += [generator_states(), Label.reduced, [(one.category, str(one.message)) for one in caught]]
        seen += [one.generator.get_state().tolist() for one in (first, second) if one.generator is not None]
        del first, second
    left = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return [*seen, left]


def _plain(value: Any) -> Any:
    """Replace labels by what they hold, so that they can be compared."""
    if isinstance(value, Label):
        return "label", value.value, value.copies
    if isinstance(value, Named):
        return "named", tuple(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value


def _text(error: Exception) -> str:
    """Return the message of an error, of which a worker's own traceback keeps its last line."""
    lines = str(error).strip().splitlines()
    return re.sub(r"0x[0-9a-f]+", "0x", f"{lines[0]} … {lines[-1]}" if lines else "")


def cases(count: int, seed: int) -> list[Job]:
    """Return `count` different jobs, in which each value of each axis is about equally frequent."""
    rng = random.Random(seed)

    def column(values: Any) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += rng.sample(list(values), len(values))
        return found[:count]

    # Most files are calm, and most warnings recorded: what they lead to would hide the rest.
    files = column([*FILES, *["calm"] * 6])
    warned = ["recorded" if one != "warning" and rng.random() < 0.7 else rng.choice(WARNED) for one in files]
    axes = (ORDERS, LOADERS, GENERATORS, DATASETS, TRANSFORMS)
    jobs = zip(*(column(axis) for axis in axes), files, warned, strict=True)
    return [Job(*values) for values in dict.fromkeys(jobs)]


def started_otherwise(seed: int) -> list[Job]:
    """Return jobs whose workers are spawned, or started by a fork server."""
    rng = random.Random(seed)
    found = []
    for number, dataset in enumerate(DATASETS):
        loader = rng.choice(["one worker", "workers seeded alike"])
        transform = rng.choice(list(TRANSFORMS))
        found.append(Job("alone", loader, "default", dataset, transform, "calm", "recorded", STARTS[number % 2]))
    return found
