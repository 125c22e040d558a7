"""Thumbnails of records spread evenly over a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace._native import encode_jpeg
from headrace.datasets.records.table import Tabled
from headrace.errors import DecodeError, MissingDependencyError, SourceError
from headrace.images.header import read_header
from headrace.images.with_pillow import rgb_pixels

__all__ = ["SIDE", "Picture", "pictures", "spread_rows"]

SIDE = 128  # pixels; the longer side of a thumbnail
_QUALITY = 80  # JPEG quality of a thumbnail


@dataclass(frozen=True, slots=True)
class Picture:
    """A thumbnail of one image, or the reason why there is none."""

    key: str
    class_name: str  # "": no label
    width: int  # pixels of the thumbnail
    height: int
    jpeg: bytes | None
    problem: str = ""


def pictures(dataset: Tabled, count: int) -> list[Picture]:
    """Return thumbnails, at most 128 pixels wide and high, of up to `count` records spread evenly over the dataset."""
    return [_picture(dataset, int(row)) for row in spread_rows(dataset, count)]


def spread_rows(dataset: Tabled, count: int) -> npt.NDArray[np.int64]:
    """Return up to `count` rows of the dataset's table, from the first to the last, in equal steps."""
    if not len(dataset):
        return np.empty(0, dtype=np.int64)
    return np.unique(np.linspace(0, len(dataset) - 1, count).astype(np.int64))


def _picture(dataset: Tabled, row: int) -> Picture:
    key, name = dataset.table.keys[row], dataset.class_name(int(dataset.table.label[row]))
    try:
        data = dataset.read(row)
        header = read_header(data)
        scale = min(1.0, SIDE / max(header.width, header.height))
        width, height = max(1, round(header.width * scale)), max(1, round(header.height * scale))
        pixels = rgb_pixels(data, (width, height))
    except (SourceError, DecodeError, MissingDependencyError) as error:
        return Picture(key, name, SIDE, SIDE, None, str(error))
    return Picture(key, name, width, height, encode_jpeg(pixels.tobytes(), width, height, _QUALITY, 0))
