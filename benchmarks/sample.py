"""The photographs that benchmarks run on: those of a given folder, or the optional test sample."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
Box = tuple[int, int, int, int]


def photographs(folder: str | None, limit: int) -> list[Path]:
    """Return up to `limit` JPEG files, sorted. Raise SystemExit with a message when there are none."""
    data = os.environ.get("HEADRACE_TEST_DATA", str(REPOSITORY.parent / "shared" / "data"))
    root = Path(folder) if folder else Path(data) / "imagenet-sample"
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:limit]
    if not files:
        raise SystemExit(f"no JPEG files in {root}: pass --images FOLDER")
    return files


def random_resized_crops(sizes: list[tuple[int, int]], seed: int) -> list[Box]:
    """Return a box for each (width, height) by torchvision's RandomResizedCrop algorithm with its defaults."""
    rng = np.random.default_rng(seed)
    return [_crop(rng, width, height) for width, height in sizes]


def _crop(rng: np.random.Generator, width: int, height: int) -> Box:
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def shrunk(data: bytes, longest: int = 500, quality: int = 90) -> bytes:
    """Return the image with its longest side at most `longest`, as a JPEG of `quality` (4:2:0)."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return file.getvalue()
