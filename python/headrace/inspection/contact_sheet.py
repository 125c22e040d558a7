"""A contact sheet: thumbnails of images spread evenly over a dataset, as one PNG file or one by one for a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace._native import encode_jpeg
from headrace.datasets.records import Dataset
from headrace.errors import DecodeError, MissingDependencyError, SourceError
from headrace.images.decode import UNSUPPORTED, decode_into, reason
from headrace.images.header import read_header
from headrace.images.thumbnails import png
from headrace.packing.lossless import decoded

__all__ = ["Picture", "contact_sheet", "pictures"]

COLUMNS, ROWS, SIDE, GAP = 8, 6, 128, 4  # pictures a row, rows, pixels, pixels
_BACKGROUND, _MISSING = 255, 200
_QUALITY = 80  # JPEG quality of the pictures on a page


@dataclass(frozen=True, slots=True)
class Picture:
    """A thumbnail of one image, or the reason why there is none."""

    key: str
    class_name: str  # "": no label
    width: int  # pixels of the thumbnail
    height: int
    jpeg: bytes | None
    problem: str = ""


def contact_sheet(dataset: Dataset) -> bytes:
    """Return a PNG of the central squares of up to 48 images spread evenly over the dataset; unreadable ones are grey."""
    rows = _chosen(dataset)
    lines = -(-len(rows) // COLUMNS)
    step = SIDE + GAP
    sheet = np.full((lines * step + GAP, COLUMNS * step + GAP, 3), _BACKGROUND, dtype=np.uint8)
    for place, row in enumerate(rows):
        y, x = GAP + place // COLUMNS * step, GAP + place % COLUMNS * step
        sheet[y : y + SIDE, x : x + SIDE] = _square(dataset, int(row))
    height, width, _ = sheet.shape
    return png(sheet.tobytes(), width, height)


def pictures(dataset: Dataset) -> list[Picture]:
    """Return thumbnails, at most 128 pixels wide and high, of up to 48 records spread evenly over the dataset."""
    return [_picture(dataset, int(row)) for row in _chosen(dataset)]


def _chosen(dataset: Dataset) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, len(dataset) - 1, COLUMNS * ROWS).astype(np.int64))


def _picture(dataset: Dataset, row: int) -> Picture:
    key, label = dataset.table.keys[row], int(dataset.table.label[row])
    name = dataset.classes[label] if 0 <= label < len(dataset.classes) else ""
    try:
        data = dataset.read(row)
        header = read_header(data)
        scale = min(1.0, SIDE / max(header.width, header.height))
        width, height = max(1, round(header.width * scale)), max(1, round(header.height * scale))
        pixels = np.empty((1, height, width, 3), dtype=np.uint8)
        status = int(decode_into([data], pixels)[0])
        if status == UNSUPPORTED:  # Pillow reads formats that decode_into does not
            pixels[0] = np.asarray(decoded(data).convert("RGB").resize((width, height)))
        elif status:
            return Picture(key, name, width, height, None, reason(status))
    except (SourceError, DecodeError, MissingDependencyError) as error:
        return Picture(key, name, SIDE, SIDE, None, str(error))
    return Picture(key, name, width, height, encode_jpeg(pixels.tobytes(), width, height, _QUALITY, 0))


def _square(dataset: Dataset, row: int) -> npt.NDArray[np.uint8]:
    square = np.full((SIDE, SIDE, 3), _MISSING, dtype=np.uint8)
    try:
        data = dataset.read(row)
        header = read_header(data)
        side = min(header.width, header.height)
        x, y = (header.width - side) // 2, (header.height - side) // 2
        if decode_into([data], square[None], boxes=[(x, y, side, side)])[0]:
            square[:] = _MISSING
            image = decoded(data).convert("RGB")  # Pillow reads formats that decode_into does not
            square[:] = np.asarray(image.resize((SIDE, SIDE), box=(x, y, x + side, y + side)))
    except (SourceError, DecodeError, MissingDependencyError):
        pass  # it stays grey; `inspect` lists the reason
    return square
