"""Transforms called on one image, as torchvision's are: the native pixels of a loader, one image at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._native import Engine, Program, Store, Table
from headrace.errors import UsageError
from headrace.system.text.size_limits import max_pixels
from headrace.transforms.base import Transform
from headrace.transforms.compile import split_steps, value_table
from headrace.transforms.composition import Views
from headrace.transforms.native_operations import Operation, is_random, native_operations
from headrace.transforms.values import ToDtype

__all__ = ["applied"]

Pixels = npt.NDArray[np.uint8]

_KINDS = "a Pillow image, a uint8 tensor [3, H, W] or a uint8 array [H, W, 3]"


def applied(transform: Transform, image: Any) -> Any:
    """Return `image` after `transform`, which says what it takes and returns (`Transform.__call__`)."""
    if isinstance(transform, Views):
        return [applied(view, image) if isinstance(view, Transform) else view(image) for view in transform.transforms]
    pixels, functions, values, batch = split_steps(transform)
    if batch:
        name = type(batch[0]).__name__
        raise UsageError(f"{name} works on whole batches, not on one image", hint="give it to a Loader, last in its transform")
    if _is_float_tensor(image) and not pixels and not functions:
        return _with_values(image, values)
    found = _pixels_of(image)
    if pixels:
        found = _native(pixels, found)
    for function in functions:
        found = np.asarray(function(found))
    if not values:
        return _as(image, found)
    dtype = next((str(step.dtype) for step in values if isinstance(step, ToDtype)), "float32")
    import torch

    table = value_table(values, dtype)
    assert table is not None  # there are values
    floats = np.stack([table[channel][found[..., channel]] for channel in range(3)])
    return torch.from_numpy(floats).to(getattr(torch, dtype))


def _is_float_tensor(image: Any) -> bool:
    return hasattr(image, "is_floating_point") and bool(image.is_floating_point())


def _with_values(image: Any, values: Sequence[Any]) -> Any:
    """Return a float tensor after Normalize; ToTensor and the like leave floats as they are, as in torchvision."""
    import torch

    for step in values:
        if hasattr(step, "mean"):
            mean, std = (torch.tensor(numbers, dtype=image.dtype).reshape(3, 1, 1) for numbers in (step.mean, step.std))
            image = (image - mean) / std
    return image


def _pixels_of(image: Any) -> Pixels:
    """Return the pixels of an image, [H, W, 3]."""
    if hasattr(image, "convert"):  # Pillow's
        return np.array(image.convert("RGB"))
    if hasattr(image, "permute") and str(image.dtype) == "torch.uint8" and image.ndim == 3 and image.shape[0] == 3:
        return np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return np.ascontiguousarray(image)
    what = type(image).__name__ + (f" of {image.dtype} {list(image.shape)}" if hasattr(image, "dtype") else "")
    raise UsageError(f"a transform takes {_KINDS}, not {what}", hint="a Loader takes the transform, and reads the files itself")


def _as(image: Any, pixels: Pixels) -> Any:
    """Return pixels as an image of the kind of `image`."""
    if hasattr(image, "convert"):
        from PIL import Image

        return Image.fromarray(pixels)
    if hasattr(image, "permute"):
        import torch

        return torch.from_numpy(pixels).permute(2, 0, 1)
    return pixels


def _native(steps: Sequence[Transform], pixels: Pixels) -> Pixels:
    """Return the pixels after transforms of single images, made by native code as a loader makes them."""
    height, width = pixels.shape[:2]
    operations = [operation for step in steps for operation in native_operations(step)]
    if not operations:
        return pixels
    if any(name == "rotation" and values["expand"] for name, values in operations):
        raise UsageError("RandomRotation(expand=True) cannot be called on one image", hint="a Loader takes it")
    seed = _seed() if any(map(is_random, steps)) else 0
    size = _size_after(operations, width, height, seed)
    if size[0] * size[1] > max_pixels():
        raise UsageError(f"the result would have {size[1]} x {size[0]} pixels", hint="a smaller size")
    out = np.empty((*size, 3), dtype=np.uint8)
    file = b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()
    zero, one = np.zeros(1, dtype=np.int64), np.array([len(file)], dtype=np.int64)
    engine = Engine(1)
    try:
        job = engine.submit(
            Table(["image"], np.zeros(1, dtype=np.int32), zero, one),
            Program([*operations, ("center_crop", {"size": size})]),  # all of it: a program's images have one size
            Store("hwc", None),
            seed,
            0,
            zero,
            np.zeros(1, dtype=np.uint64),
            out.reshape(-1),
            [file],
        )
        job.wait()
        statuses = job.statuses()
    finally:
        engine.close()
    if any(statuses):
        raise UsageError(f"an image of {width} x {height} pixels does not fit the transform", hint="it may be too small")
    return out


def _seed() -> int:
    """Draw a seed from torch's generator, or from NumPy's without torch."""
    try:
        import torch
    except ImportError:
        return int(np.random.default_rng().integers(2**62))
    return int(torch.randint(2**62, ()).item())


def _size_after(operations: Sequence[Operation], width: int, height: int, seed: int) -> tuple[int, int]:
    """Return (height, width) of the image after operations whose draws are those of `seed`."""
    try:
        steps = Program([*operations, ("center_crop", {"size": (1, 1)})]).parameters(width, height, seed, 0, 0)
    except ValueError as error:
        raise UsageError(f"an image of {width} x {height} pixels does not fit the transform: {error}") from error
    for name, arguments in steps[:-1]:  # the last is the centre crop
        if name == "crop":
            height, width = arguments["height"], arguments["width"]
        elif name == "resize":
            height, width = arguments["size"]
        elif name == "pad":
            left, top, right, bottom = arguments["padding"]
            height, width = height + top + bottom, width + left + right
    return height, width
