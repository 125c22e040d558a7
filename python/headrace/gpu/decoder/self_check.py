"""Compare a GPU's first decode with the CPU kernel: a decoder that gives other pixels is not used."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from headrace._native import encode_jpeg
from headrace.errors import HeadraceError
from headrace.images.decode import decode_into
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.sizes import percent_text

__all__ = ["CHECKED_SIZE", "check_pixels"]

CHECKED_SIZE = (48, 40)
"""Height and width in pixels of the images that `check_pixels` decodes."""

_TILE = 32  # pixels between restart markers, as the packer writes them


class Decoder(Protocol):
    """The interface of `CudaJpegDecoder` that `check_pixels` uses."""

    def decode(self, files: Any, boxes: Any, flips: Any, /) -> Any:
        """Start to decode, and return a batch with `statuses()` and `images` (see `CudaBatch`)."""


def check_pixels(decoder: Decoder) -> None:
    """Decode a few small images with `decoder`, whose size is `CHECKED_SIZE`. Raise `HeadraceError` if a pixel is wrong.

    check_pixels(CudaJpegDecoder("cuda", CHECKED_SIZE))
    """
    rng = np.random.default_rng(0)
    files, boxes = [], []
    for width, height, gray in [(150, 110, False), (75, 97, True), (333, 61, False)]:
        coarse = rng.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3)).repeat(6, 0).repeat(6, 1)[:height, :width]
        pixels = np.clip(coarse + rng.normal(0, 9, coarse.shape), 0, 255).astype(np.uint8)
        file = encode_jpeg(pixels.tobytes(), width, height, 88, _TILE, gray)
        files += [file, file]
        boxes += [(0, 0, width, height), (11, 7, width - 30, height - 19)]
    flips = [False, True] * 3
    expected = np.empty((len(files), *CHECKED_SIZE, 3), np.uint8)
    decode_into(files, expected, boxes, flips)
    try:
        batch = decoder.decode(files, boxes, flips)
        statuses = batch.statuses()
        found = batch.images.permute(0, 2, 3, 1).cpu().numpy()
    except RuntimeError as error:  # torch's
        raise HeadraceError(f"the CUDA decoder's first batch failed: {first_line(error)}") from error
    if statuses.any():
        raise HeadraceError("the CUDA decoder reports undamaged images as damaged on this GPU")
    if not np.array_equal(found, expected):
        share = percent_text(float(np.mean(found != expected)), digits=1)
        raise HeadraceError(f"{share} of the CUDA decoder's values differ from the CPU kernel's on this GPU; all must be equal")
