"""Weights of torchvision's Gaussian blur of uint8 tensors, and a check that the native blur equals it on this machine.

torchvision blurs with a convolution in float32. The native blur adds the products in the order of torch's convolution (oneDNN's
depthwise kernels: row by row, one rounding for each product). Which kernel torch takes depends on the processor, the build and
the settings, so the sums are compared bit for bit. torch itself computes the weights of each blur.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import (
    give_blur_weights,
    hold_blur_weights,
    release_blur_weights,
    serve_blur_weights,
    torch_blur_sums,
    wanted_blur_weights,
)
from headrace.accelerate.workers.one_thread import threads_of_torch

__all__ = ["arithmetic", "blur_refusal", "blurs_alike", "holds_blur", "serve_weights", "without_comparison"]

COMPARED_SIGMAS = 3
"""Number of sigmas, from the smallest to the largest, for which the native blur is compared with torch's."""

#: By version of torchvision's transforms: the module of `gaussian_blur`, and the module that computes its weights.
MODULES = {
    1: ("torchvision.transforms.functional", "torchvision.transforms._functional_tensor"),
    2: ("torchvision.transforms.v2.functional", "torchvision.transforms.v2.functional._misc"),
}


_trusting: list[bool] = []  # not empty inside `without_comparison`


@contextlib.contextmanager
def without_comparison() -> Iterator[None]:
    """Context manager: assume that every native blur equals torch's. `diagnose` must not compute in the watched process."""
    _trusting.append(True)
    try:
        yield
    finally:
        _trusting.pop()


def arithmetic() -> tuple[Any, ...]:
    """Return the settings of torch that decide how it convolves on the CPU, except the number of threads."""
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return (torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision(), low)


def holds_blur(steps: Sequence[Any]) -> bool:
    """Return whether one of these steps (`NativeTransform`) is a blur."""
    return any(step.name == "TorchBlur" or holds_blur(step.arguments.get("transforms", ())) for step in steps)


def blur_refusal(steps: Sequence[Any]) -> tuple[str, str] | None:
    """Return why the native blur would differ from torch's in one of these steps (`NativeTransform`), and a remedy.

    None if no blur differs, or there is none. The image's size before a blur must be fixed: they are compared at that size.
    """
    return _walk(steps, None)[1]


def _walk(steps: Sequence[Any], size: tuple[int, int] | None) -> tuple[tuple[int, int] | None, tuple[str, str] | None]:
    """Return height and width after the steps, None if they are not fixed, and the refusal."""
    for step in steps:
        arguments = step.arguments
        if step.name == "RandomApply":
            after, refusal = _walk(arguments["transforms"], size)
            if refusal is not None:
                return None, refusal
            size = size if after == size else None
        elif step.name == "TorchBlur":
            if size is None:
                return None, ("transform GaussianBlur of images without a fixed size", "a crop to a fixed size before it")
            kernel = arguments["kernel_size"]
            if kernel[0] // 2 >= size[1] or kernel[1] // 2 >= size[0]:
                return None, (f"transform GaussianBlur with a kernel too large for {size[1]} × {size[0]} pixels", "")
            if not blurs_alike(arguments["version"], kernel, arguments["sigma"], size):
                return None, ("transform GaussianBlur: its results differ here", "")
        elif step.name in ("RandomResizedCrop", "CenterCrop", "RandomCrop", "Resize"):
            size = arguments["size"] if isinstance(arguments["size"], tuple) else None
        elif step.name == "Pad" or arguments.get("expand"):
            size = None
    return size, None


def blurs_alike(version: int, kernel: tuple[int, int], sigmas: tuple[float, float], size: tuple[int, int]) -> bool:
    """Return whether the native blur equals torchvision's `gaussian_blur`, bit for bit.

    `version`: 1 for `torchvision.transforms`, 2 for its `v2`. `kernel`: width and height in pixels. `sigmas`: the smallest and
    the largest in pixels. `size`: height and width of the image in pixels.
    """
    if not (kernel[0] // 2 < size[1] and kernel[1] // 2 < size[0]):
        return False
    return bool(_trusting) or _compared(version, kernel, sigmas, size, torch.get_num_threads(), arithmetic())


@functools.lru_cache(maxsize=64)
def _compared(
    version: int, kernel: tuple[int, int], sigmas: tuple[float, float], size: tuple[int, int], threads: int, _: tuple[Any, ...]
) -> bool:
    try:
        return all(_equal(version, kernel, float(sigma), size, threads) for sigma in np.linspace(*sigmas, COMPARED_SIGMAS))
    except (AttributeError, ImportError, TypeError, ValueError):  # a torchvision with other functions
        return False


def _equal(version: int, kernel: tuple[int, int], sigma: float, size: tuple[int, int], threads: int) -> bool:
    """Compare one blur: the sums, with the strides of an image from Pillow and without gaps, and the rounded values.

    Torch computes with `threads` threads, and again with one thread as in a worker process.
    """
    blur = sys.modules[MODULES[version][0]].gaussian_blur
    sigma = float(np.float32(sigma))
    pixels = np.random.default_rng(20_25).integers(0, 256, (*size, 3), dtype=np.uint8)
    weights = _weights(version, kernel, sigma)
    found = np.frombuffer(torch_blur_sums(pixels.tobytes(), size[1], kernel, weights.tobytes()), dtype=np.float32)
    ours = torch.from_numpy(found.reshape(pixels.shape).copy()).permute(2, 0, 1)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    numbers = list(kernel), [sigma, sigma]
    floats = (image.to(torch.float32), image.to(torch.float32).contiguous())
    for count in {threads, 1}:
        with threads_of_torch(count):
            if not all(torch.equal(blur(one, *numbers), ours) for one in floats):
                return False
            if not torch.equal(blur(image, *numbers), ours.round().to(torch.uint8)):
                return False
    return True


def _weights(version: int, kernel: tuple[int, int], sigma: float) -> npt.NDArray[np.float32]:
    """Return the weights [height, width] as torchvision computes them."""
    make = sys.modules[MODULES[version][1]]._get_gaussian_kernel2d
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        weights: npt.NDArray[np.float32] = make(list(kernel), [sigma, sigma], torch.float32, torch.device("cpu")).numpy()
    return weights


def serve_weights() -> None:
    """Start a thread of this process that computes blur weights by torch for the native threads."""
    if not _servers:
        serve_blur_weights(True)
        _servers.append(threading.Thread(target=_serve, name="headrace-blur", daemon=True))
        _servers[0].start()


_servers: list[threading.Thread] = []


def _serve() -> None:
    try:
        while (wanted := wanted_blur_weights()) is not None:
            for width, height, sigma, version in wanted:
                give_blur_weights((width, height), sigma, version, _weights(version, (width, height), sigma).tobytes())
    finally:
        serve_blur_weights(False)  # the script's own code makes the images of those who wait


def _end_service() -> None:
    """End the thread that computes weights: in a forked child, which lacks it, and before this process ends."""
    _servers.clear()
    serve_blur_weights(False)


def _go_on_in_a_child() -> None:
    release_blur_weights()
    _end_service()


atexit.register(_end_service)
# The native threads of this process share one lock for the weights. None of them may have it in a child.
os.register_at_fork(before=hold_blur_weights, after_in_parent=release_blur_weights, after_in_child=_go_on_in_a_child)
