"""The pictures of a batch, as a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.pictures import spread_rows
from headrace.errors import MissingDependencyError, UsageError
from headrace.images.with_pillow import rgb_pixels
from headrace.loading.loader import Loader
from headrace.system.text.arguments import suggest_arguments
from headrace.system.text.install_hints import extra_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["show_batch"]

_SIDE_INCHES = 1.7  # width and height of a picture with its title
_COLUMNS = 8  # most pictures per row if `columns` is not given
_TITLE_LENGTH = 22  # number of characters that fit above a picture
_LEAST_SHARE = 0.05  # of a mixed label, name the classes with at least this share
_MASK_OPACITY = 0.45


@suggest_arguments()
def show_batch(
    batch: Loader[Any] | Dataset | Sequence[Any],
    count: int = 16,
    *,
    columns: int | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Figure:
    """Draw the first pictures of a batch with their class names.

    batch: a Loader: the first batch of its next pass, which is decoded for this and does not move the loader; or a batch that a
        loader gave, (images, labels) or (images, labels, masks), tensors or arrays; or a Dataset: records spread over it.
    count: pictures at most (16).
    columns: pictures in a row. Default: None, up to 8. With `Views`, a row holds the views of one image.
    classes: class names, for a batch. Default: None, the loader's or the dataset's; numbers for a batch.
    mean, std: what `Normalize` took, to undo it. Default: None: a Loader knows its own; a batch with values outside 0 to 1 is
        stretched from its lowest to its highest value.

    Returns a `matplotlib.figure.Figure`: a notebook shows it, `figure.savefig("batch.png")` saves it. Masks are laid over their
    images, one colour a class, class 0 clear; a label mixed by MixUp or CutMix names its classes with their shares.

    Raises MissingDependencyError without matplotlib (the extra `plot`), UsageError for what is no batch, SourceError for a
    Loader over a stream, DecodeError for a damaged image. Example: `headrace.show_batch(loader).savefig("batch.png")`.
    """
    plot = _matplotlib()
    if count < 1 or (columns is not None and columns < 1):
        raise UsageError("count and columns must be at least 1", hint="for example show_batch(loader, count=16, columns=4)")
    if (mean is None) != (std is None):
        raise UsageError("give mean and std together, or neither", hint="those of your Normalize")
    if isinstance(batch, Dataset):
        rows = [_row_of_record(batch, int(row)) for row in spread_rows(batch, count)]
        names: Sequence[str] = batch.classes
    elif isinstance(batch, Loader):
        rows, names = _rows(batch.preview(), count, _scale_of(batch) if mean is None else (mean, std)), batch.classes
    else:
        rows, names = _rows(batch, count, None if mean is None else (mean, std)), ()
    if not rows:
        raise UsageError("there are no pictures to show: the batch is empty")
    return _draw(plot, rows, columns, names if classes is None else classes)


_Row = tuple[list[npt.NDArray[Any]], Any, npt.NDArray[Any] | None]  # one record: a picture per view, its label, its mask
_Scale = tuple[Any, Any]  # mean and standard deviation of each channel


def _matplotlib() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise MissingDependencyError("show_batch needs matplotlib", hint=extra_hint("plot")) from error
    return matplotlib.pyplot


def _row_of_record(dataset: Dataset, row: int) -> _Row:
    return [rgb_pixels(dataset.read(row))], int(dataset.table.label[row]), None


def _scale_of(loader: Loader[Any]) -> _Scale | None:
    """Return the offset and factor per channel that map the loader's values back to 0 to 1; None for uint8 pixels."""
    table = loader.pipeline.table
    if table is None:
        return None
    low, high = np.asarray(table)[:, 0], np.asarray(table)[:, 255]
    return -low / (high - low), 1 / (high - low)


def _rows(batch: Sequence[Any], count: int, scale: _Scale | None) -> list[_Row]:
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise UsageError(
            f"show_batch takes a Loader, a Dataset or a batch (images, labels), not {type(batch).__name__}",
            hint="headrace.show_batch(next(iter(loader)))",
        )
    views = batch[0] if isinstance(batch[0], tuple | list) else (batch[0],)
    pictures = [_as_pictures(images, count, scale) for images in views]
    labels = _as_array(batch[1])[:count]
    third = batch[2] if len(batch) > 2 and not isinstance(batch[2], list) else None
    third = third[0] if isinstance(third, tuple) else third
    laid = _as_array(third)[:count] if getattr(third, "ndim", 0) == 3 else None  # else the numbers of the records
    if len(labels) != len(pictures[0]):
        raise UsageError(f"{len(labels)} labels for {len(pictures[0])} images", hint="give a batch as the loader gave it")
    return [
        ([view[number] for view in pictures], label, None if laid is None else laid[number])
        for number, label in enumerate(labels)
    ]


def _as_array(values: Any) -> npt.NDArray[Any]:
    """Return a tensor or a sequence as an array; half-precision floats become float32, as NumPy has no bfloat16."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return np.asarray(values)


def _as_pictures(images: Any, count: int, scale: _Scale | None) -> npt.NDArray[Any]:
    """Return up to `count` images as [n, H, W, 3] in uint8, or in floats from 0 to 1."""
    array = _as_array(images)
    if array.ndim != 4 or 3 not in (array.shape[1], array.shape[3]):
        raise UsageError(f"images must be [N, 3, H, W] or [N, H, W, 3], not {list(array.shape)}")
    if array.shape[3] != 3:
        array = array.transpose(0, 2, 3, 1)
    array = array[:count]
    if array.dtype == np.uint8 or not array.size:
        return array
    array = np.nan_to_num(array.astype(np.float32))
    if scale is not None:
        array = array * np.asarray(scale[1], np.float32) + np.asarray(scale[0], np.float32)
    elif array.min() < 0 or array.max() > 1:
        array = (array - array.min()) / max(float(array.max() - array.min()), 1e-6)
    clipped: npt.NDArray[Any] = np.clip(array, 0, 1)
    return clipped


def _draw(plot: Any, rows: Sequence[_Row], columns: int | None, names: Sequence[str]) -> Figure:
    views = len(rows[0][0])
    if columns is None:
        columns = views if views > 1 else min(_COLUMNS, len(rows))
    cells = [(picture, label, mask) for pictures, label, mask in rows for picture in pictures]
    columns = min(columns, len(cells))
    lines = math.ceil(len(cells) / columns)
    figure: Figure = plot.figure(figsize=(columns * _SIDE_INCHES, lines * _SIDE_INCHES), layout="constrained")
    grid = np.ravel(figure.subplots(lines, columns, squeeze=False))
    for place in grid:
        place.set_axis_off()
    for place, (picture, label, mask) in zip(grid, cells, strict=False):
        place.imshow(picture)
        if mask is not None:
            shown = np.ma.masked_equal(mask, 0)
            place.imshow(shown, cmap="tab20", vmin=0, vmax=19, alpha=_MASK_OPACITY, interpolation="nearest")
        place.set_title(_title(label, names), fontsize="small", parse_math=False)
    if "inline" in plot.get_backend():  # a notebook shows the figure that a cell returns: only once
        plot.close(figure)
    return figure


def _title(label: Any, names: Sequence[str]) -> str:
    def name(number: int) -> str:
        return names[number] if 0 <= number < len(names) else str(number) if number >= 0 else "no label"

    if np.ndim(label) == 0:
        return _shortened(name(int(label)), _TITLE_LENGTH)
    largest = [int(number) for number in np.argsort(-np.asarray(label), kind="stable")[:2] if label[number] >= _LEAST_SHARE]
    return "\n".join(f"{_shortened(name(number), _TITLE_LENGTH - 5)} {100 * label[number]:.0f} %" for number in largest)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
