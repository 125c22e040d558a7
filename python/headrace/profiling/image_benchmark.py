"""The image benchmark: CPU time of decoding a job's own images with Pillow, with headrace, and shrunk beforehand.

It uses one thread and takes a second or two. With Pillow means as torchvision does it: decode the whole image, crop, resize
bilinearly to 224 × 224, convert to float.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import HeadraceError
from headrace.images.decode import decode_into
from headrace.images.raster import open_raster
from headrace.profiling.command import add_fact
from headrace.session.model import Session
from headrace.system.files.regular_file import read_regular

__all__ = ["ImageBenchmark", "measure_images", "with_image_benchmark"]

SIZE = 224
SHORT_SIDE = 256
MAX_IMAGES = 24
MAX_BYTES = 64 << 20
"""Leave larger files out: all are held at once, and zeros behind an image cost nothing."""
MAX_SECONDS = 0.8
QUALITY = 90

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ImageBenchmark:
    """CPU seconds to load one image of the job in different ways. None: not measured.

    `plain_s`: with Pillow. `headrace_s`: with headrace, for JPEGs only. `pre_resized_s`: with Pillow, of images shrunk
    beforehand to a short side of 256; None where no image is larger. `pre_resized_bytes_ratio`: bytes of the shrunk files
    over those of the originals. `headrace_pre_resized_s`: headrace on the shrunk copies. `resized_…_s`: decode, crop and
    resize to a Pillow image, with Pillow and with headrace; `cropped_…_s`: without the resize. These are measured for loaders
    that `headrace run` takes over in part.
    """

    images: int
    plain_s: float
    headrace_s: float | None
    pre_resized_s: float | None
    pre_resized_bytes_ratio: float | None
    headrace_pre_resized_s: float | None = None
    resized_plain_s: float | None = None
    resized_headrace_s: float | None = None
    cropped_plain_s: float | None = None
    cropped_headrace_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """One image file and one crop of it, as it is and shrunk to a short side of 256."""

    data: bytes
    box: Box
    shrunk: bytes
    shrunk_box: Box
    is_larger: bool


def measure_images(
    paths: Sequence[str], *, native_part: str | None = None, native_loader: bool = False, seed: int = 0
) -> ImageBenchmark | None:
    """Return the CPU time of decoding up to 24 of the images in `paths`; None if Pillow is missing or no file can be read.

    `native_part`: "resized" or "cropped", to time native decode of a loader that is taken over in part. `native_loader`:
    whether a `headrace.Loader` reads the images, to time headrace on the shrunk copies as well.
    """
    samples = _read_samples(paths[:MAX_IMAGES], random.Random(seed))
    if not samples:
        return None
    files = [(sample.data, sample.box) for sample in samples]
    shrunk = [(sample.shrunk, sample.shrunk_box) for sample in samples]
    is_jpeg = all(data[:2] == b"\xff\xd8" for data, _ in files)
    has_larger = any(sample.is_larger for sample in samples)
    bytes_ratio = sum(len(data) for data, _ in shrunk) / sum(len(data) for data, _ in files)
    return ImageBenchmark(
        images=len(files),
        plain_s=_seconds_per_image(_decode_with_pillow, files),
        headrace_s=_native_seconds(files) if is_jpeg else None,
        pre_resized_s=_seconds_per_image(_decode_with_pillow, shrunk) if has_larger else None,
        pre_resized_bytes_ratio=bytes_ratio if has_larger else None,
        headrace_pre_resized_s=_native_seconds(shrunk) if native_loader and is_jpeg and has_larger else None,
        **(_part_seconds(native_part, files) if native_part is not None and is_jpeg else {}),
    )


def _part_seconds(native_part: str, files: Sequence[tuple[bytes, Box]]) -> dict[str, float]:
    """Return the seconds per image of one part of the work with both decoders. Empty where an image cannot be decoded."""
    plain, native = (_resized_with_pillow, _resized_natively) if native_part == "resized" else (_cropped, _cropped_natively)
    try:
        return {
            f"{native_part}_plain_s": _seconds_per_image(plain, files),
            f"{native_part}_headrace_s": _seconds_per_image(native, files),
        }
    except HeadraceError:
        return {}


def _cropped(data: bytes, box: Box) -> Any:
    x, y, width, height = box
    return open_raster(data).convert("RGB").crop((x, y, x + width, y + height))


def _resized_with_pillow(data: bytes, box: Box) -> Any:
    from PIL import Image

    return _cropped(data, box).resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def _resized_natively(data: bytes, box: Box) -> Any:
    return _decoded_natively(data, box, SIZE, SIZE)


def _cropped_natively(data: bytes, box: Box) -> Any:
    return _decoded_natively(data, box, box[2], box[3])


def _decoded_natively(data: bytes, box: Box, width: int, height: int) -> Any:
    from PIL import Image

    out = np.empty((1, height, width, 3), np.uint8)
    if int(decode_into([data], out, boxes=[box], threads=1)[0]):
        raise HeadraceError("not decodable")
    return Image.fromarray(out[0])


def _read_samples(paths: Sequence[str], generator: random.Random) -> list[_Sample]:
    """The files that Pillow can read, each with a random crop. Empty where Pillow is missing."""
    try:
        import PIL.Image  # noqa: F401 (`open_raster` needs it)
    except ImportError:
        return []
    samples = []
    for path in paths:
        try:
            data = read_regular(Path(path), limit=MAX_BYTES)
            with open_raster(data) as image:
                size = image.size
                shrunk = _shrunk(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError):  # Pillow's errors for broken files
            continue
        crop = _random_crop(generator)
        with open_raster(shrunk) as image:
            shrunk_box = _box(image.size, crop)
        samples.append(_Sample(data, _box(size, crop), shrunk, shrunk_box, min(size) > SHORT_SIDE))
    return samples


def _decode_with_pillow(data: bytes, box: Box) -> None:
    pixels = np.asarray(_resized_with_pillow(data, box))
    np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / 255


def _native_seconds(files: Sequence[tuple[bytes, Box]]) -> float | None:
    """CPU seconds per image with headrace. None where one of the images cannot be decoded."""
    out = np.empty((1, SIZE, SIZE, 3), np.uint8)

    def decode(data: bytes, box: Box) -> None:
        if int(decode_into([data], out, boxes=[box], threads=1)[0]):
            raise HeadraceError("not decodable")

    try:
        return _seconds_per_image(decode, files)
    except HeadraceError:
        return None


def _seconds_per_image(function: Callable[[bytes, Box], None], files: Sequence[tuple[bytes, Box]]) -> float:
    """Lower quartile over passes of the CPU time of the process per image, after a few images to warm up."""
    for data, box in files[:4]:
        function(data, box)
    passes: list[float] = []
    begin_s = time.monotonic()
    while len(passes) < 2 or (len(passes) < 8 and time.monotonic() - begin_s < MAX_SECONDS):
        cpu_s = time.process_time()
        for data, box in files:
            function(data, box)
        passes.append((time.process_time() - cpu_s) / len(files))
        if time.monotonic() - begin_s > 2 * MAX_SECONDS:
            break
    return sorted(passes)[len(passes) // 4]


def _shrunk(image: Any) -> bytes:
    """The Pillow image with its short side at most 256 pixels, as JPEG."""
    scale = SHORT_SIDE / min(image.size)
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _random_crop(generator: random.Random) -> tuple[float, float, float]:
    """Area (0.08 to 1, as RandomResizedCrop draws it) and position in both directions (0 to 1)."""
    return generator.uniform(0.08, 1.0), generator.random(), generator.random()


def _box(size: tuple[int, int], crop: tuple[float, float, float]) -> Box:
    width, height = (max(1, int(side * crop[0] ** 0.5)) for side in size)
    return int((size[0] - width) * crop[1]), int((size[1] - height) * crop[2]), width, height


def with_image_benchmark(session: Session, folder: Path) -> Session:
    """Return the session with the image benchmark, also written to `folder`; unchanged where no image files are known."""
    paths = next((loader.sample_paths for loader in session.loaders if loader.sample_paths), ())
    part = next((loader.native_part for loader in session.loaders if loader.sample_paths and loader.native_part), None)
    is_native = any(loader.family == "headrace" for loader in session.loaders if loader.sample_paths)
    found = measure_images(paths, native_part=part, native_loader=is_native) if paths else None
    if found is None:
        return session
    add_fact(folder, "image_benchmark", asdict(found))
    return replace(session, facts={**session.facts, "image_benchmark": asdict(found)})
