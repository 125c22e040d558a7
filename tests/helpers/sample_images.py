"""Images for tests: generated ones, and the optional folder of real photographs.

Not in conftest.py: there are several files of that name, and `import conftest` would find any of them.
"""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_KEPT_PIXELS = 1 << 17


def data_folder() -> Path | None:
    """Return the folder of real images, $HEADRACE_TEST_DATA or ../shared/data beside the repository; None if missing."""
    folder = Path(os.environ.get("HEADRACE_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a generated image with edges, gradients and texture, so that resampling and chroma faults show."""
    generate = _generated if width * height <= MOST_KEPT_PIXELS else _generated.__wrapped__
    return Image.fromarray(generate(width, height, seed).copy())


@functools.lru_cache(maxsize=256)
def _generated(width: int, height: int, seed: int) -> np.ndarray:
    """Return the pixels of `photograph`. They are kept: half the CPU time of many a test went into them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    channels = []
    for _ in range(3):
        a, b, c, d = rng.uniform(0.01, 0.4, 4)
        plane = 127 + 70 * np.sin(a * x + b * y) + 40 * np.sign(np.sin(c * x - d * y)) + rng.normal(0, 12, x.shape)
        channels.append(np.clip(plane, 0, 255).astype(np.uint8))
    return np.stack(channels, axis=-1)


def jpeg(width: int, height: int, seed: int = 0, *, quality: int = 90, subsampling: str = "4:2:0", **options: object) -> bytes:
    """Return a generated baseline JPEG."""
    file = io.BytesIO()
    photograph(width, height, seed).save(file, "JPEG", quality=quality, subsampling=subsampling, **options)
    return file.getvalue()


def with_junk(data: bytes) -> bytes:
    """Return a JPEG with bytes between the segments of its header, which every reader skips; some begin as a marker does."""
    frame = data.index(b"\xff\xc0")
    scan = data.index(b"\xff\xda")
    first = 4 + int.from_bytes(data[4:6], "big")
    return data[:first] + b"\0junk" + data[first:frame] + b"\xff\0\x12\xff\0" + data[frame:scan] + b"\xff\xff" + data[scan:]


def pixels(data: bytes) -> np.ndarray:
    """Return the pixels that Pillow decodes."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)
