"""Loaders of other projects, as rows of a trial: DALI, torchvision with nvJPEG, tf.data, FFCV.

In `faithful` cells DALI does what the article's script asks of it: both flips and five degrees for every image, on a canvas
that grows with each rotation, a crop of 256 pixels and its middle 224. In `corrected` cells all do the declared operations.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.trials.experiment.cells import Cell
from headrace.trials.experiment.source import Source, workers_of
from headrace.trials.experiment.transforms import MEAN, SIDE, STD

__all__ = ["open_peer"]


def open_peer(cell: Cell, source: Source) -> Iterable[Any]:
    """Return an iterable over (images, labels). Raises `UsageError` for operations that the loader is not written for here."""
    makers = {"dali-cpu": _dali, "dali-gpu": _dali, "tfdata": _tfdata, "torchvision-gpu": _torchvision_gpu}
    transforms = ("augmentation-load",) if cell.loader.startswith("dali") else ("augmentation-load", "imagenet")
    if cell.loader not in makers or cell.transform not in transforms:
        raise UsageError(f"{cell.loader} has no form of {cell.transform!r} here that gives the same pixels")
    return makers[cell.loader](cell, source)


def _dali(cell: Cell, source: Source) -> Iterable[Any]:
    """Return DALI's loader: files → decode → load × (flips, rotation) → crop → normalise."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali import math as math_of_dali
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    on_gpu = cell.loader == "dali-gpu"
    faithful = cell.mode == "faithful"
    # The article's script leaves DALI's linear interpolation; torchvision rotates with the nearest pixel.
    rotation = {"fill_value": 0, "interp_type": types.INTERP_LINEAR if faithful else types.INTERP_NN}

    def steps() -> Any:
        shuffle = not (source.validation or source.fixed)
        encoded, labels = fn.readers.file(
            file_root=str(source.path), random_shuffle=shuffle, pad_last_batch=True, name="Reader"
        )
        images = fn.decoders.image(encoded, device="mixed" if on_gpu else "cpu", output_type=types.RGB)
        for _ in range(0 if source.validation else cell.load):
            if faithful or source.fixed:
                images = fn.rotate(fn.flip(images, horizontal=1, vertical=1), angle=5.0, keep_size=not faithful, **rotation)
            else:
                flips = {"horizontal": fn.random.coin_flip(), "vertical": fn.random.coin_flip()}
                angle = fn.random.uniform(range=(-5.0, 5.0))
                images = fn.rotate(fn.flip(images, **flips), angle=angle, keep_size=True, **rotation)
        if source.fixed:
            shape = fn.peek_image_shape(encoded)
            side = fn.cast(math_of_dali.min(shape[0], shape[1]), dtype=types.FLOAT)
            images = fn.resize(fn.crop(images, crop_h=side, crop_w=side, rounding="truncate"), size=[SIDE, SIDE])
            return fn.transpose(images, perm=[2, 0, 1]), labels
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
    """Yield batches that nvJPEG decodes and torchvision's v2 transforms augment on the GPU, image by image."""
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


def _tfdata(cell: Cell, source: Source) -> Iterable[Any]:
    """Return tf.data's loader: read → decode → load × (flips, rotation) → crop and resize → normalise, in parallel."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    workers, fixed = max(1, workers_of(cell)), source.fixed
    load = 0 if source.validation or cell.transform == "imagenet" else cell.load

    def flipped(image: Any, axis: int) -> Any:
        chosen = tf.constant(True) if fixed else tf.random.uniform([]) < 0.5
        return tf.cond(chosen, lambda: tf.reverse(image, [axis]), lambda: image)

    def rotated(image: Any) -> Any:
        degrees = tf.constant(5.0) if fixed else tf.random.uniform([], -5.0, 5.0)
        values = _rotation(tf, degrees * (math.pi / 180), tf.shape(image))
        out: dict[str, Any] = {"output_shape": tf.shape(image)[:2], "interpolation": "NEAREST", "fill_mode": "CONSTANT"}
        return tf.raw_ops.ImageProjectiveTransformV3(images=image[None], transforms=values[None], fill_value=0.0, **out)[0]

    def prepare(path: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(
            tf.io.read_file(path), channels=3, dct_method="INTEGER_ACCURATE"
        )  # as libjpeg does for Pillow
        for _ in range(load):
            image = rotated(flipped(flipped(image, 1), 0))
        y, x, height, width = tf.unstack(_box(tf, tf.shape(image), fixed))
        image = tf.image.resize(image[y : y + height, x : x + width], [SIDE, SIDE], antialias=True)
        if cell.transform == "imagenet" and not source.validation:
            image = flipped(image, 1)
        image = tf.transpose(tf.round(image), [2, 0, 1])
        if fixed:
            return tf.cast(image, tf.uint8), label
        mean, std = (tf.reshape(tf.constant(values), [3, 1, 1]) for values in (MEAN, STD))
        return (image / 255 - mean) / std, label

    files = _files(source.path)
    names = sorted({file.parent.name for file, _ in files})
    data = tf.data.Dataset.from_tensor_slices(
        ([str(file) for file, _ in files], [names.index(file.parent.name) for file, _ in files])
    )
    if not (source.validation or fixed):
        data = data.shuffle(len(files))
    data = data.map(prepare, num_parallel_calls=workers, deterministic=fixed).batch(cell.batch_size).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    data = data.with_options(options)
    return _Repeatable(data.as_numpy_iterator)


def _rotation(tf: Any, radians: Any, shape: Any) -> Any:
    """Return the eight values that TensorFlow needs to rotate as Pillow does: from output to input, about the centre.

    Pillow maps the centres of pixels and rounds down; TensorFlow maps their numbers and rounds to the nearest.
    """
    cos, sin = tf.cos(radians), tf.sin(radians)
    y, x = tf.cast(shape[0], tf.float32) / 2, tf.cast(shape[1], tf.float32) / 2
    right, down = x - cos * x + sin * y, y - sin * x - cos * y
    zero = tf.zeros([])
    return tf.stack([cos, -sin, right + (cos - sin - 1) / 2, sin, cos, down + (sin + cos - 1) / 2, zero, zero])


def _box(tf: Any, shape: Any, fixed: bool) -> Any:
    """Return [y, x, height, width] of torchvision's RandomResizedCrop: the first of ten tries that fits, else in the middle."""
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    widest = 1.0 if fixed else 4 / 3
    h, w = tf.minimum(height, tf.round(width * widest)), tf.minimum(width, tf.round(height * widest))
    place = tf.constant([0.5, 0.5])
    if not fixed:
        area = height * width * tf.random.uniform([10], 0.08, 1.0)
        ratio = tf.exp(tf.random.uniform([10], math.log(3 / 4), math.log(4 / 3)))
        heights, widths = tf.round(tf.sqrt(area / ratio)), tf.round(tf.sqrt(area * ratio))
        fits = (heights <= height) & (widths <= width) & (heights > 0) & (widths > 0)
        first = tf.argmax(tf.cast(fits, tf.int32))
        h, w = tf.where(fits[first], heights[first], h), tf.where(fits[first], widths[first], w)
        place = tf.where(fits[first], tf.random.uniform([2]), place)
    return tf.cast(tf.stack([place[0] * (height - h), place[1] * (width - w), h, w]), tf.int32)


def _files(root: Path) -> list[tuple[Path, int]]:
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    return [(file, label) for label, name in enumerate(classes) for file in sorted((root / name).iterdir())]
