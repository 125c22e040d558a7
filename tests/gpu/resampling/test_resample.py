"""Resampling on a device: bit for bit the CPU kernel's, by torch and by the Triton kernel under its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from headrace.gpu.resampling.decoders import Place
from headrace.images.decode import decode_into
from sample_images import jpeg

torch = pytest.importorskip("torch")

SIZE = (40, 56)  # height, width
PLACES = [
    Place((0, 0, 213, 160), (56, 40), (0, 0, 56, 40)),
    Place((11, 7, 101, 90), (56, 40), (0, 0, 56, 40), True),
    Place((5, 3, 30, 20), (56, 40), (0, 0, 56, 40)),  # enlarged
    Place((20, 0, 56, 160), (56, 40), (0, 0, 56, 40)),  # width unchanged, rows first
    Place((0, 0, 213, 160), (80, 60), (12, 10, 56, 40), True),  # a window of the resized image
    Place((9, 9, 56, 40), (56, 40), (0, 0, 56, 40)),  # no resize
    Place((0, 0, 213, 1), (56, 40), (0, 0, 56, 40)),
]


def wanted(files: list[bytes], resample: str) -> np.ndarray:
    out = np.empty((len(files), *SIZE, 3), np.uint8)
    columns = list(zip(*PLACES, strict=True))
    status = decode_into(
        files, out, boxes=columns[0], flips=columns[3], sizes=columns[1], windows=columns[2], resample=resample
    )
    assert not status.any()
    return out


def decoded(file: bytes) -> np.ndarray:
    whole = np.empty((1, 160, 213, 3), np.uint8)
    decode_into([file], whole)
    return whole[0]


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("layout", ["batch", "planar"])
def test_torch_resamples_as_the_cpu_kernel_does(resample: str, layout: str) -> None:
    from headrace.gpu.resampling import pixels as layouts
    from headrace.gpu.resampling import resample as module

    files = [jpeg(213, 160, seed) for seed in range(len(PLACES))]
    images = torch.from_numpy(np.stack([decoded(file) for file in files]))
    pixels = layouts.batch_pixels(images) if layout == "batch" else layouts.planar_pixels(list(images.permute(0, 3, 1, 2)))
    found = module.resample(pixels, PLACES, SIZE, resample)
    assert np.array_equal(found.numpy(), wanted(files, resample))


def test_both_directions_are_flipped() -> None:
    from headrace.gpu.resampling import pixels as layouts
    from headrace.gpu.resampling import resample as module

    images = torch.from_numpy(decoded(jpeg(213, 160, 3)))[None]
    plain, turned = (
        module.resample(layouts.batch_pixels(images), [Place((3, 4, 150, 120), (56, 40), (0, 0, 56, 40), flip, flip)], SIZE)
        for flip in (False, True)
    )
    assert torch.equal(turned, plain.flip(1, 2))


TRITON = """
import numpy as np, torch
from headrace.gpu.resampling import kernels, resample
from headrace.gpu.resampling.pixels import batch_pixels, planar_pixels
from test_resample import PLACES, SIZE
places = PLACES[:4]
images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 160, 213, 3), dtype=np.uint8))
for pixels in (batch_pixels(images), planar_pixels(list(images.permute(0, 3, 1, 2)))):
    axes = resample._axes(pixels, places, SIZE, "bilinear")
    assert torch.equal(kernels.resample_triton(pixels, *axes, SIZE), resample.resample_torch(pixels, *axes, SIZE))
print("equal")
"""


def test_the_triton_kernel_equals_its_torch_twin() -> None:
    pytest.importorskip("triton")
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "helpers")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run([sys.executable, "-c", TRITON], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "equal\n", run.stderr
