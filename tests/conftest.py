"""Shared fixtures: generated JPEGs always; the larger sample of real photographs where it is present."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent


def test_data_folder() -> Path | None:
    """The optional folder of real images: $HEADRACE_TEST_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("HEADRACE_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def sample_images() -> list[Path]:
    """Real photographs (sorted paths); the test is skipped where they are absent."""
    folder = test_data_folder()
    images = sorted((folder / "imagenet-sample").glob("*.JPEG")) if folder else []
    if not images:
        pytest.skip("no sample images; set HEADRACE_TEST_DATA to a folder that holds imagenet-sample/")
    return images


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """A generated image with edges, gradients and texture, so that resampling and chroma faults show."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    channels = []
    for _ in range(3):
        a, b, c, d = rng.uniform(0.01, 0.4, 4)
        plane = 127 + 70 * np.sin(a * x + b * y) + 40 * np.sign(np.sin(c * x - d * y)) + rng.normal(0, 12, x.shape)
        channels.append(np.clip(plane, 0, 255).astype(np.uint8))
    return Image.fromarray(np.stack(channels, axis=-1))


def jpeg(width: int, height: int, seed: int = 0, *, quality: int = 90, subsampling: str = "4:2:0", **options: object) -> bytes:
    """A generated baseline JPEG."""
    file = io.BytesIO()
    photograph(width, height, seed).save(file, "JPEG", quality=quality, subsampling=subsampling, **options)
    return file.getvalue()


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes an image folder of generated JPEGs: image_folder(classes=3, per_class=4) -> path."""

    def make(classes: int = 3, per_class: int = 4, name: str = "images") -> Path:
        root = tmp_path / name
        modes = ("4:4:4", "4:2:2", "4:2:0")
        for label in range(classes):
            folder = root / f"class_{label}"
            folder.mkdir(parents=True)
            for number in range(per_class):
                seed = label * per_class + number
                data = jpeg(200 + 13 * (seed % 7), 160 + 11 * (seed % 5), seed, subsampling=modes[seed % 3])
                (folder / f"image_{number:03d}.jpg").write_bytes(data)
        return root

    return make
