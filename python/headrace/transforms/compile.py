"""Compile transforms into a `Pipeline`: what the native engine runs, and what follows in Python and torch.

The parts of a pipeline, in the order in which they run:
    pixels     crops, resizes, flips, rotations and colours                    native, in as few passes as possible
    functions  the user's own functions on uint8 [H, W, 3]                     Python, one image at a time
    values     ToDtype and Normalize, as a table of 256 values a channel       native, or numpy after functions
    batch      RandomErasing, MixUp, CutMix (headrace.loading.batches.batch_transforms)   torch, on the device of the batch
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace._native import Program, Store
from headrace.errors import UsageError
from headrace.transforms.base import Transform, native_schema
from headrace.transforms.batch import CutMix, MixUp, RandomChoice, RandomErasing
from headrace.transforms.composition import Compose, RandomApply
from headrace.transforms.geometry import RandomHorizontalFlip, RandomVerticalFlip
from headrace.transforms.native_operations import (
    CHANGES_COLOUR,
    NATIVE_TRANSFORMS,
    NEEDS_AFFINE,
    Operation,
    native_operations,
)
from headrace.transforms.values import Normalize, ToDtype
from headrace.transforms.written import written

__all__ = ["NUMPY_DTYPES", "DctScale", "Dtype", "Fuse", "Layout", "Pipeline", "ValueTable", "compile_pipeline", "encode"]

Dtype = Literal["uint8", "float32", "float16", "bfloat16"]
Layout = Literal["hwc", "chw"]
Fuse = Literal["geometry", "off"]
DctScale = Literal["off", "auto"]
Steps = tuple[Transform | Callable[[Any], Any], ...]
ValueTable = npt.NDArray[np.float32]  # [3, 256]: the output value of each input value, for R, G, B

# What numpy holds for each dtype; bfloat16 travels as its bit pattern, because numpy has no such type.
NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "uint8": np.uint8,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Transforms compiled for the native engine. `height` and `width` are those of every output image, in pixels."""

    transforms: tuple[Transform, ...]  # the user's, on the pixels of single images
    operations: tuple[Operation, ...]
    program: Program
    height: int
    width: int
    functions: tuple[Callable[[Any], Any], ...]  # the user's own
    table: ValueTable | None  # None: uint8 as it is
    dtype: Dtype
    layout: Layout
    fuse: Fuse
    dct_scale: DctScale
    batch: tuple[Transform, ...]  # on the finished batch, in order
    hash: str  # changes when the pipeline changes; guards resumed states

    def store(self) -> Store:
        """Return how the native engine stores resampled pixels: layout and value table; with functions uint8 [H, W, 3]."""
        if self.functions:
            return Store("hwc", None)
        return Store(self.layout, None if self.table is None else encode(self.table, self.dtype).reshape(-1))

    def shape(self, images: int) -> tuple[int, int, int, int]:
        """Return the shape of a batch: (N, H, W, 3) or (N, 3, H, W)."""
        if self.layout == "hwc":
            return (images, self.height, self.width, 3)
        return (images, 3, self.height, self.width)

    def describe(self) -> list[str]:
        """Return the native part in words: the transforms as one would write them, a line each, then the passes they take."""
        return [*map(written, self.transforms), *self._passes()]

    def _passes(self) -> list[str]:
        names = {name for name, _ in self.operations}
        size = f"{self.height}×{self.width}"
        if not names & NEEDS_AFFINE:
            lines = [f"= one antialiased resampling of the decoded region to {size}"]
        elif self.fuse == "geometry":
            lines = [f"= each run of geometry is one affine matrix an image and one sampling of the decoded region, to {size}"]
        else:
            lines = [f'= one operation after the other, as Pillow does (fuse="off"), on the pixels that are needed, to {size}']
        if names & CHANGES_COLOUR:
            lines.append("  colours in place between them, pointwise changes in one pass")
        if self.dct_scale == "auto":
            lines.append(
                '  JPEGs decoded at half or quarter size if the first resize shrinks them that much (dct_scale="auto")'
            )
        return lines

    def image_bytes(self) -> int:
        """Return the size of one output image in bytes."""
        return self.height * self.width * 3 * np.dtype(NUMPY_DTYPES[self.dtype]).itemsize


def compile_pipeline(
    transform: Transform | Callable[[Any], Any] | None,
    *,
    dtype: Dtype = "uint8",
    layout: Layout = "hwc",
    table: ValueTable | None = None,
    fuse: Fuse = "geometry",
    dct_scale: DctScale = "off",
) -> Pipeline:
    """Compile `transform` for the native engine.

    table: the output value of each channel and pixel value, float32 [3, 256], where the caller knows it. Default: computed from
    ToDtype and Normalize.

    fuse: "geometry" folds any run of crops, resizes, flips, rotations and affines into one sampling; "off" gives the pixels of
    one operation after the other, as torchvision does on Pillow images. Without rotations and affines they are the same.

    dct_scale: "auto" decodes JPEGs at half or quarter size if the first resize shrinks them that much; not exact.

    Raises UsageError for an unknown option, and for a pipeline without a fixed output size.
    """
    _check_options(dtype, fuse, dct_scale)
    if transform is None:
        raise UsageError("a transform is needed: images differ in size, a batch has one", hint=_EXAMPLE)
    steps = transform.transforms if isinstance(transform, Compose) else (transform,)
    steps, batch = _split_batch(steps)
    pixels, functions, values = _split(steps)
    operations = tuple(operation for step in pixels for operation in native_operations(step))
    try:
        program = Program(list(operations), fuse == "geometry", dct_scale == "auto")
    except ValueError as error:
        raise UsageError(f"this pipeline cannot be compiled: {error}", hint=_EXAMPLE) from error
    height, width = program.out
    table = _value_table(values, dtype) if table is None else table
    return Pipeline(
        transforms=tuple(pixels),
        operations=operations,
        program=program,
        height=height,
        width=width,
        functions=functions,
        table=table,
        dtype=dtype,
        layout=layout,
        fuse=fuse,
        dct_scale=dct_scale,
        batch=batch,
        hash=_hash(operations, functions, table, dtype, fuse, dct_scale, batch),
    )


_EXAMPLE = "for example transform=headrace.transforms.imagenet_train(224), or Compose([Resize(256), CenterCrop(224)])"

_VALUES = (ToDtype, Normalize)
_BATCH = (RandomErasing, MixUp, CutMix, RandomChoice)
_NAMES = frozenset(NATIVE_TRANSFORMS) | {kind.__name__ for kind in (*_VALUES, *_BATCH, Compose, RandomApply)}


def _check_options(dtype: str, fuse: str, dct_scale: str) -> None:
    if fuse not in ("geometry", "off"):
        raise UsageError(f"fuse must be 'geometry' or 'off', not {fuse!r}")
    if dct_scale not in ("off", "auto"):
        raise UsageError(f"dct_scale must be 'off' or 'auto', not {dct_scale!r}")
    if dtype not in NUMPY_DTYPES:
        name = str(dtype).rpartition(".")[2]  # of torch.float32
        hint = f"dtype={name!r}: it is given by its name" if name in NUMPY_DTYPES else None
        raise UsageError(f"dtype {dtype!r} is not offered; there are {', '.join(NUMPY_DTYPES)}", hint=hint)


def _hash(
    operations: Sequence[Operation],
    functions: Sequence[Callable[[Any], Any]],
    table: ValueTable | None,
    dtype: str,
    fuse: str,
    dct_scale: str,
    batch: Sequence[Transform],
) -> str:
    """Return the pipeline's hash. Saved loader states hold it: its input never changes for a pipeline that exists today."""
    parts: list[object] = [
        tuple(map(_hashed, operations)),
        [f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', type(call).__name__)}" for call in functions],
        None if table is None else table.tobytes().hex(),
        dtype,
    ]
    if any(name in NEEDS_AFFINE for name, _ in operations):  # elsewhere fuse changes no pixel
        parts.append(fuse)
    if dct_scale == "auto":
        parts.append("dct_scale")
    return hashlib.sha256(repr((*parts, *batch)).encode()).hexdigest()[:16]


_HASHED_AS_GIVEN = frozenset({"p", "sharpness_factor"})  # other numbers are hashed as floats, an int or not


def _hashed(operation: Operation) -> tuple[str, list[float], str]:
    """Return what stands for an operation in a hash: its name, all numbers, its interpolation.

    0 stands for an absent number, NaN for each number of an absent pair. A policy is part of the name.
    """
    name, values = operation
    numbers: list[float] = []
    interpolation = ""
    for field in native_schema()[name].fields:
        value = values[field.name]
        if field.name == "interpolation":
            interpolation = value if isinstance(value, str) else " or ".join(value)
        elif field.kind == "choice":
            name = f"{name}_{value}"
        elif value is None:
            numbers += [0.0] if field.count == 1 else [math.nan] * field.count
        elif field.name in _HASHED_AS_GIVEN:
            numbers.append(value)
        else:
            numbers += [float(one) for one in (value if field.count > 1 else (value,))]
    return name, numbers, interpolation


def _split_batch(steps: Steps) -> tuple[Steps, tuple[Transform, ...]]:
    """Return the steps before the first batch transform, and the rest, which must all be batch transforms."""
    first = next((at for at, step in enumerate(steps) if isinstance(step, _BATCH)), len(steps))
    batch = []
    for step in steps[first:]:
        if not isinstance(step, _BATCH):
            raise UsageError(
                f"{type(step).__name__} after {type(steps[first]).__name__} cannot be compiled",
                hint="put RandomErasing, MixUp and CutMix last: they work on the finished batch",
            )
        batch.append(step)
    return steps[:first], tuple(batch)


def _split(steps: Steps) -> tuple[list[Transform], tuple[Callable[[Any], Any], ...], list[Transform]]:
    """Return pixels, functions and values, which must come in this order. Flips commute with values, so they may come late."""
    pixels: list[Transform] = []
    functions: list[Callable[[Any], Any]] = []
    values: list[Transform] = []
    for step in steps:
        if isinstance(step, _VALUES):
            values.append(step)
        elif isinstance(step, Transform):
            flip = isinstance(step, RandomHorizontalFlip | RandomVerticalFlip)
            if functions or (values and not flip):
                raise UsageError(
                    f"{type(step).__name__} after {'a Python function' if functions else type(values[-1]).__name__} "
                    "cannot be compiled",
                    hint="put it before",
                )
            pixels.append(step)
        else:
            if values:
                raise UsageError("a Python function after Normalize or ToDtype cannot be compiled", hint="put it before")
            _check_function(step)
            functions.append(step)
    return pixels, tuple(functions), values


def _check_function(step: object) -> None:
    """Refuse what is not a function on arrays. torchvision's v2 transforms would return an array unchanged."""
    name = type(step).__name__
    if not callable(step):
        raise UsageError(
            f"{name} is neither a transform nor a function", hint="headrace.transforms.Compose([…]) makes one of several"
        )
    if type(step).__module__.startswith("torchvision.transforms.") and name != "Lambda":
        same = f"headrace.transforms.{name}" if name in _NAMES else "those of headrace.transforms"
        raise UsageError(
            f"{name} is torchvision's: it works on Pillow images and tensors, and a Loader has neither",
            hint=f"use {same}: names, arguments and defaults are torchvision's, and it runs in native code",
        )


def _value_table(values: list[Transform], dtype: str) -> ValueTable | None:
    """Return the table of the value transforms, in float32 arithmetic as torchvision does; None for uint8."""
    if dtype == "uint8":
        if values:
            raise UsageError(
                f"{type(values[0]).__name__} makes floats, but the loader's dtype is uint8",
                hint="pass dtype='float32' (or float16, bfloat16), or drop it here and normalise on the GPU",
            )
        return None
    row: ValueTable = np.tile(np.arange(256, dtype=np.float32), (3, 1))
    if not any(isinstance(step, ToDtype) for step in values):
        row = row * np.float32(1 / 255)  # a float dtype means 0..1, as ToDtype(scale=True)
    for step in values:
        if isinstance(step, ToDtype):
            if step.dtype != dtype:
                raise UsageError(f"ToDtype({step.dtype}) in the transform, but the loader's dtype is {dtype}")
            row = row * np.float32(1 / 255) if step.scale else row
        elif isinstance(step, Normalize):
            mean = np.asarray(step.mean, dtype=np.float32)[:, None]
            row = (row - mean) / np.asarray(step.std, dtype=np.float32)[:, None]
    return row


def encode(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Return float32 values as `dtype`; bfloat16 as its bit pattern (uint16), rounded to nearest even."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values
