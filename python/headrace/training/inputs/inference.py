"""Prediction: the most probable classes of images in files, folders or datasets. A bad image does not end it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset, fingerprint
from headrace.datasets.records.table import RecordTable
from headrace.datasets.sources.folders.folder import IMAGE_EXTENSIONS
from headrace.errors import DecodeError, SourceError
from headrace.loading.loader import Loader
from headrace.system.files.regular_file import check_regular
from headrace.training.distributed.devices import Device
from headrace.training.inputs.input import evaluation_loader
from headrace.training.models.factory import SMALL_IMAGE
from headrace.training.weights.evaluation import model_scores
from headrace.training.weights.trained_weights import Weights

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FoundImages", "LeftOut", "Prediction", "open_images", "predict"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one image. likely: (class, probability) pairs, the most probable first; empty if `error` is set."""

    image: str
    likely: tuple[tuple[str, float], ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A path that was left out: named like an image, but not a file. reason: what it is ("a named pipe, not a file")."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FoundImages:
    """The images to predict as a dataset, and the paths that were left out."""

    dataset: Dataset
    left_out: tuple[LeftOut, ...] = ()


def open_images(places: Sequence[Path]) -> FoundImages:
    """Open the images at `places` as a dataset: image files, all images below folders, or one packed dataset or container.

    Raises SourceError if there are none.
    """
    if len(places) == 1 and (found := _packed(places[0])) is not None:
        return FoundImages(found)
    files: list[str] = []
    left_out: list[LeftOut] = []
    for place in places:
        images, others = _images_below(place)
        if not images:
            what = "no such file or folder" if not os.path.lexists(place) else others[0].reason if others else "no image there"
            raise SourceError(f"{place}: {what}", hint=f"files ending in {' '.join(IMAGE_EXTENSIONS)}, or folders of them")
        files += images
        left_out += others
    count = len(files)
    table = RecordTable(
        files=tuple(files),
        file=np.arange(count, dtype=np.int32),
        offset=np.zeros(count, dtype=np.int64),
        size=np.full(count, -1, dtype=np.int64),
        label=np.zeros(count, dtype=np.int64),
        keys=tuple(files),
    )
    mark = fingerprint(table.keys, table.size, table.label)
    return FoundImages(Dataset(str(places[0]), "folder", table, ("",), mark), tuple(left_out))


def _images_below(place: Path) -> tuple[list[str], list[LeftOut]]:
    """Return the image files at or below `place`, and what has the name of an image but is no file. Folders are no images."""
    images: list[str] = []
    others: list[LeftOut] = []
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.suffix.lower() not in IMAGE_EXTENSIONS or file.is_dir():
            continue
        try:
            check_regular(file)
        except OSError as error:
            others.append(LeftOut(str(file), error.strerror or str(error)))
        else:
            images.append(str(file))
    return images, others


def _packed(place: Path) -> Dataset | None:
    """Open the dataset at `place`; None if that is an image or a folder of images."""
    if place.suffix.lower() in IMAGE_EXTENSIONS and not place.is_dir():  # a file, or what stands in place of one
        return None
    try:
        found = open_stored(place)
    except SourceError:
        if place.is_dir():  # images without class folders, or in deeper folders
            return None
        raise
    return None if found.kind == "folder" else found


def predict(
    model: nn.Module,
    weights: Weights,
    data: Dataset,
    *,
    device: Device,
    top: int = 5,
    batch_size: int = 64,
    image_size: int | None = None,
    flip: bool | None = None,
    threads: int | None = None,
) -> Iterator[Prediction]:
    """Yield the model's prediction for each image of `data`, in order, with the `top` most probable classes.

    `image_size` and `flip` are by default those of the run's own evaluation; `threads` is that of the machine.
    """
    import torch

    count = len(data)
    # Each record's label is its own number. Where the loader replaced a bad image, the number of the other image shows it.
    numbered = replace(data, table=replace(data.table, label=np.arange(count, dtype=np.int64)))
    size, flip = image_size or weights.test_size, weights.flip_test if flip is None else flip
    small = weights.image_size <= SMALL_IMAGE
    loader = evaluation_loader(
        numbered, size, small=small, batch_size=min(batch_size, count), device=device, threads=threads, on_error="skip"
    )
    model = model.to(device.torch_name).eval()
    with loader, torch.inference_mode():
        record = 0
        try:
            for images, numbers in loader:
                probabilities = model_scores(model, images.to(device.torch_name), flip=flip).softmax(1).cpu()
                values, indices = probabilities.topk(min(top, probabilities.shape[1]), dim=1)
                for number, value, index in zip(numbers.tolist(), values.tolist(), indices.tolist(), strict=True):
                    if record == count:  # the last batch repeats images from the front
                        return
                    key = data.table.keys[record]
                    if number == record:
                        yield Prediction(
                            key, tuple((weights.classes[one], share) for one, share in zip(index, value, strict=True))
                        )
                    else:
                        yield Prediction(key, (), _reason(loader, key))
                    record += 1
        except DecodeError:
            if record:
                raise
            for key in data.table.keys:  # none of them can be decoded, so nothing could replace them
                yield Prediction(key, (), _reason(loader, key))


def _reason(loader: Loader, key: str) -> str:
    return next((one.reason for one in loader.stats().skipped if one.key == key), "cannot be decoded")
