"""Compiles a pipeline of transforms into what the native engine runs: passes over the pixels, a table of values, a layout.

The parts, in the order in which they run on an image:
    pixels     crops, resizes, flips, rotations folded into as few samplings as may be; colours  native
    callables  the user's own functions on uint8 [H, W, 3]                                  Python, one image at a time
    values     ToDtype and Normalize as a table of 256 values a channel (exact by making)   native, or numpy after callables
    batch      RandomErasing, MixUp, CutMix on the finished batch (headrace.loading.batch_transforms)  torch, where the batch is
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import headrace.transforms as transforms
from headrace._native import Program, Store
from headrace.errors import UsageError
from headrace.transforms import (
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    Dilation,
    Erosion,
    GaussianBlur,
    Grayscale,
    MixUp,
    Normalize,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Repeat,
    Resize,
    ToDtype,
    Transform,
    TrivialAugmentWide,
)

__all__ = ["Plan", "compile_plan"]

Dtype = Literal["uint8", "float32", "float16", "bfloat16"]
Layout = Literal["hwc", "chw"]
Fuse = Literal["geometry", "off"]
DctScale = Literal["off", "auto"]
Op = tuple[str, list[float], str]
Steps = tuple[Transform | Callable[[Any], Any], ...]
Table = npt.NDArray[np.float32]  # [3, 256]: the output value of each input value, for R, G, B

# What numpy holds for each dtype; bfloat16 travels as its bit pattern, because numpy has no such type.
NUMPY_DTYPES: dict[str, npt.DTypeLike] = {
    "uint8": np.uint8,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled pipeline. `height` and `width` are those of every output image, in pixels."""

    ops: tuple[Op, ...]
    program: Program
    height: int
    width: int
    callables: tuple[Callable[[Any], Any], ...]
    table: Table | None  # None: uint8 as it is
    dtype: Dtype
    layout: Layout
    fuse: Fuse
    dct_scale: DctScale
    batch: tuple[Transform, ...]  # on the finished batch, in order
    hash: str  # changes when the pipeline changes; guards resumed states

    def store(self) -> Store:
        """What the native engine does with resampled pixels; with callables it leaves them uint8 [H, W, 3]."""
        if self.callables:
            return Store("hwc", None)
        return Store(self.layout, None if self.table is None else encode(self.table, self.dtype).reshape(-1))

    def shape(self, images: int) -> tuple[int, int, int, int]:
        """Of a batch array: (N, H, W, 3) or (N, 3, H, W)."""
        if self.layout == "hwc":
            return (images, self.height, self.width, 3)
        return (images, 3, self.height, self.width)

    def describe(self) -> list[str]:
        """The native part in words, a line an operation."""
        lines: list[str] = []
        inside = 0  # operations that a RandomApply still holds
        for name, numbers, interpolation in self.ops:
            text = f"{name} {' '.join(f'{number:g}' for number in numbers)} {interpolation}".rstrip()
            lines.append(f"  {text}" if inside else text)
            inside = int(numbers[1]) if name == "apply" else max(0, inside - 1)
        return [*lines, *self._passes()]

    def _passes(self) -> list[str]:
        names = [name for name, _, _ in self.ops]
        size = f"{self.height}×{self.width}"
        if not any(name in _BENDS for name in names):
            lines = [f"= one antialiased resampling of the decoded region to {size}"]
        elif self.fuse == "geometry":
            lines = [f"= each run of geometry is one affine matrix an image and one sampling of the decoded region, to {size}"]
        else:
            lines = [f'= one operation after the other, as Pillow does (fuse="off"), each only where it is needed, to {size}']
        if any(name in _COLOURS or name in _AUTOMATIC for name in names):
            lines.append("  colours in place between them, those that treat each pixel by itself in one pass")
        if self.dct_scale == "auto":
            lines.append(
                '  JPEGs decoded at half or quarter size where the first resize shrinks them that much (dct_scale="auto")'
            )
        return lines

    def image_bytes(self) -> int:
        """Bytes of one output image."""
        return self.height * self.width * 3 * np.dtype(NUMPY_DTYPES[self.dtype]).itemsize


def compile_plan(
    transform: Transform | Callable[[Any], Any] | None,
    *,
    dtype: Dtype = "uint8",
    layout: Layout = "hwc",
    table: Table | None = None,
    fuse: Fuse = "geometry",
    dct_scale: DctScale = "off",
) -> Plan:
    """Compiles `transform`. `table` overrides the values part (it must be what the transform's own would give).

    fuse: "geometry" folds any run of crops, resizes, flips, rotations and affines into one sampling; "off" gives the pixels of
    one operation after the other, as torchvision does on Pillow images. Without rotations and affines they are the same.

    dct_scale: "auto" decodes JPEGs at half or quarter size where the first resize shrinks them that much; not exact.

    Raises UsageError, in words, for pipelines without a fixed output size.
    """
    if fuse not in ("geometry", "off"):
        raise UsageError(f"fuse must be 'geometry' or 'off', not {fuse!r}")
    if dct_scale not in ("off", "auto"):
        raise UsageError(f"dct_scale must be 'off' or 'auto', not {dct_scale!r}")
    if dtype not in NUMPY_DTYPES:
        name = str(dtype).rpartition(".")[2]  # of torch.float32
        hint = f"dtype={name!r}: it is given by its name" if name in NUMPY_DTYPES else None
        raise UsageError(f"dtype {dtype!r} is not offered; there are {', '.join(NUMPY_DTYPES)}", hint=hint)
    if transform is None:
        raise UsageError("a transform is needed: images differ in size, a batch has one", hint=_EXAMPLE)
    steps = transform.transforms if isinstance(transform, Compose) else (transform,)
    steps, batch = _batch_part(steps)
    geometry, callables, values = _split(steps)
    ops = tuple(op for step in geometry for op in _ops(step))
    try:
        program = Program(list(ops), fuse == "geometry", dct_scale == "auto")
    except ValueError as error:
        raise UsageError(f"this pipeline cannot be compiled: {error}", hint=_EXAMPLE) from error
    made = _table(values, dtype) if table is None else table
    height, width = program.out
    names = [f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', type(call).__name__)}" for call in callables]
    bends = any(name in _BENDS for name, _, _ in ops)  # elsewhere fuse changes no pixel
    description = repr(
        (
            ops,
            names,
            None if made is None else made.tobytes().hex(),
            dtype,
            *([fuse] if bends else []),
            *(["dct_scale"] if dct_scale == "auto" else []),
            *batch,
        )
    )
    return Plan(
        ops=ops,
        program=program,
        height=height,
        width=width,
        callables=callables,
        table=made,
        dtype=dtype,
        layout=layout,
        fuse=fuse,
        dct_scale=dct_scale,
        batch=batch,
        hash=hashlib.sha256(description.encode()).hexdigest()[:16],
    )


_EXAMPLE = "for example transform=headrace.transforms.imagenet_train(224), or Compose([Resize(256), CenterCrop(224)])"

_VALUES = (ToDtype, Normalize)
_BATCH = (RandomErasing, MixUp, CutMix, RandomChoice)


def _batch_part(steps: Steps) -> tuple[Steps, tuple[Transform, ...]]:
    """The steps before the first batch transform, and those from it on, which must all be batch transforms."""
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


#: Native operations by what they do.
_AUTOMATIC = frozenset(
    {"rand_augment", "trivial_augment_wide", "auto_augment_imagenet", "auto_augment_cifar10", "auto_augment_svhn"}
)
_BENDS = _AUTOMATIC | {"rotation", "affine"}
_COLOURS = frozenset(
    {"color_jitter", "grayscale", "invert", "autocontrast", "equalize", "posterize", "solarize", "sharpness", "blur"}
    | {"dilate", "erode"}
)


def _split(
    steps: Steps,
) -> tuple[list[Transform], tuple[Callable[[Any], Any], ...], list[Transform]]:
    """Pixels, callables and values. They must come in that order; flips commute with values, so they may come late."""
    pixels: list[Transform] = []
    callables: list[Callable[[Any], Any]] = []
    values: list[Transform] = []
    for step in steps:
        if isinstance(step, _VALUES):
            values.append(step)
        elif isinstance(step, Transform):
            flip = isinstance(step, RandomHorizontalFlip | RandomVerticalFlip)
            if callables or (values and not flip):
                raise UsageError(
                    f"{type(step).__name__} after {'a Python function' if callables else type(values[-1]).__name__} "
                    "cannot be compiled",
                    hint="put it before",
                )
            pixels.append(step)
        else:
            if values:
                raise UsageError("a Python function after Normalize or ToDtype cannot be compiled", hint="put it before")
            _check_function(step)
            callables.append(step)
    return pixels, tuple(callables), values


def _check_function(step: object) -> None:
    """Raises UsageError for what is no function on arrays. torchvision's v2 transforms would return an array as it came."""
    name = type(step).__name__
    if not callable(step):
        raise UsageError(
            f"{name} is neither a transform nor a function", hint="headrace.transforms.Compose([…]) makes one of several"
        )
    if type(step).__module__.startswith("torchvision.transforms.") and name != "Lambda":
        same = f"headrace.transforms.{name}" if hasattr(transforms, name) else "those of headrace.transforms"
        raise UsageError(
            f"{name} is torchvision's: it works on Pillow images and tensors, and a Loader has neither",
            hint=f"use {same}: names, arguments and defaults are torchvision's, and it runs in native code",
        )


def _ops(step: Transform) -> list[Op]:
    """The native operations of a transform: (name, numbers, interpolation) of each."""
    if isinstance(step, RandomApply):
        inner = [op for part in step.transforms for op in _ops(part)]
        return [("apply", [step.p, float(len(inner))], ""), *inner]
    if isinstance(step, Repeat):
        parts = step.op.transforms if isinstance(step.op, Compose) else (step.op,)
        return [op for part in parts if isinstance(part, Transform) for op in _ops(part)] * step.n
    op = _geometry(step) or _augment(step) or _colour(step)
    if op is None:
        raise UsageError(f"{type(step).__name__} cannot be used here", hint="put it at the end of the pipeline")
    return [op]


def _geometry(step: Transform) -> Op | None:
    """The operation of a transform that moves pixels."""
    match step:
        case RandomResizedCrop():
            filters = step.interpolation
            numbers = [*_floats(step.size), *step.scale, *step.ratio]
            return ("random_resized_crop", numbers, filters if isinstance(filters, str) else " or ".join(filters))
        case Resize(size=int() as short):
            return ("resize_short", [float(short), float(step.max_size or 0)], step.interpolation)
        case Resize():
            return ("resize_exact", _floats(step.size), step.interpolation)
        case CenterCrop():
            return ("center_crop", _floats(step.size), "")
        case RandomCrop():
            return ("random_crop", [*_floats(step.size), *_floats(step.padding), float(step.pad_if_needed)], "")
        case Pad():
            return ("pad", [*_floats(step.padding), *_floats(step.fill)], "")
        case RandomHorizontalFlip():
            return ("flip_x", [step.p], "")
        case RandomVerticalFlip():
            return ("flip_y", [step.p], "")
        case RandomRotation():
            numbers = [*step.degrees, float(step.expand), *(step.center or _ABSENT), *_floats(step.fill)]
            return ("rotation", numbers, step.interpolation)
        case RandomAffine():
            numbers = [*step.degrees, *(step.translate or _ABSENT), *(step.scale or _ABSENT)]
            shear = (step.shear or (0.0, 0.0)) if step.shear is None or len(step.shear) == 2 else step.shear
            numbers += [*shear, 0.0, 0.0][:4]
            return ("affine", [*numbers, *(step.center or _ABSENT), *_floats(step.fill)], step.interpolation)
    return None


_ABSENT = (math.nan, math.nan)


def _augment(step: Transform) -> Op | None:
    match step:
        case RandAugment():
            numbers = [float(step.num_ops), float(step.magnitude), float(step.num_magnitude_bins), float(step.version)]
            return ("rand_augment", [*numbers, *_floats(step.fill)], step.interpolation)
        case TrivialAugmentWide():
            numbers = [float(step.num_magnitude_bins), float(step.version)]
            return ("trivial_augment_wide", [*numbers, *_floats(step.fill)], step.interpolation)
        case AutoAugment():
            return (f"auto_augment_{step.policy}", [float(step.version), *_floats(step.fill)], step.interpolation)
    return None


def _colour(step: Transform) -> Op | None:
    """The operation of a transform of colours or of small neighbourhoods."""
    match step:
        case ColorJitter():
            ranges = (step.brightness, step.contrast, step.saturation, step.hue)
            return ("color_jitter", [edge for found in ranges for edge in found or _ABSENT], "")
        case RandomGrayscale():
            return ("grayscale", [step.p], "")
        case Grayscale():
            return ("grayscale", [1.0], "")
        case GaussianBlur():
            return ("blur", [*_floats(step.kernel_size), *step.sigma], "")
        case RandomInvert():
            return ("invert", [step.p], "")
        case RandomPosterize():
            return ("posterize", [step.p, float(step.bits)], "")
        case RandomSolarize():
            return ("solarize", [step.p, float(step.threshold)], "")
        case RandomAutocontrast():
            return ("autocontrast", [step.p], "")
        case RandomEqualize():
            return ("equalize", [step.p], "")
        case RandomAdjustSharpness():
            return ("sharpness", [step.p, step.sharpness_factor], "")
        case Dilation():
            return ("dilate", [float(step.size // 2)], "")
        case Erosion():
            return ("erode", [float(step.size // 2)], "")
    return None


def _floats(values: object) -> list[float]:
    assert isinstance(values, tuple)  # normalised by the transform's __post_init__
    return [float(value) for value in values]


def _table(values: list[Transform], dtype: str) -> Table | None:
    """The 3 x 256 table of the value transforms, in float32 arithmetic as torchvision's, or None for plain uint8."""
    if dtype == "uint8":
        if values:
            raise UsageError(
                f"{type(values[0]).__name__} makes floats, but the loader's dtype is uint8",
                hint="pass dtype='float32' (or float16, bfloat16), or drop it here and normalise on the GPU",
            )
        return None
    row: Table = np.tile(np.arange(256, dtype=np.float32), (3, 1))
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
    """float32 values as `dtype`; bfloat16 as its bit pattern (uint16), rounded to nearest even."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values
