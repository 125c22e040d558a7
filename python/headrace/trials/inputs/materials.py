"""The data of a trial: the user's own, or photographs made on the spot, in every form that a cell can read.

Everything lies below one folder and is made once. A pass of a given length reads a tree of hard links, so that each loader
reads exactly as many images as the others and does not start a new epoch in the middle.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import SourceError, UsageError
from headrace.images import photographs
from headrace.images.raster import open_raster
from headrace.packing.planning.options import SHARD_SIZE
from headrace.system.text.sizes import count_text
from headrace.trials.experiment.cells import Cell
from headrace.trials.inputs.containers import write_container

__all__ = ["Materials"]

ENDINGS = (".jpg", ".jpeg", ".png")
# Mean bytes of an image from which on photographs have this factor of ImageNet's mean width and height: those of full-size
# Imagenette have 144 KB, ImageNet's 110 KB; a training of small images needs only small ones.
SIZE_FACTORS = ((120_000, 1.25), (30_000, 1.0), (0, 0.35))
SMALL_SIDES = (120, 100)
"""Width and height of the generated small images, in pixels: about 5 KB each at JPEG quality 80."""

SMALL_SHARD_BYTES = 5_000_000
PARTIAL = ".partial-"
FEWEST = 48
"""Make at least this many images per split: more than one batch of 32."""


@dataclass
class Materials:
    """The images of an experiment, made or linked below `folder` in every form that a cell reads.

    train_images, validation_images, mean_bytes: of the published dataset. own: the user's folder (`CLASS/image`, or
    `train/CLASS/image` and `val/CLASS/image`); None: photographs are made, `scale` times as many as published.
    log: takes one line at a time.
    """

    folder: Path
    train_images: int
    validation_images: int
    mean_bytes: int = 110_000
    own: Path | None = None
    scale: float = 0.04
    log: Callable[[str], None] = lambda line: None
    _files: dict[str, list[tuple[str, Path]]] = field(default_factory=dict)

    def files(self, split: str) -> list[tuple[str, Path]]:
        """Return (class, file) of each image of "train" or "val", in order. Makes the photographs if need be."""
        if split not in self._files:
            root = self._root(split)
            classes = sorted(entry for entry in root.iterdir() if entry.is_dir())
            found = [(entry.name, file) for entry in classes for file in _images(entry)]
            if len(found) < 2:
                raise UsageError(
                    f"{root} holds {count_text(len(found), 'image')} below class folders",
                    hint="--data takes a folder CLASS/image.jpg, or train/CLASS/image.jpg and val/CLASS/image.jpg",
                )
            self._files[split] = found
        return self._files[split]

    def counts(self) -> tuple[int, int]:
        """Return (training images, validation images) of an epoch: of the user's data, or the published numbers."""
        if self.own is None:
            return self.train_images, self.validation_images
        return len(self.files("train")), len(self.files("val"))

    def validates_on_training(self) -> bool:
        """Return whether the validation pass reads the training images, because the user's folder has no `val`."""
        return self.own is not None and _own_root(self.own, "val") == _own_root(self.own, "train")

    def measured_bytes(self) -> float:
        """Return the mean size of a training image's file."""
        sizes = [file.stat().st_size for _, file in self.files("train")]
        return sum(sizes) / len(sizes)

    def tree(self, split: str, images: int) -> Path:
        """Return a folder `CLASS/file` with exactly `images` links to images of a split, which repeat if there are fewer."""
        return self._linked(f"{split}-{images}", self.files(split), images)

    def path(self, cell: Cell, split: str, images: int) -> Path:
        """Return the path of the data that a cell reads in a pass over `images` images."""
        form = "packed" if cell.loader == "headrace-packed" and cell.data == "folder" else cell.data
        if form in ("folder", "slow", "decoded"):
            return self.tree(split, images)
        if form in ("s3", "pipe"):
            form = "packed"
        if form in ("packed", "preresized", "preresized-packed", "small-shards"):
            return self._packed(form, split, images)
        if form == "small-files":
            return self._small(split, images)
        return self._container(form, split, images)

    def remove_unfinished(self) -> None:
        """Remove the unfinished data of a run that was killed. Only one run may work in `folder`."""
        for partial in (*self.folder.glob(f"*{PARTIAL}*"), *self.folder.glob(f"trees/*{PARTIAL}*")):
            shutil.rmtree(partial, ignore_errors=True)

    def _container(self, form: str, split: str, images: int) -> Path:
        target = self.folder / f"{form}-{split}-{images}"
        if not target.is_dir():
            with _whole(target) as partial:
                write_container(form, self.tree(split, images), partial)
        return next(file for file in target.iterdir() if file.suffix != ".idx")

    def _root(self, split: str) -> Path:
        if self.own is not None:
            return _own_root(self.own, split)
        count = self.train_images if split == "train" else self.validation_images
        wanted = max(FEWEST, math.ceil(count * self.scale))
        per_class = math.ceil(wanted / len(photographs.CLASSES))
        factor = next(factor for least, factor in SIZE_FACTORS if self.mean_bytes >= least)
        target = self.folder / f"photographs-{split}-{per_class}-{factor:g}"
        if not photographs.is_complete(target):
            self.log(f"making {per_class * len(photographs.CLASSES)} photographs ({split})")
            # Training and validation images are different parts of the same photographs.
            photographs.make(target, per_class=per_class, first=0 if split == "train" else 100_000, length=factor)
        return target

    def _linked(self, name: str, files: list[tuple[str, Path]], images: int) -> Path:
        target = self.folder / "trees" / name
        if target.is_dir():
            return target
        with _whole(target) as partial:
            for number, (label, file) in enumerate(_spread(files, images)):
                link = partial / label / f"{number:06d}{file.suffix.lower()}"
                link.parent.mkdir(exist_ok=True)
                try:
                    os.link(file, link)
                except OSError:  # another file system, or one without hard links
                    link.symlink_to(file.resolve())
        return target

    def _packed(self, form: str, split: str, images: int) -> Path:
        from headrace.packing.job import pack

        target = self.folder / f"{form}-{split}-{images}"
        if target.is_dir():
            return target
        with _whole(target) as partial:
            pack(
                self._small(split, images) if form == "small-shards" else self.tree(split, images),
                partial / "data",
                layout="folder" if form == "preresized" else "shards",
                short_side=256 if form.startswith("preresized") else None,
                shard_size=SMALL_SHARD_BYTES if form == "small-shards" else SHARD_SIZE,
            )
            for entry in (partial / "data").iterdir():
                entry.rename(partial / entry.name)
            (partial / "data").rmdir()
        return target

    def _small(self, split: str, images: int) -> Path:
        """Return a folder of images of about 5 KB."""
        target = self.folder / f"small-files-{split}-{images}"
        if target.is_dir():
            return target
        with _whole(target) as partial:

            def write(job: tuple[int, tuple[str, Path]]) -> None:
                number, (label, file) = job
                with open_raster(file) as image:
                    small = image.convert("RGB").resize(SMALL_SIDES)
                folder = partial / label
                folder.mkdir(exist_ok=True)
                small.save(folder / f"{number:06d}.jpg", quality=80)

            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                list(pool.map(write, enumerate(_spread(self.files(split), images))))
        return target


def _spread(files: list[tuple[str, Path]], images: int) -> list[tuple[str, Path]]:
    """Return `images` of the files, evenly spread; each file as often as it takes."""
    if images <= len(files):
        return [files[number * len(files) // images] for number in range(images)]
    return [files[number % len(files)] for number in range(images)]


def _own_root(own: Path, split: str) -> Path:
    if not own.is_dir():
        raise UsageError(f"--data {own}: there is no such folder")
    names = ("train", "training") if split == "train" else ("val", "validation", "valid", "test")
    found = next((own / name for name in names if (own / name).is_dir()), None)
    return found or (own / "train" if (own / "train").is_dir() else own)


def _images(folder: Path) -> Sequence[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes `target` when the block succeeds, and is gone otherwise."""
    partial = target.with_name(f"{target.name}{PARTIAL}{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(target)
    except OSError as error:
        raise SourceError(f"cannot make the data of the trials in {target.parent}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
