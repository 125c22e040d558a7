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
from headrace.transforms.batch import is_of_batches
from headrace.transforms.geometry import RandomHorizontalFlip, RandomVerticalFlip
from headrace.transforms.native_operations import (
    CHANGES_COLOUR,
    NEEDS_AFFINE,
    Operation,
    native_operations,
)
from headrace.transforms.torchvision import flattened
from headrace.transforms.values import Normalize, ToDtype
from headrace.transforms.written import written

__all__ = [
    "NUMPY_DTYPES",
    "DctScale",
    "Depth",
    "Dtype",
    "Fuse",
    "Layout",
    "Pipeline",
    "ValueTable",
    "compile_pipeline",
    "encode",
    "split_steps",
    "value_table",
]

Dtype = Literal["uint8", "float32", "float16", "bfloat16"]
Layout = Literal["hwc", "chw"]
Fuse = Literal["geometry", "off"]
DctScale = Literal["off", "auto"]
Depth = Literal["scale", "clip"]
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
    transform: Transform | Callable[[Any], Any] | list[Any] | None,
    *,
    dtype: Dtype = "uint8",
    layout: Layout = "hwc",
    table: ValueTable | None = None,
    fuse: Fuse = "geometry",
    dct_scale: DctScale = "off",
    depth: Depth = "scale",
) -> Pipeline:
    """Compile `transform` for the native engine.

    table: the output value of each channel and pixel value, float32 [3, 256], where the caller knows it. Default: computed from
    ToDtype and Normalize.

    fuse: "geometry" folds any run of crops, resizes, flips, rotations and affines into one sampling; "off" gives the pixels of
    one operation after the other, as torchvision does on Pillow images. Without rotations and affines they are the same.

    dct_scale: "auto" decodes JPEGs at half or quarter size if the first resize shrinks them that much; not exact.

    depth: how gray of 16 bits becomes 8 bits: "scale" keeps the upper 8 bits, "clip" makes all above 255 white, as Pillow does.

    Raises UsageError for an unknown option, and for a pipeline without a fixed output size.
    """
    _check_options(dtype, fuse, dct_scale, depth)
    if transform is None:
        raise UsageError("a transform is needed: images differ in size, a batch has one", hint=_EXAMPLE)
    pixels, functions, values, batch = split_steps(transform)
    operations = tuple(operation for step in pixels for operation in native_operations(step))
    try:
        program = Program(list(operations), fuse == "geometry", dct_scale == "auto", depth == "scale")
    except ValueError as error:
        raise UsageError(f"this pipeline cannot be compiled: {error}", hint=_EXAMPLE) from error
    height, width = program.out
    table = value_table(values, dtype) if table is None else table
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
        hash=_hash(operations, functions, table, dtype, (fuse, dct_scale, depth), batch),
    )


_EXAMPLE = "for example transform=headrace.transforms.imagenet_train(224), or Compose([Resize(256), CenterCrop(224)])"

_VALUES = (ToDtype, Normalize)


def _check_options(dtype: str, fuse: str, dct_scale: str, depth: str) -> None:
    if fuse not in ("geometry", "off"):
        raise UsageError(f"fuse must be 'geometry' or 'off', not {fuse!r}")
    if dct_scale not in ("off", "auto"):
        raise UsageError(f"dct_scale must be 'off' or 'auto', not {dct_scale!r}")
    if depth not in ("scale", "clip"):
        raise UsageError(f"depth must be 'scale' or 'clip', not {depth!r}", hint="it says how gray of 16 bits becomes 8 bits")
    if dtype not in NUMPY_DTYPES:
        raise UsageError(f"dtype {dtype!r} is not offered; there are {', '.join(NUMPY_DTYPES)}")


def _hash(
    operations: Sequence[Operation],
    functions: Sequence[Callable[[Any], Any]],
    table: ValueTable | None,
    dtype: str,
    options: tuple[str, str, str],
    batch: Sequence[Transform],
) -> str:
    """Return the pipeline's hash. Saved loader states hold it: its input never changes for a pipeline that exists today."""
    fuse, dct_scale, depth = options
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
    if depth == "clip":
        parts.append("clip")
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


def split_steps(
    transform: object,
) -> tuple[list[Transform], tuple[Callable[[Any], Any], ...], list[Transform], tuple[Transform, ...]]:
    """Return the parts of a transform: pixels, functions, values, batch. Raises UsageError for another order of them."""
    steps, batch = _split_batch(flattened(transform))
    pixels, functions, values = _split(steps)
    return pixels, functions, values, batch


def _split_batch(steps: Steps) -> tuple[Steps, tuple[Transform, ...]]:
    """Return the steps before the first batch transform, and the rest, which must all be batch transforms."""
    first = next((at for at, step in enumerate(steps) if is_of_batches(step)), len(steps))
    batch = []
    for step in steps[first:]:
        if not isinstance(step, Transform) or not is_of_batches(step):
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
    """Refuse what is not a function on arrays."""
    name = type(step).__name__
    if isinstance(step, type):
        raise UsageError(f"{step.__name__} is a class, not a transform", hint=f"make one of it: {step.__name__}(…)")
    if not callable(step):
        raise UsageError(
            f"{name} is neither a transform nor a function", hint="headrace.transforms.Compose([…]) makes one of several"
        )


def value_table(values: list[Transform], dtype: str) -> ValueTable | None:
    """Return the table of the value transforms, in float32 arithmetic as torchvision does; None for uint8."""
    if dtype == "uint8":
        if values:
            raise UsageError(
                f"{type(values[0]).__name__} makes floats, but the loader's dtype is uint8",
                hint="pass dtype='float32' (or float16, bfloat16) to the Loader",
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
