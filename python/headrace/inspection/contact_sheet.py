"""A contact sheet: thumbnails of images spread evenly over a dataset, as one PNG file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.pictures import SIDE, spread_rows
from headrace.errors import DecodeError, MissingDependencyError, SourceError
from headrace.images.decode import decode_into
from headrace.images.header import read_header
from headrace.images.thumbnails import png
from headrace.images.with_pillow import converted, decode_with_pillow

__all__ = ["PICTURES", "contact_sheet"]

COLUMNS, ROWS, GAP = 8, 6, 4  # pictures per row, rows of pictures, pixels between pictures
PICTURES = COLUMNS * ROWS
_BACKGROUND, _MISSING = 255, 200


def contact_sheet(dataset: Dataset) -> bytes:
    """Return a PNG of the central squares of up to 48 images spread evenly over the dataset; unreadable ones are grey."""
    rows = spread_rows(dataset, PICTURES)
    lines = -(-len(rows) // COLUMNS)
    step = SIDE + GAP
    sheet = np.full((lines * step + GAP, COLUMNS * step + GAP, 3), _BACKGROUND, dtype=np.uint8)
    for place, row in enumerate(rows):
        y, x = GAP + place // COLUMNS * step, GAP + place % COLUMNS * step
        sheet[y : y + SIDE, x : x + SIDE] = _square(dataset, int(row))
    height, width, _ = sheet.shape
    return png(sheet.tobytes(), width, height)


def _square(dataset: Dataset, row: int) -> npt.NDArray[np.uint8]:
    square = np.full((SIDE, SIDE, 3), _MISSING, dtype=np.uint8)
    try:
        data = dataset.read(row)
        header = read_header(data)
        side = min(header.width, header.height)
        x, y = (header.width - side) // 2, (header.height - side) // 2
        if decode_into([data], square[None], boxes=[(x, y, side, side)])[0]:
            square[:] = _MISSING
            image = converted(decode_with_pillow(data), "RGB")  # Pillow reads formats that decode_into does not
            square[:] = np.asarray(image.resize((SIDE, SIDE), box=(x, y, x + side, y + side)))
    except (SourceError, DecodeError, MissingDependencyError):
        pass  # it stays grey; `inspect` lists the reason
    return square
