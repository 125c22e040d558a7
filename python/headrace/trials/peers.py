"""Loaders of other projects, as rows of a trial: DALI, torchvision with nvJPEG, tf.data, FFCV.

In `faithful` cells DALI does what the article's script asks of it: both flips and five degrees for every image, on a canvas
that grows with each rotation, a crop of 256 pixels and its middle 224. In `corrected` cells all do the declared operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.trials.cells import Cell
from headrace.trials.source import Source, workers_of
from headrace.trials.transforms import MEAN, SIDE, STD

__all__ = ["open_peer"]


def open_peer(cell: Cell, source: Source) -> Iterable[Any]:
    """Return an iterable over (images, labels). Raises `UsageError` for operations that the loader is not written for here."""
    if cell.loader in ("dali-cpu", "dali-gpu"):
        return _dali(cell, source)
    if cell.transform not in ("augmentation-load", "imagenet") or cell.loader in ("tfdata", "ffcv"):
        raise UsageError(f"{cell.loader} has no form of {cell.transform!r} here that gives the same pixels")
    return _torchvision_gpu(cell, source)


def _dali(cell: Cell, source: Source) -> Iterable[Any]:
    """Files → decode → load × (flips, rotation) → crop → normalise."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    on_gpu = cell.loader == "dali-gpu"
    faithful = cell.mode == "faithful"

    def steps() -> Any:
        shuffle = not (source.validation or source.fixed)
        encoded, labels = fn.readers.file(
            file_root=str(source.path), random_shuffle=shuffle, pad_last_batch=True, name="Reader"
        )
        images = fn.decoders.image(encoded, device="mixed" if on_gpu else "cpu", output_type=types.RGB)
        for _ in range(0 if source.validation else cell.load):
            if faithful or source.fixed:
                images = fn.rotate(fn.flip(images, horizontal=1, vertical=1), angle=5.0, keep_size=not faithful, fill_value=0)
            else:
                flips = {"horizontal": fn.random.coin_flip(), "vertical": fn.random.coin_flip()}
                angle = fn.random.uniform(range=(-5.0, 5.0))
                images = fn.rotate(fn.flip(images, **flips), angle=angle, keep_size=True, fill_value=0)
        images = fn.random_resized_crop(images, size=256 if faithful else SIDE)
        scale = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD]}
        images = fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", crop=(SIDE, SIDE), **scale)
        return images, labels

    define: Any = pipeline_def(
        batch_size=cell.batch_size, num_threads=max(1, workers_of(cell)), device_id=0 if on_gpu else None
    )
    made = define(steps)()
    made.build()
    # Padded records at the end of an epoch are left out again, so that each pass has the images of its tree.
    batches = DALIClassificationIterator(made, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True)

    def pairs() -> Iterator[Any]:
        for (batch,) in batches:
            yield batch["data"], batch["label"].flatten()

    return _Repeatable(pairs)


class _Repeatable:
    """An iterable that starts anew each time: each pass calls `make`."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def _torchvision_gpu(cell: Cell, source: Source) -> Iterable[Any]:
    """nvJPEG decodes a batch of files, then torchvision's v2 transforms run on the GPU, image by image."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import InterpolationMode, v2

    share = 1.0 if source.fixed else 0.5
    angle = (5.0, 5.0) if source.fixed else 5.0
    once = [
        v2.RandomHorizontalFlip(share),
        v2.RandomVerticalFlip(share),
        v2.RandomRotation(angle, interpolation=InterpolationMode.NEAREST),
    ]
    fixed = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)} if source.fixed else {}
    crop = v2.RandomResizedCrop(SIDE, antialias=True, **fixed)
    if cell.transform == "imagenet":
        steps = [crop] if source.validation else [crop, v2.RandomHorizontalFlip(share)]
    else:
        steps = [crop] if source.validation else [*once * cell.load, crop]
    transform = v2.Compose(steps)
    mean = torch.tensor(MEAN, device="cuda").view(1, 3, 1, 1)
    scale = 1 / torch.tensor(STD, device="cuda").view(1, 3, 1, 1)
    files = _files(source.path)

    def batches() -> Iterator[Any]:
        order = list(range(len(files)))
        if not (source.validation or source.fixed):
            order = torch.randperm(len(files)).tolist()
        for number in range(math.ceil(len(order) / cell.batch_size)):
            chosen = [files[index] for index in order[number * cell.batch_size : (number + 1) * cell.batch_size]]
            images = decode_jpeg([read_file(str(file)) for file, _ in chosen], mode=ImageReadMode.RGB, device="cuda")
            batch = torch.stack([transform(image) for image in images])
            labels = torch.tensor([label for _, label in chosen])
            yield (batch.cpu() if source.fixed else (batch.float() / 255 - mean) * scale), labels

    return _Repeatable(batches)


def _files(root: Path) -> list[tuple[Path, int]]:
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    return [(file, label) for label, name in enumerate(classes) for file in sorted((root / name).iterdir())]
