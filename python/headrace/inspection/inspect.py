"""`headrace inspect`: facts about a dataset, from its index and the headers of a sample of its images.

Counts and class balance are exact. Sizes, formats and qualities come from `sampled` images spread evenly over the dataset (all
images of a small one). The cost of decoding is measured as CPU time on this machine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.datasets.open import open_stored
from headrace.datasets.records.dataset import Dataset
from headrace.errors import DecodeError, HeadraceError, SourceError, UsageError
from headrace.images.header import EIGHT_BITS, ImageHeader, read_header
from headrace.inspection.contact_sheet import contact_sheet
from headrace.inspection.decode_cost import measure_decode_cost
from headrace.inspection.object_sizes import ObjectSizes, object_sizes
from headrace.system.files.atomic_write import write_output
from headrace.system.hardware import machine

__all__ = ["Inspection", "Spread", "deep_samples_note", "inspect_dataset", "sampled_values"]

SAMPLE = 2000  # images to read; a share is then known to about ±2 percentage points (95 % confidence, binomial)


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of one number over the sampled images: mean, extremes, and the 5th, 50th and 95th percentile."""

    mean: float
    min: float
    p5: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts about a dataset, as `inspect_dataset` returns them. None: not measured."""

    path: str
    kind: str
    records: int
    classes: int
    per_class: Spread | None  # number of records in a class
    records_per_class: Mapping[str, int]
    empty_classes: int
    smallest_classes: Mapping[str, int]
    largest_classes: Mapping[str, int]
    unlabeled: int
    extras: Mapping[str, int]  # name of a sidecar file without its key ("seg.png") → number of records that have one
    strays: int  # members of archives without an image, and image files that torchvision's ImageFolder would ignore
    other_files: int  # files in the class folders whose ending is not that of an image
    ignored_folders: tuple[str, ...]  # of an image folder, which are not entered: hidden ones, and those of a Mac's archive
    bytes: int | None  # size of all images together
    sampled: int  # images read for the fields below
    unreadable: Mapping[str, str]  # key → reason, of the sampled images that cannot be read
    formats: Mapping[str, int]  # format → number of sampled images
    samples: Mapping[str, int]  # "8-bit", "16-bit", "floating-point", … → number of sampled images
    subsampling: Mapping[str, int]  # chroma subsampling → number of sampled JPEGs
    processes: Mapping[str, int]  # "baseline", "progressive", … → number of sampled JPEGs
    restart_markers: float | None  # share of the sampled JPEGs that have restart markers, 0 to 1
    quality: Spread | None  # IJG quality of the sampled JPEGs, estimated from their luminance table
    width: Spread | None  # pixels
    height: Spread | None  # pixels
    size_bytes: Spread | None
    bits_per_pixel: float | None
    decode_ms: float | None  # CPU time to decode a whole image and resize it to 224 × 224, on one core of this machine
    decode_img_s_per_core: float | None
    crop_ms: float | None  # CPU time to decode a random crop, as a training loader does
    crop_img_s_per_core: float | None
    indexed_crop_ms: float | None  # `crop_ms` with a JPEG index, from the second epoch on; None if no file takes an index
    objects: ObjectSizes | None  # sizes of the files that an object store would hold
    contact_sheet: str | None


@dataclass(frozen=True, slots=True)
class _SampledImage:
    """An image of the sample: size in bytes and header, or why it cannot be read."""

    size: int
    header: ImageHeader | None
    error: str = ""


def inspect_dataset(
    path: str | os.PathLike[str] | Dataset,
    *,
    sample: int = SAMPLE,
    sheet: str | os.PathLike[str] | None = None,
    workers: int | None = None,
) -> Inspection:
    """Return facts about the dataset at `path`.

    path: path or URL for `headrace.open`, or an open dataset. sample: number of images to read (2,000).
    sheet: PNG file to write a contact sheet to (default: none). workers: threads (default: one for each core).

    Raises what `headrace.open` raises, UsageError for a sample below 1, HeadraceError if the sheet cannot be written.
    """
    if sample < 1:
        raise UsageError(f"sample is {sample}; at least 1 image is needed")
    (dataset := path if isinstance(path, Dataset) else open_stored(path, list_unreadable=True)).check_stored()
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(sample, len(dataset))).astype(np.int64))
    images = _read_sample(dataset, rows, workers)
    headers = [image.header for image in images if image.header is not None]
    jpegs = [header.jpeg for header in headers if header.jpeg is not None]
    counts = np.bincount(dataset.table.label[dataset.table.label >= 0], minlength=len(dataset.classes))
    cost = measure_decode_cost(dataset, rows[[image.header is not None for image in images]].tolist())
    _write_sheet(sheet, dataset)
    return Inspection(
        path=dataset.root,
        kind=dataset.kind,
        records=len(dataset),
        classes=len(dataset.classes),
        per_class=_spread(counts),
        records_per_class=_some(dataset, counts, np.arange(len(dataset.classes))),
        empty_classes=int((counts == 0).sum()),
        smallest_classes=_some(dataset, counts, np.argsort(counts, kind="stable")[:3]),
        largest_classes=_some(dataset, counts, np.argsort(-counts, kind="stable")[:3]),
        unlabeled=int((dataset.table.label < 0).sum()),
        extras=dataset.table.sidecars.counts() if dataset.table.sidecars is not None else {},
        strays=len(dataset.strays),
        other_files=dataset.other_files,
        ignored_folders=dataset.ignored_folders,
        bytes=_bytes(dataset, images),
        sampled=len(images),
        unreadable={dataset.table.keys[int(row)]: image.error for row, image in zip(rows, images, strict=True) if image.error},
        formats=_counted(header.format for header in headers),
        samples=_counted(header.samples for header in headers),
        subsampling=_counted(jpeg.subsampling for jpeg in jpegs),
        processes=_counted(jpeg.process for jpeg in jpegs),
        restart_markers=sum(jpeg.restart_interval > 0 for jpeg in jpegs) / len(jpegs) if jpegs else None,
        quality=_spread(np.array([jpeg.quality for jpeg in jpegs if jpeg.quality is not None])),
        width=_spread(np.array([header.width for header in headers])),
        height=_spread(np.array([header.height for header in headers])),
        size_bytes=_spread(np.array([image.size for image in images if image.header])),
        bits_per_pixel=_bits_per_pixel(images),
        decode_ms=1000 * cost.whole_s if cost else None,
        decode_img_s_per_core=1 / cost.whole_s if cost else None,
        crop_ms=1000 * cost.crop_s if cost else None,
        crop_img_s_per_core=1 / cost.crop_s if cost else None,
        indexed_crop_ms=1000 * cost.indexed_crop_s if cost and cost.indexed_crop_s else None,
        objects=object_sizes(dataset),
        contact_sheet=str(sheet) if sheet is not None else None,
    )


def deep_samples_note(samples: Mapping[str, int]) -> str | None:
    """Return what a Loader makes of images whose values have more than 8 bits, None if there are none."""
    deep = {name: count for name, count in samples.items() if name != EIGHT_BITS}
    if not deep:
        return None
    words = ", ".join(f"{name} {count:,}" for name, count in deep.items())
    rules = ['a Loader keeps the upper 8 bits (depth="clip" makes all gray above 255 white)'] if "16-bit" in deep else []
    rules += ["it cannot decode floating-point values: scale them to 8 or 16 bits first"] if "floating-point" in deep else []
    return "; ".join([words, *rules])


def sampled_values(dataset: Dataset, count: int = 200) -> dict[str, int]:
    """Return the kinds of values of `count` images spread over the dataset: "8-bit", "16-bit", … → number of images."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(np.int64))
    headers = [_read_image(dataset, int(row)).header for row in rows]
    return _counted(header.samples for header in headers if header is not None)


def _write_sheet(path: str | os.PathLike[str] | None, dataset: Dataset) -> None:
    if path is None:
        return
    data = contact_sheet(dataset)
    try:
        write_output(Path(path), data)
    except OSError as error:
        raise HeadraceError(f"cannot write the contact sheet {os.fspath(path)}: {error.strerror or error}") from error


def _read_sample(dataset: Dataset, rows: npt.NDArray[np.int64], workers: int | None) -> list[_SampledImage]:
    threads = workers or max(1, round(machine.cores().usable))
    with ThreadPoolExecutor(threads, thread_name_prefix="headrace-inspect") as pool:
        return list(pool.map(lambda row: _read_image(dataset, int(row)), rows))


def _read_image(dataset: Dataset, row: int) -> _SampledImage:
    try:
        data = dataset.read(row)
        return _SampledImage(len(data), read_header(data))
    except (SourceError, DecodeError) as error:
        return _SampledImage(0, None, str(error))


def _bytes(dataset: Dataset, images: list[_SampledImage]) -> int | None:
    """Return the bytes of all images if the index has them or all images were sampled, else None."""
    if (dataset.table.size >= 0).all():
        return int(dataset.table.size.sum())
    return sum(image.size for image in images) if len(images) == len(dataset) else None


def _bits_per_pixel(images: list[_SampledImage]) -> float | None:
    pixels = sum(image.header.width * image.header.height for image in images if image.header)
    return 8 * sum(image.size for image in images) / pixels if pixels else None


def _counted(values: object) -> dict[str, int]:
    return dict(Counter(values).most_common())  # type: ignore[call-overload]


def _some(dataset: Dataset, counts: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> dict[str, int]:
    return {dataset.classes[int(label)]: int(counts[label]) for label in labels}


def _spread(values: npt.NDArray[np.int64]) -> Spread | None:
    if not len(values):
        return None
    low, middle, high = (float(value) for value in np.percentile(values, (5, 50, 95)))
    return Spread(float(values.mean()), float(values.min()), low, middle, high, float(values.max()))
