"""Photographs like ImageNet's, cropped from those that scikit-image and scikit-learn ship, for the demo and the trials.

Nothing is downloaded: files are read from the installed packages, and the functions of skimage.data, which may download, are
not called. Nothing is enlarged, and each crop is a different part of its photograph. Sizes, bits per pixel and chroma
subsampling follow a random sample of 400 ImageNet files: about 470 × 400 pixels, about 4.7 bits per pixel, 4:4:4 for most,
4:2:0 for a fifth, 4:2:2 for a few.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import MissingDependencyError, SourceError
from headrace.images.raster import open_raster
from headrace.system.text.install_hints import extra_hint

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["CLASSES", "IMAGES_PER_CLASS", "is_complete", "make"]

# Class → its photographs, as package and path inside the package. All have enough detail: smooth images (a retina, the moon)
# do not reach ImageNet's bits per pixel at any quality.
CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "astronaut": (("skimage", "data/astronaut.png"),),
    "cat": (("skimage", "data/chelsea.png"),),
    "coffee": (("skimage", "data/coffee.png"),),
    "flower": (("sklearn", "datasets/images/flower.jpg"),),
    "galaxies": (("skimage", "data/hubble_deep_field.jpg"),),
    "grass": (("skimage", "data/grass.png"),),
    "gravel": (("skimage", "data/gravel.png"),),
    "motorcycle": (("skimage", "data/motorcycle_left.png"), ("skimage", "data/motorcycle_right.png")),
    "photographer": (("skimage", "data/camera.png"),),
    "rocket": (("skimage", "data/rocket.jpg"),),
    "temple": (("sklearn", "datasets/images/china.jpg"),),
    "tissue": (("skimage", "data/ihc.png"),),
}
IMAGES_PER_CLASS = 100
SUBSAMPLINGS = {"4:4:4": 0.77, "4:2:0": 0.20, "4:2:2": 0.03}
WIDTHS, HEIGHTS = (400, 560), (330, 480)
TARGET_BITS_PER_PIXEL = (3.7, 5.8)
BITS_PER_PIXEL = (3.5, 6.0)
QUALITIES = (75, 85, 91, 95, 98, 100)
# Change this when the files change: a folder made by another version is replaced.
VERSION = "2"
STAMP = ".complete"


def is_complete(folder: Path) -> bool:
    """Return whether `make` has finished in `folder`, with this `VERSION` of the images."""
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text() == VERSION


def make(
    folder: Path,
    *,
    per_class: int = IMAGES_PER_CLASS,
    first: int = 0,
    length: float = 1.0,
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Cut JPEGs from the photographs into `folder`/CLASS/NNNN.jpg; return their number. The folder appears whole or not at all.

    Each image has its own seed: the same Pillow writes the same files every time. `first`: number of the first image of each
    class; images of different numbers differ. `length`: factor on widths and heights, as far as the photographs are that
    large. `advance` receives the number of images just written.
    Raises MissingDependencyError without the photographs, SourceError if `folder` exists and was not made here.
    """
    if folder.exists() and not (folder / STAMP).is_file():
        raise SourceError(f"{folder} exists and was not made by headrace", hint="remove it, or choose another folder")
    # A folder, which rename(2) replaces only when it is empty: `replacing` is for files.
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    photographs = _load()
    for name in CLASSES:
        (partial / name).mkdir(parents=True)
    jobs = [(name, index) for index in range(first, first + per_class) for name in CLASSES]
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # Pillow encodes without the GIL
            made = pool.map(lambda job: _crop(photographs[job[0]], job[0], job[1], length), jobs)
            for (name, index), jpeg in zip(jobs, made, strict=True):
                (partial / name / f"{index:04d}.jpg").write_bytes(jpeg)
                advance(1)
        (partial / STAMP).write_text(VERSION)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(jobs)


def _load() -> dict[str, list[_Photograph]]:
    try:
        import PIL.Image  # noqa: F401 (`open_raster` needs it)
    except ImportError as error:
        raise MissingDependencyError("making photographs needs Pillow", hint=extra_hint("demo")) from error
    loaded: dict[str, list[_Photograph]] = {}
    for name, files in CLASSES.items():
        for package, path in files:
            with open_raster(_package_folder(package) / path) as image:
                loaded.setdefault(name, []).append(_measured(image.convert("RGB")))
    return loaded


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)  # finds without importing: scikit-learn takes a second to import
    if spec is None or spec.origin is None:
        wheel = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
        hint = f"{extra_hint('demo')}, or give your own image folder with --data"
        raise MissingDependencyError(f"the photographs come with {wheel}, which is not installed", hint=hint)
    return Path(spec.origin).parent


def _crop(photographs: list[_Photograph], name: str, index: int, length: float) -> bytes:
    """Return a JPEG: a random part of a photograph, at the quality that gives about a random number of bits per pixel."""
    random_source = random.Random(f"{VERSION}/{name}/{index}")
    for _ in range(40):  # a crop of empty sky may not reach the bits at any quality: crop again
        photograph = random_source.choice(photographs)
        image = photograph.image
        width = min(round(length * random_source.randint(*WIDTHS)), image.width - 4)
        height = min(round(length * random_source.randint(*HEIGHTS)), image.height - 4)
        left, top = random_source.randint(0, image.width - width), random_source.randint(0, image.height - height)
        subsampling = random_source.choices(list(SUBSAMPLINGS), list(SUBSAMPLINGS.values()))[0]
        part = image.crop((left, top, left + width, top + height))
        quality = photograph.quality(subsampling, random_source.uniform(*TARGET_BITS_PER_PIXEL))
        for candidate in (quality, quality - 4, quality + 4):  # a crop has more or less detail than its whole photograph
            if QUALITIES[0] <= candidate <= QUALITIES[-1]:
                jpeg = _encode(part, candidate, subsampling)
                if BITS_PER_PIXEL[0] <= 8 * len(jpeg) / (width * height) <= BITS_PER_PIXEL[1]:
                    return jpeg
    raise SourceError(f"no part of the photograph {name!r} has enough detail", hint="reinstall scikit-image")


@dataclass(frozen=True, slots=True)
class _Photograph:
    """An image, and its bits per pixel at each of QUALITIES, for each subsampling."""

    image: Image.Image
    bits: dict[str, list[float]]

    def quality(self, subsampling: str, bits_per_pixel: float) -> int:
        """Return the quality that gives about `bits_per_pixel`, interpolated linearly between the measured ones."""
        bits = self.bits[subsampling]
        for index in range(1, len(QUALITIES)):
            if bits[index] >= bits_per_pixel:
                share = (bits_per_pixel - bits[index - 1]) / (bits[index] - bits[index - 1])
                return round(QUALITIES[index - 1] + max(0.0, share) * (QUALITIES[index] - QUALITIES[index - 1]))
        return QUALITIES[-1]


def _measured(image: Image.Image) -> _Photograph:
    pixels = image.width * image.height
    bits = {kind: [8 * len(_encode(image, quality, kind)) / pixels for quality in QUALITIES] for kind in SUBSAMPLINGS}
    return _Photograph(image, bits)


def _encode(image: Image.Image, quality: int, subsampling: str) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=subsampling)
    return file.getvalue()
