"""Decode, crop, resize and flip a batch of images into the caller's memory, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace._native import Index, status_names
from headrace._native import decode_into as native_decode_into
from headrace.errors import DecodeError, UsageError
from headrace.images.interpolation import interpolation_name
from headrace.system.text.arguments import suggest_arguments

__all__ = [
    "NOT_DECODED",
    "OPEN_FILES",
    "SYSTEM_FAILED",
    "TOO_LARGE",
    "UNKNOWN_FORMAT",
    "UNSUPPORTED",
    "Index",
    "checkpoint_index",
    "decode_into",
    "reason",
]

# Status numbers of headrace-core that do not mean damaged data.
UNKNOWN_FORMAT = 2
UNSUPPORTED = 8
TOO_LARGE = 9
OPEN_FILES = 19  # the system's fault, as the next: the record may be sound
SYSTEM_FAILED = 20
NOT_DECODED = (UNKNOWN_FORMAT, UNSUPPORTED)
"""Status numbers of images in a format that headrace does not decode. Pillow may be able to."""

Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "bilinear-int16", "bicubic-int16"]
Box = Sequence[int]
Size = Sequence[int]


@suggest_arguments()
def decode_into(
    jpegs: Sequence[bytes | bytearray | memoryview],
    out: Any,
    boxes: Sequence[Box] | None = None,
    flips: Sequence[bool] | None = None,
    threads: int = 1,
    *,
    index: Sequence[Index | bytes | None] | None = None,
    dct_scale: Literal["off", "auto"] = "off",
    exif: bool = False,
    resample: Resample = "bilinear",
    sizes: Sequence[Size] | None = None,
    windows: Sequence[Box] | None = None,
) -> npt.NDArray[np.int32]:
    """Decode each image, crop it, resize the crop to H × W, flip it, and write it to `out[i]`.

    jpegs: N encoded images: JPEG, or another format that is decoded natively.
    out: writable C-contiguous uint8 array [N, H, W, 3] (NumPy, or a CPU tensor), filled with RGB.
    boxes: the crop (x, y, width, height) of each image in pixels (default: the whole image).
    flips: whether to flip each image from left to right (default: no).
    threads: number of threads, at least 1 (default 1).
    index: for each image its JPEG index (`checkpoint_index`, or its bytes) or None. It saves time and changes no pixel.
    dct_scale: "auto": at half or quarter size if the crop is that much larger: faster, not exact (docs/reference/exactness.md).
    exif: apply the EXIF orientation first, as `ImageOps.exif_transpose` does; boxes refer to the upright image (default: no).
    resample: Pillow's filter for the resize (default "bilinear"); "…-int16" are torchvision v2's for uint8 tensors.
    sizes: the (width, height) in pixels that each image is resized to (default: those of `out`).
    windows: the part (x, y, width, height) of each resized image to decode and write, as large as `out` (default: the whole).

    Returns a status for each image, int32 [N]: 0 is success, others are numbers for `headrace.images.decode.reason`. The slot
    of a failed image is black. The pixels are those of Pillow's `open().convert("RGB").crop().resize(…).crop()`, bit for bit.
    No state remains between calls. Buffers other than `bytes` (or a memoryview of it) are copied first. No other thread may
    use `out` during the call: it would see, or destroy, parts of images.

    Raises `UsageError` if the arguments do not fit each other, as a window that leaves its resized image.

        out = np.empty((2, 224, 224, 3), np.uint8)
        statuses = decode_into([first, second], out, boxes=[(0, 0, 300, 300), (20, 40, 256, 256)])
        decode_into([first, second], out, sizes=[(341, 256), (256, 384)], windows=[(58, 16, 224, 224), (9, 99, 224, 224)])
    """
    array = _checked_array(out, len(jpegs))
    _check_options(len(jpegs), threads, dct_scale, boxes=boxes, flips=flips, indexes=index, sizes=sizes, windows=windows)
    try:
        statuses = native_decode_into(
            list(jpegs),
            array,
            array.shape[1],
            array.shape[2],
            _checked_boxes(boxes, "boxes"),
            None if flips is None else [bool(flip) for flip in flips],
            threads,
            interpolation_name(resample, "decode_into"),
            exif,
            None if index is None else [_index(one) for one in index],
            dct_scale == "auto",
            _checked_sizes(sizes),
            _checked_boxes(windows, "windows"),
        )
    except (ValueError, TypeError, BufferError, OverflowError) as error:
        raise UsageError(f"decode_into: {error}") from error
    return np.asarray(statuses, dtype=np.int32)


def checkpoint_index(jpeg: bytes) -> Index:
    """Build the JPEG index of a JPEG without restart markers: bit offsets and predictors about every 64 pixels.

    With the index, `decode_into` decodes only what a crop needs, from the original file.

    jpeg: the file's bytes.

    Returns the index. `to_bytes()` and `Index.from_bytes()` save and load it. `rows` is 0 if there is nothing to index (restart
    markers, progressive files, other formats). Raises `DecodeError` with the reason if the image cannot be decoded.

        decode_into([jpeg], out, boxes=[(0, 0, 64, 64)], index=[checkpoint_index(jpeg)])
    """
    try:
        return Index.build(jpeg)
    except ValueError as error:
        raise DecodeError(f"no index can be made: {error}") from error


def _checked_array(out: Any, count: int) -> npt.NDArray[np.uint8]:
    """Return `out` as a NumPy array. Raise `UsageError` unless it is uint8 [count, H, W, 3]."""
    array = out.numpy() if hasattr(out, "numpy") and not isinstance(out, np.ndarray) else out
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        found = f"{getattr(array, 'dtype', type(array).__name__)} {list(getattr(array, 'shape', ()))}"
        raise UsageError(f"out must be a uint8 array [N, H, W, 3], not {found}")
    if array.shape[0] != count:
        raise UsageError(f"out has {array.shape[0]} slots for {count} images")
    return array


def _check_options(count: int, threads: int, dct_scale: str, **lists: Sequence[Any] | None) -> None:
    """Raise `UsageError` for an option out of range, and unless each of the `lists` has one entry per image."""
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    if dct_scale not in ("off", "auto"):
        raise UsageError(f"dct_scale must be 'off' or 'auto', not {dct_scale!r}")
    for name, values in lists.items():
        if values is not None and len(values) != count:
            raise UsageError(f"{len(values)} {name} for {count} images")


def _checked_boxes(boxes: Sequence[Box] | None, name: str) -> list[tuple[int, int, int, int]] | None:
    try:
        return None if boxes is None else [(int(x), int(y), int(w), int(h)) for x, y, w, h in boxes]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be (x, y, w, h) of ints: {error}") from error


def _checked_sizes(sizes: Sequence[Size] | None) -> list[tuple[int, int]] | None:
    try:
        return None if sizes is None else [(int(width), int(height)) for width, height in sizes]
    except (TypeError, ValueError) as error:
        raise UsageError(f"sizes must be (width, height) of ints: {error}") from error


def _index(one: Index | bytes | None) -> Index | None:
    return Index.from_bytes(one) if isinstance(one, bytes) else one


def reason(status: int) -> str:
    """Return the meaning of a status number of `decode_into` in words, such as the reason of a failure."""
    names = status_names()
    return names[status][1] if 0 <= status < len(names) else f"unknown status {status}"
