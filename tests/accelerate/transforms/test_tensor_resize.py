"""The native resize with weights of 16 bits equals torchvision's v2 on uint8 tensors."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from headrace.accelerate.transforms import tensor_resize
from headrace.accelerate.transforms.tensor_resize import resizes_tensors_alike
from headrace.images.decode import decode_into
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional


def ppm(pixels: np.ndarray) -> bytes:
    return b"P6 %d %d 255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_native_filter_equals_torchvisions_for_many_sizes(name: str) -> None:
    if not resizes_tensors_alike(name):
        pytest.skip("torch has no such kernel for this processor")
    rng = random.Random(3)
    generator = np.random.default_rng(3)
    for number in range(150):
        width, height, grid_w, grid_h = (int(2 ** rng.uniform(0, 8.3)) for _ in range(4))
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if number % 3 == 0:
            pixels = (pixels > 127).astype(np.uint8) * 255  # the largest overshoot
        # A part of the image, as RandomResizedCrop takes one, and a part of the result, as CenterCrop behind Resize.
        left, top = rng.randrange(width), rng.randrange(height)
        box = (left, top, rng.randint(1, width - left), rng.randint(1, height - top))
        x, y = rng.randrange(grid_w), rng.randrange(grid_h)
        window = (x, y, rng.randint(1, grid_w - x), rng.randint(1, grid_h - y))
        out = np.zeros((1, window[3], window[2], 3), dtype=np.uint8)
        size = (grid_w, grid_h)
        statuses = decode_into([ppm(pixels)], out, [box], sizes=[size], windows=[window], resample=f"{name}-int16")
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        mode = InterpolationMode(name)
        theirs = functional.resized_crop(image, top, left, box[3], box[2], [grid_h, grid_w], interpolation=mode, antialias=True)
        part = functional.crop(theirs, y, x, window[3], window[2])
        assert statuses.tolist() == [0]
        assert np.array_equal(out[0], part.permute(1, 2, 0).numpy()), (width, height, box, size, window)


def test_another_arithmetic_of_torchvision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = functional.resize
    in_float = lambda image, size, **named: own(image.float(), size, **named).round().clamp(0, 255).to(torch.uint8)  # noqa: E731
    monkeypatch.setattr(functional, "resize", in_float)
    assert not tensor_resize.resizes_tensors_alike.__wrapped__("bilinear")


def test_filters_that_torch_lacks_are_never_alike() -> None:
    assert not resizes_tensors_alike("nearest") and not resizes_tensors_alike(("bilinear", "bicubic"))
