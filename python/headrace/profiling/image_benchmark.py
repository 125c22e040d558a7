"""What decoding costs on this machine for this job's own images: the usual way, headrace's way, and made smaller first.

One thread, CPU time, a second or two. The usual way is what torchvision does with Pillow: decode the whole image, crop,
resize bilinearly to 224, convert to float.
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
from headrace.profiling.command import add_fact
from headrace.session.model import Session

__all__ = ["ImageBenchmark", "measure_images", "with_image_benchmark"]

SIZE = 224
SHORT_SIDE = 256
MOST_IMAGES = 24
MOST_SECONDS = 0.8
QUALITY = 90

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ImageBenchmark:
    """CPU seconds per image; `pre_resized_bytes_ratio`: size of the shrunk file over the original's.

    What is None could not be measured; of shrinking, where no image is larger than shrunk ones are.
    """

    images: int
    plain_s: float
    headrace_s: float | None
    pre_resized_s: float | None
    pre_resized_bytes_ratio: float | None


def measure_images(paths: Sequence[str], *, seed: int = 0) -> ImageBenchmark | None:
    """Time up to 24 of `paths`. None when Pillow is missing or no file can be read."""
    try:
        from PIL import Image
    except ImportError:
        return None
    random_boxes = random.Random(seed)
    files: list[tuple[bytes, Box]] = []
    small: list[tuple[bytes, Box]] = []
    shrinks = False
    for path in paths[:MOST_IMAGES]:
        try:
            data = Path(path).read_bytes()
            with Image.open(io.BytesIO(data)) as image:
                size = image.size
                shrunk = _shrunk(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError):  # Pillow's errors for broken files
            continue
        share = _crop(random_boxes)
        files.append((data, _box(size, share)))
        shrinks = shrinks or min(size) > SHORT_SIDE
        with Image.open(io.BytesIO(shrunk)) as image:
            small.append((shrunk, _box(image.size, share)))
    if not files:
        return None

    def plain(data: bytes, box: Box) -> None:
        x, y, width, height = box
        image = Image.open(io.BytesIO(data)).convert("RGB").crop((x, y, x + width, y + height))
        pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / 255

    out = np.empty((1, SIZE, SIZE, 3), np.uint8)

    def native(data: bytes, box: Box) -> None:
        status = decode_into([data], out, boxes=[box], threads=1)
        if int(status[0]):
            raise HeadraceError("not decodable")

    is_jpeg = all(data[:2] == b"\xff\xd8" for data, _ in files)
    bytes_ratio = sum(len(data) for data, _ in small) / sum(len(data) for data, _ in files)
    return ImageBenchmark(
        images=len(files),
        plain_s=_seconds_per_image(plain, files),
        headrace_s=_native_seconds(native, files) if is_jpeg else None,
        pre_resized_s=_seconds_per_image(plain, small) if shrinks else None,
        pre_resized_bytes_ratio=bytes_ratio if shrinks else None,
    )


def _native_seconds(native: Callable[[bytes, Box], None], files: Sequence[tuple[bytes, Box]]) -> float | None:
    try:
        return _seconds_per_image(native, files)
    except HeadraceError:
        return None


def _seconds_per_image(function: Callable[[bytes, Box], None], files: Sequence[tuple[bytes, Box]]) -> float:
    """The lower quartile of passes over the files, in CPU time of the process, after one pass that warms up."""
    for data, box in files[:4]:
        function(data, box)
    passes: list[float] = []
    begin_s = time.monotonic()
    while len(passes) < 2 or (len(passes) < 8 and time.monotonic() - begin_s < MOST_SECONDS):
        cpu_s = time.process_time()
        for data, box in files:
            function(data, box)
        passes.append((time.process_time() - cpu_s) / len(files))
        if time.monotonic() - begin_s > 2 * MOST_SECONDS:
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


def _crop(generator: random.Random) -> tuple[float, float, float]:
    """Area, and position in both directions, as RandomResizedCrop draws them (area 0.08 to 1)."""
    return generator.uniform(0.08, 1.0), generator.random(), generator.random()


def _box(size: tuple[int, int], share: tuple[float, float, float]) -> Box:
    width, height = (max(1, int(side * share[0] ** 0.5)) for side in size)
    return int((size[0] - width) * share[1]), int((size[1] - height) * share[2]), width, height


def with_image_benchmark(session: Session, folder: Path) -> Session:
    """Decode a few of the job's own images, where it reads image files, and note the times in the session."""
    paths = next((loader.sample_paths for loader in session.loaders if loader.sample_paths), ())
    found = measure_images(paths) if paths else None
    if found is None:
        return session
    add_fact(folder, "image_benchmark", asdict(found))
    return replace(session, facts={**session.facts, "image_benchmark": asdict(found)})
