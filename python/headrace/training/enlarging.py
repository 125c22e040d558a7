"""Images much smaller than the training size: enlarging them costs compute and adds no information."""

from __future__ import annotations

import numpy as np

from headrace.datasets.records import Dataset
from headrace.errors import HeadraceError
from headrace.images.header import read_header

__all__ = ["enlargement_note"]

SAMPLE = 32  # images whose headers are read where the index has no sizes
TIMES = 2.0  # report enlarging by this factor or more; less is usual (ImageNet has images of 180 pixels)


def enlargement_note(data: Dataset, image_size: int) -> str | None:
    """Return advice if images must be enlarged a lot to `image_size` pixels; None if not, or if their sizes are unknown.

    Sizes come from the index, else from the headers of some images on a local disk.
    """
    side = _short_side(data)
    if side is None or image_size < TIMES * side:
        return None
    fewer = (image_size / side) ** 2
    return (
        f"the images are small (shorter side {side} pixels, the median) and are enlarged to {image_size}: "
        f"--image-size {side} takes {fewer:,.0f} times less compute"
    )


def _short_side(data: Dataset) -> int | None:
    """Return the median of the shorter sides, in pixels."""
    table = data.table
    if data.stream is not None or not len(table):
        return None
    if table.width is not None and table.height is not None:
        return int(np.median(np.minimum(table.width, table.height)))
    if data.fetcher is not None:
        return None
    sides = []
    for record in np.linspace(0, len(table) - 1, min(SAMPLE, len(table)), dtype=np.int64):
        try:
            header = read_header(data.read(int(record)))
        except HeadraceError:  # training reports it, and does what --on-error says
            continue
        sides.append(min(header.width, header.height))
    return int(np.median(sides)) if sides else None
