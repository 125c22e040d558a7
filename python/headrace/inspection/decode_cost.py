"""The cost of decoding the images of a dataset, as CPU time on one core of this machine.

A loader decodes a random crop (`RandomResizedCrop(224)`, ImageNet's training crop), and of the file only the part around it.
Where that part begins is known from restart markers, or from a JPEG index, which a loader makes in its first epoch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.datasets.records.dataset import Dataset
from headrace.errors import DecodeError
from headrace.images.decode import Index, checkpoint_index, decode_into
from headrace.images.header import read_header
from headrace.transforms.compile import compile_pipeline
from headrace.transforms.geometry import RandomResizedCrop

__all__ = ["DecodeCost", "measure_decode_cost"]

_IMAGES = 48  # take every n-th image so that about this many are decoded
_LIMIT_S = 1.5  # start no further image after this many seconds
_SIDE = 224  # width and height of the output in pixels


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Mean CPU seconds for one image, resized to 224 × 224.

    whole_s: the whole image. crop_s: a random crop of a file that is seen for the first time. indexed_crop_s: the same crop
    with a JPEG index, in later epochs; None where no file takes an index (restart markers, other formats).
    """

    whole_s: float
    crop_s: float
    indexed_crop_s: float | None


def measure_decode_cost(dataset: Dataset, rows: Sequence[int]) -> DecodeCost | None:
    """Return the mean cost of decoding about 50 of the images in `rows`, evenly spread; None if headrace can decode none.

    The cost is CPU time, because wall time depends on what else the machine does. Decoding stops after 1.5 seconds.
    """
    out = np.empty((1, _SIDE, _SIDE, 3), dtype=np.uint8)
    program = compile_pipeline(RandomResizedCrop(_SIDE)).program
    times_s: list[tuple[float, float, float]] = []
    indexed = False
    begin_s = time.perf_counter()
    for draw, row in enumerate(rows[:: max(1, len(rows) // _IMAGES)]):
        data = dataset.read(row)
        whole_s = _decode_s(data, out, None, None)
        if whole_s is not None:
            header = read_header(data)
            box = program.place(header.width, header.height, 0, 0, draw)[0]
            crop_s = _decode_s(data, out, box, None)
            index = _index(data)
            later_s = crop_s if index is None else _decode_s(data, out, box, index)
            indexed = indexed or index is not None
            if crop_s is not None and later_s is not None:
                times_s.append((whole_s, crop_s, later_s))
        if time.perf_counter() - begin_s > _LIMIT_S:
            break
    if not times_s:
        return None
    whole_s, crop_s, later_s = (float(np.mean(column)) for column in zip(*times_s, strict=True))
    return DecodeCost(whole_s, crop_s, later_s if indexed else None)


def _decode_s(
    data: bytes, out: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], box: Sequence[int] | None, index: Index | None
) -> float | None:
    """Return the CPU seconds of decoding one image, in the calling thread; None if decoding fails."""
    start_s = time.thread_time()
    status = decode_into([data], out, None if box is None else [box], index=None if index is None else [index])[0]
    return None if status else time.thread_time() - start_s


def _index(data: bytes) -> Index | None:
    """Return the JPEG index of an encoded image; None if it can have none."""
    try:
        index = checkpoint_index(data)
    except DecodeError:
        return None
    return index if index.rows else None
