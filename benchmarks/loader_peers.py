"""The loaders that benchmarks/loaders.py measures, one function each: (prepared data, float32 or uint8, cores) -> batches.

Every loader does the same job: random order, RandomResizedCrop(224) with torchvision's distribution, horizontal flip,
batches of 256; uint8 in the loader's native layout, or normalised float32 of shape (N, 3, 224, 224). Each has as many
workers or threads as cores, and follows the recommendations of its own documentation. results/notes/loaders.md names the
differences.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

BATCH, SIDE, CLASSES, REPEAT = 256, 224, 10, 200  # 400 photographs, listed 200 times: enough for 16 workers
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Make = Callable[[Path, bool, int], Iterable[Any]]


def pytorch(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    from torch.utils.data import ConcatDataset, DataLoader
    from torchvision.datasets import ImageFolder

    data = ConcatDataset([ImageFolder(str(root / "folder"), _pillow_transform(floats))] * REPEAT)
    return DataLoader(data, BATCH, shuffle=True, num_workers=cores, drop_last=True)


def _pillow_transform(floats: bool) -> Any:
    from torchvision import transforms

    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if floats else [transforms.PILToTensor()]
    return transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), *last])


def _tensor_transform(floats: bool) -> Any:
    import torch
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if floats else steps)


def _files(root: Path) -> list[tuple[str, int]]:
    return [(str(path), int(path.parent.name[1:])) for path in sorted((root / "folder").rglob("*.jpg"))]


def _map_style(files: list[tuple[str, int]], load: Callable[[str], Any], cores: int) -> Iterable[Any]:
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(files) * REPEAT

        def __getitem__(self, number: int) -> Any:
            path, label = files[number % len(files)]
            return load(path), label

    return DataLoader(Images(), BATCH, shuffle=True, num_workers=cores, drop_last=True)


def torchvision_io(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    from torchvision.io import ImageReadMode, decode_image

    transform = _tensor_transform(floats)
    return _map_style(_files(root), lambda path: transform(decode_image(path, mode=ImageReadMode.RGB)), cores)


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """Return (x, y, w, h) by torchvision's RandomResizedCrop: the middle square where ten tries find no box."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def opencv(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    import cv2

    cv2.setNumThreads(0)
    mean, scale = np.float32(MEAN) * 255, 1 / (np.float32(STD) * 255)

    def load(path: str) -> Any:
        image = cv2.cvtColor(cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        x, y, w, h = box(image.shape[1], image.shape[0])
        image = cv2.resize(image[y : y + h, x : x + w], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
        return np.ascontiguousarray(((image - mean) * scale).transpose(2, 0, 1)) if floats else image

    return _map_style(_files(root), load, cores)


def webdataset(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    import webdataset as wds

    shards = [str(path) for path in sorted((root / "pack").glob("*.tar"))]
    data = wds.WebDataset(shards, resampled=True, shardshuffle=False).shuffle(200).decode("pil")
    data = data.to_tuple("jpg", "cls").map_tuple(_pillow_transform(floats), int).batched(BATCH)
    return wds.WebLoader(data, batch_size=None, num_workers=cores)


def litdata(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset
    from PIL import Image

    transform = _pillow_transform(floats)

    class Images(StreamingDataset):
        def __getitem__(self, number: Any) -> Any:
            record = super().__getitem__(number)
            return transform(Image.open(io.BytesIO(record["image"])).convert("RGB")), record["label"]

    data = Images(str(root / "litdata"), shuffle=True, subsample=float(REPEAT))
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=cores, drop_last=True)


def dali_cpu(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=cores, device_id=None, prefetch_queue_depth=2)
    def pipeline():  # type: ignore[no-untyped-def]
        encoded, labels = fn.readers.file(file_root=str(root / "folder"), random_shuffle=True, initial_fill=1024)
        images = fn.decoders.image_random_crop(encoded, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
        images = fn.resize(images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)
        flip = fn.random.coin_flip(probability=0.5)
        if not floats:
            return fn.flip(images, horizontal=flip), labels
        scale = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD]}
        return fn.crop_mirror_normalize(images, mirror=flip, output_layout="CHW", dtype=types.FLOAT, **scale), labels

    made = pipeline()
    made.build()

    def batches() -> Iterator[Any]:
        while True:
            images, labels = made.run()
            yield images.as_array(), labels.as_array()

    return batches()


def ffcv(file: str) -> Make:
    def make(root: Path, floats: bool, cores: int) -> Iterable[Any]:
        from ffcv.fields.decoders import IntDecoder
        from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

        mean, std = np.array(MEAN) * 255, np.array(STD) * 255
        image: list[Any] = [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]
        image += [NormalizeImage(mean, std, np.float32)] if floats else []
        return Loader(
            str(root / file),
            batch_size=BATCH,
            num_workers=cores,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=True,
            indices=np.tile(np.arange(len(_files(root))), REPEAT),
            pipelines={"image": [*image, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor(), Squeeze()]},
        )

    return make


def spdl(root: Path, floats: bool, cores: int) -> Iterable[Any]:
    import torch
    from spdl.pipeline import PipelineBuilder
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    files, transform, chunk = _files(root), _tensor_transform(floats), 16

    def source() -> Iterator[Any]:
        while True:
            yield from random.sample(files, len(files))

    def load(items: Sequence[tuple[str, int]]) -> list[Any]:
        return [(transform(decode_jpeg(read_file(path), mode=ImageReadMode.RGB)), label) for path, label in items]

    def collate(parts: Sequence[list[Any]]) -> Any:
        items = [item for part in parts for item in part]
        return torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])

    builder = PipelineBuilder().add_source(source()).aggregate(chunk)
    builder = builder.pipe(load, concurrency=cores, output_order="completion").aggregate(BATCH // chunk).pipe(collate)
    pipeline = builder.add_sink(2).build(num_threads=cores)

    def batches() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return batches()


def tf_data(antialias: bool) -> Make:
    def make(root: Path, floats: bool, cores: int) -> Iterable[Any]:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
        mean, std = tf.constant(MEAN) * 255, tf.constant(STD) * 255

        def crop(shape: Any) -> Any:
            """Return the box as [y, x, h, w]: the first of ten tries that fits, else the middle square."""
            height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
            area = height * width * tf.random.uniform([10], 0.08, 1.0)
            ratio = tf.exp(tf.random.uniform([10], math.log(3 / 4), math.log(4 / 3)))
            w, h = tf.round(tf.sqrt(area * ratio)), tf.round(tf.sqrt(area / ratio))
            fits = (w <= width) & (h <= height)
            first = tf.argmax(tf.cast(fits, tf.int32))
            side, found = tf.minimum(width, height), fits[first]
            w, h = tf.where(found, w[first], side), tf.where(found, h[first], side)
            place = tf.where(found, tf.random.uniform([2]), [0.5, 0.5])
            x, y = tf.floor(place[0] * (width - w)), tf.floor(place[1] * (height - h))
            return tf.cast(tf.stack([y, x, h, w]), tf.int32)

        def load(path: Any, label: Any) -> Any:
            encoded = tf.io.read_file(path)
            window = crop(tf.image.extract_jpeg_shape(encoded))
            image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_ACCURATE")
            image = tf.image.random_flip_left_right(tf.image.resize(image, [SIDE, SIDE], antialias=antialias))
            if floats:
                return tf.transpose((image - mean) / std, [2, 0, 1]), label
            return tf.cast(tf.round(image), tf.uint8), label

        paths, labels = zip(*_files(root), strict=True)
        data = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).shuffle(len(paths)).repeat()
        data = data.map(load, num_parallel_calls=cores, deterministic=False).batch(BATCH, drop_remainder=True).prefetch(2)
        options = tf.data.Options()
        options.threading.private_threadpool_size = cores
        options.autotune.enabled = False
        return data.with_options(options).as_numpy_iterator()

    return make


def ours(source: str, *, later: bool = False, output: Literal["torch", "numpy"] = "torch") -> Make:
    """headrace over `source`. The list holds every photograph REPEAT times, each as a record of its own: so nothing that was
    learned of a file is used again, as in a first epoch. `later`: what was learned is used, as in later epochs."""

    def make(root: Path, floats: bool, cores: int) -> Iterable[Any]:
        import headrace
        import headrace.loading.loader

        data = headrace.open(root / source)
        count, make_batch = len(data), headrace.loading.loader._index_batch

        def known(*arguments: Any) -> Any:
            batch = make_batch(*arguments)
            return replace(batch, records=batch.records % count)  # other draws each time, of files seen before

        if later:  # this process measures nothing else
            headrace.loading.loader._index_batch = known
        transform = headrace.transforms.imagenet_train(SIDE, normalize=floats)
        dtype: Literal["float32", "uint8"] = "float32" if floats else "uint8"
        loader = headrace.Loader(repeated(data), BATCH, transform, threads=cores, dtype=dtype, output=output)

        def epochs() -> Iterator[Any]:
            while True:
                yield from loader

        return epochs()

    return make


def repeated(data: Any) -> Any:
    """Return the dataset with every record listed REPEAT times."""
    table = data.table
    columns = {name: np.tile(getattr(table, name), REPEAT) for name in ("file", "offset", "size", "label")}
    known = {
        name: np.tile(column, REPEAT) for name in ("width", "height", "crc32c") if (column := getattr(table, name)) is not None
    }
    return replace(data, table=replace(table, keys=list(table.keys) * REPEAT, **columns, **known))


@dataclass(frozen=True)
class Peer:
    """A row of the table: what makes its batches, the package that must be there, batches to wait before measuring, and
    whether its batches are PyTorch's (or it loads PyTorch in any case)."""

    make: Make
    package: str
    warm_up: int = 4
    torch: bool = True

    def installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.package) is not None
        except ModuleNotFoundError:  # of a package that its own package is missing
            return False


PEERS: dict[str, Peer] = {
    "torch DataLoader, PIL transforms": Peer(pytorch, "torchvision"),
    "torch DataLoader, torchvision.io + v2": Peer(torchvision_io, "torchvision"),
    "torch DataLoader, OpenCV": Peer(opencv, "cv2"),
    "DALI, CPU": Peer(dali_cpu, "nvidia.dali"),
    "FFCV, original bytes": Peer(ffcv("original.beton"), "ffcv"),
    "SPDL, torchvision.io": Peer(spdl, "spdl"),
    "tf.data": Peer(tf_data(True), "tensorflow", torch=False),
    "tf.data, without antialias": Peer(tf_data(False), "tensorflow", torch=False),
    "WebDataset, PIL transforms": Peer(webdataset, "webdataset"),
    "LitData, PIL transforms": Peer(litdata, "litdata"),
    "headrace, image folder, first epoch": Peer(ours("folder"), "headrace"),
    "headrace, image folder, later epochs": Peer(ours("folder", later=True), "headrace", warm_up=10),
    "headrace, packed (lossless)": Peer(ours("pack"), "headrace"),
    "headrace, packed (lossless), NumPy": Peer(ours("pack", output="numpy"), "headrace", torch=False),
    "FFCV, 500 px q90": Peer(ffcv("small.beton"), "ffcv"),
    "headrace, packed 500 px q90": Peer(ours("small-pack"), "headrace"),
}
