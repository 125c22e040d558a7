"""Image sizes that do not fit: much smaller than the training size, or unlike the images that a model was trained on."""

from __future__ import annotations

import numpy as np

from headrace.datasets.records.dataset import Dataset
from headrace.errors import HeadraceError
from headrace.images.header import read_header

__all__ = ["enlargement_note", "short_side", "unlike_training_note"]

SAMPLE = 32  # read the headers of this many images if the index has no sizes
UNLIKE = 3.0  # warn of images whose shorter side is this many times smaller or larger than that of the training images
TIMES = 2.0  # report enlarging by this factor or more; less is usual (ImageNet has images of 180 pixels)


def enlargement_note(data: Dataset, image_size: int) -> str | None:
    """Return advice if images must be enlarged a lot to `image_size` pixels; None if not, or if their sizes are unknown.

    Sizes come from the index, else from the headers of some images on a local disk.
    """
    side = short_side(data)
    if side is None or image_size < TIMES * side:
        return None
    fewer = (image_size / side) ** 2
    return (
        f"the images are small (shorter side {side} pixels, the median) and are enlarged to {image_size}: "
        f"--image-size {side} takes {fewer:,.0f} times less compute"
    )


def unlike_training_note(data: Dataset, trained_side: int | None, image_size: int) -> str | None:
    """Return a warning if the images of `data` are unlike those that a model was trained on; None if not, or if unknown.

    `trained_side`: median of the shorter sides of the training images; None for weights that do not record it: then only images
    that are UNLIKE times smaller than `image_size`, the pixels that the model was trained at, are pointed out.
    """
    side = short_side(data)
    if side is None:
        return None
    trained, what = (image_size, "image size of training") if trained_side is None else (trained_side, "training images")
    smaller, larger = trained >= UNLIKE * side, trained_side is not None and side >= UNLIKE * trained_side
    if not smaller and not larger:
        return None
    times = trained / side if smaller else side / trained
    return (
        f"the images are {times:.1f} times {'smaller' if smaller else 'larger'} than the {what} (shorter side {side} pixels, "
        f"the median, against {trained}): predictions may be wrong"
    )


def short_side(data: Dataset) -> int | None:
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
