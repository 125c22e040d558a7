"""Whole images: JPEG bytes -> all pixels as uint8 [height, width, 3], one thread. A part of benchmarks/decode.py.

headrace, libjpeg-turbo 3 and the readers whose place `headrace run` takes, on the same files: as they are, with restart
markers, stored as 4:2:0, and reduced. One image is decoded by all ways, one after the other in a new random order, before the
next. For each image and way the least CPU time of the rounds counts, since other work on the machine only adds time.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
from headrace import _native
from PIL import Image
from sample import shrunk

__all__ = ["measure_whole"]

BASELINE = "libjpeg-turbo"

Way = Callable[[bytes], object]


def measure_whole(originals: list[bytes], rounds: int) -> list[dict[str, Any]]:
    """Return for each set of files: its name, its mean size, and for each way img/s and the ratio to libjpeg-turbo."""
    sets = {
        "as they are": originals,
        "with restart markers": [headrace.restart_markers(image) for image in originals],
        "4:2:0, quality 90": [subsampled(image) for image in originals],
        "≤500 px, 4:2:0, quality 90": [shrunk(image) for image in originals],
    }
    found = []
    for name, images in sets.items():
        spent_s = least_times(images, rounds)
        found.append(
            {
                "images": name,
                "mean_kb": sum(map(len, images)) / len(images) / 1000,
                "ways": [
                    {
                        "way": way,
                        "ours": way.startswith("headrace"),
                        "img_s": len(images) / seconds,
                        "times": spent_s[BASELINE] / seconds,
                    }
                    for way, seconds in spent_s.items()
                ],
            }
        )
    return found


def least_times(images: list[bytes], rounds: int) -> dict[str, float]:
    """Return for each way the sum over the images of the least CPU time, in seconds."""
    ways = all_ways(images[0])
    least = {name: [float("inf")] * len(images) for name in ways}
    order = random.Random(0)
    for _ in range(rounds):
        for number, image in enumerate(images):
            for name in order.sample(list(ways), len(ways)):
                began = time.thread_time()
                ways[name](image)
                least[name][number] = min(least[name][number], time.thread_time() - began)
    return {name: sum(times) for name, times in least.items()}


def all_ways(image: bytes) -> dict[str, Way]:
    """Return the ways of which the packages are installed, and that this processor runs, tried on `image`."""
    ways: dict[str, Way] = {
        BASELINE: lambda image: _native.reference_decode(image, keep=False),
        "headrace": lambda image: decoded(image, "rgb"),
        "headrace, BGR": lambda image: decoded(image, "bgr"),
        "headrace, gray": lambda image: decoded(image, "gray"),
    }
    try:
        decoded(image, "rgb", "avx2")
        ways["headrace, AVX2 only"] = lambda image: decoded(image, "rgb", "avx2")
    except ValueError:
        pass  # another architecture
    try:
        import cv2

        cv2.setNumThreads(1)
        ways["OpenCV (BGR)"] = lambda image: cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
        ways["OpenCV (gray)"] = lambda image: cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_GRAYSCALE)
    except ImportError:
        pass
    try:
        import torch

        ways["torchvision.io"] = torchvision_way(torch)
    except ImportError:
        pass
    return ways


def torchvision_way(torch: Any) -> Way:
    """Return the way of torchvision's operator, without the warnings of its Python functions."""
    import torchvision.io

    torch.set_num_threads(1)
    rgb = torchvision.io.ImageReadMode.RGB.value
    return lambda image: torch.ops.image.decode_jpeg(torch.from_numpy(np.frombuffer(image, np.uint8).copy()), rgb)


def decoded(image: bytes, channels: str, extension: str | None = None) -> object:
    """Decode as `headrace run` does in place of a reader: into new memory."""
    shape = _native.jpeg_shape(image)
    if shape is None:
        raise SystemExit("an image is not decoded natively")
    width, height, _, _ = shape
    out = np.empty((height, width, 1 if channels == "gray" else 3), np.uint8)
    if not _native.decode_sound_jpeg(image, width, height, channels, out, extension):
        raise SystemExit("an image could not be decoded")
    return out


def subsampled(data: bytes) -> bytes:
    """Return the image at its size as a JPEG of 4:2:0 and quality 90."""
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(file, "JPEG", quality=90, subsampling="4:2:0")
    return file.getvalue()
