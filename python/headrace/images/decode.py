"""`decode_into`: JPEG bytes to cropped, resized, flipped uint8 images in the caller's memory, one call for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace._native import Index, status_names
from headrace._native import decode_into as native_decode_into
from headrace.errors import DecodeError, UsageError
from headrace.images.interpolation import interpolation_name

__all__ = [
    "MAX_PIXELS",
    "NOT_DECODED",
    "TOO_LARGE",
    "UNKNOWN_FORMAT",
    "UNSUPPORTED",
    "Index",
    "checkpoint_index",
    "decode_into",
    "reason",
]

# Of headrace-core's Status: what decode_into returns where the data may be sound.
UNKNOWN_FORMAT = 2
UNSUPPORTED = 8
TOO_LARGE = 9
NOT_DECODED = (UNKNOWN_FORMAT, UNSUPPORTED)
"""Images of kinds that are not decoded here: Pillow may read them."""

MAX_PIXELS = 178_956_970
"""Larger images are TOO_LARGE (headrace-core's limit, Pillow's for an error)."""

Box = Sequence[int]


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
    resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear",
) -> npt.NDArray[np.int32]:
    """Decodes each image, crops it to its box (x, y, w, h), resizes the crop to H × W and flips it where asked, into `out[i]`.

    `out` is a writable C-contiguous uint8 array [N, H, W, 3] (numpy, or a CPU tensor), RGB. The pixels are those of Pillow's
    `open().convert("RGB").crop().resize(…)`, bit for bit. With `exif=True` images are turned upright first, as by
    `ImageOps.exif_transpose`, and boxes lie in the upright image. `index` holds a checkpoint index (`checkpoint_index`, or its
    bytes) or None for each image: the same pixels, sooner; one of another image gives the status of a bad index.
    `dct_scale="auto"` decodes a JPEG at half or quarter size where the crop is that much larger than the target: faster and not
    exact (docs/exactness.md has the difference).

    Returns int32 [N]: 0 = ok, else the reason's number (`headrace.images.decode.reason`); the slot of a failed image is black.
    No state is kept between calls.

    Raises UsageError when the arguments do not fit each other.
    """
    array = out.numpy() if hasattr(out, "numpy") and not isinstance(out, np.ndarray) else out
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        found = f"{getattr(array, 'dtype', type(array).__name__)} {list(getattr(array, 'shape', ()))}"
        raise UsageError(f"out must be a uint8 array [N, H, W, 3], not {found}")
    if array.shape[0] != len(jpegs):
        raise UsageError(f"out has {array.shape[0]} slots for {len(jpegs)} images")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    if dct_scale not in ("off", "auto"):
        raise UsageError(f"dct_scale must be 'off' or 'auto', not {dct_scale!r}")
    for name, values in (("boxes", boxes), ("flips", flips), ("indexes", index)):
        if values is not None and len(values) != len(jpegs):
            raise UsageError(f"{len(values)} {name} for {len(jpegs)} images")
    try:
        corners = None if boxes is None else [(int(x), int(y), int(w), int(h)) for x, y, w, h in boxes]
    except (TypeError, ValueError) as error:
        raise UsageError(f"boxes must be (x, y, w, h) of ints: {error}") from error
    try:
        statuses = native_decode_into(
            list(jpegs),
            array,
            array.shape[1],
            array.shape[2],
            corners,
            None if flips is None else [bool(flip) for flip in flips],
            threads,
            interpolation_name(resample, "decode_into"),
            exif,
            None if index is None else [_index(one) for one in index],
            dct_scale == "auto",
        )
    except (ValueError, TypeError, BufferError) as error:
        raise UsageError(f"decode_into: {error}") from error
    return np.asarray(statuses, dtype=np.int32)


def checkpoint_index(jpeg: bytes) -> Index:
    """The checkpoints of a JPEG without restart markers: bit offsets and predictors at every tile of about 32 pixels' width.

    With it, `decode_into` decodes only what a crop needs, from the original file. `to_bytes()` and `Index.from_bytes()` are for
    side-car files. `rows` is 0 where there is nothing to index (restart markers, progressive files, other formats).
    Raises DecodeError with the reason when the image cannot be decoded.
    """
    try:
        return Index.build(jpeg)
    except ValueError as error:
        raise DecodeError(f"no index can be made: {error}") from error


def _index(one: Index | bytes | None) -> Index | None:
    return Index.from_bytes(one) if isinstance(one, bytes) else one


def reason(status: int) -> str:
    """The sentence for a status number."""
    names = status_names()
    return names[status][1] if 0 <= status < len(names) else f"unknown status {status}"
