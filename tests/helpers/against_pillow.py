"""Whether headrace reads a file as Pillow does: the question of the tests and tables of layouts."""

from __future__ import annotations

import io
import warnings
from typing import Literal

import headrace
import numpy as np
from headrace import _native
from PIL import Image

Outcome = Literal["equal", "wrong", "only headrace", "only Pillow", "neither"]
"""Who decodes the file; if both do, whether the pixels are equal."""


def decoded(data: bytes) -> np.ndarray | int:
    """Return the pixels, or the status of the refusal, which must not depend on the box."""
    one = np.zeros((1, 1, 1, 3), dtype=np.uint8)
    status = int(headrace.decode_into([data], one, boxes=[(0, 0, 1, 1)])[0])
    try:
        width, height = _native.image_size(data)
    except ValueError:
        assert status
        return status
    out = np.zeros((1, height, width, 3), dtype=np.uint8)
    assert int(headrace.decode_into([data], out, boxes=[(0, 0, width, height)])[0]) == status
    return status or out[0]


def pixels_of_pillow(data: bytes) -> np.ndarray | None:
    """Return Pillow's pixels, None if it does not read the file."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            warnings.simplefilter("ignore")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, TypeError, KeyError, SyntaxError, Image.DecompressionBombError):
        return None


def outcome(data: bytes) -> Outcome:
    """Decode the file with both and compare."""
    ours, theirs = decoded(data), pixels_of_pillow(data)
    if isinstance(ours, int):
        return "neither" if theirs is None else "only Pillow"
    if theirs is None:
        return "only headrace"
    return "equal" if np.array_equal(ours, theirs) else "wrong"
