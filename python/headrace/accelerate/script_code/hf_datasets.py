"""Rows of Hugging Face `datasets` with planned (undecoded) images, for planning items.

A `datasets.Dataset` keeps its rows in Arrow tables: the bytes of an image file, or its path. It decodes all images of the
requested rows, and passes them, as a dict of lists, to the function that the script gave to `set_transform`. Here the library
itself reads the rows, with decoding turned off on a copy of the dataset, so that `shuffle`, `select`, `filter`, renamed and
removed columns keep their meaning. The script's function then runs on planned images (`script_code.calls`).
"""

from __future__ import annotations

import copy
import functools
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

from headrace.accelerate.script_code.planned_images import Chain, NotUnderstood, PlannedImage

__all__ = ["DatasetRows", "is_rows_dataset", "rows_at_once"]

#: The EXIF tag of the orientation, and its value for an image that is to be turned by a quarter (EXIF 2.32, 4.6.4).
ORIENTATION, QUARTER = 0x0112, 6


def is_rows_dataset(thing: Any) -> bool:
    """Return whether an object is exactly a `datasets.Dataset`: a subclass may have code of its own."""
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and type(thing) is module.Dataset


def rows_at_once(dataset: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]] | None:
    """Return the `datasets.Dataset` and row numbers that torch's fetcher would read in one call of `__getitems__`.

    `Subset` objects around the dataset are resolved. None for any other dataset.
    """
    subset = sys.modules["torch.utils.data"].Subset
    rows = list(indices)
    while type(dataset) is subset:
        rows = [dataset.indices[row] for row in rows]
        dataset = dataset.dataset
    return (dataset, rows) if is_rows_dataset(dataset) else None


class DatasetRows:
    """Reads rows of one `datasets.Dataset`, with planned images in place of decoded ones.

    `call`: calls the script's function with a dict that only it has (`ItemCalls.call_with_own`). `item`: returns
    `thing[index]`. Raise `NotUnderstood` for a dataset with formats or features that are not known.
    """

    def __init__(self, dataset: Any, empty: Chain, call: Callable[..., Any], item: Callable[..., Any]) -> None:
        self.dataset = dataset
        self._empty = empty
        self._call = call
        self._item = item
        self._images: dict[str, bool] = {}  # the columns of images, and whether their images are converted to RGB
        for name, feature in dataset.features.items():
            self._add_column(name, feature)
        self._raw = _undecoded(dataset, tuple(self._images))

    def _add_column(self, name: str, feature: Any) -> None:
        image = sys.modules["datasets"].Image
        if type(feature) is image and feature.decode:
            if feature.mode not in (None, "RGB"):
                raise NotUnderstood(f'its column "{name}" is converted to the mode {feature.mode}')
            if not _turns_upright():
                raise NotUnderstood("its version of datasets does not turn images by their EXIF orientation")
            self._images[name] = feature.mode == "RGB"
        elif self.dataset.features._column_requires_decoding.get(name, False):
            raise NotUnderstood(f'its column "{name}" is decoded by the library datasets')

    def row(self, index: Any) -> dict[str, Any]:
        """Return `dataset[index]` for an int, with planned images."""
        if isinstance(index, bool) or not hasattr(type(index), "__index__"):
            raise NotUnderstood("its items read a whole column or several rows of a dataset")
        made = self._formatted([index])
        return {name: self._item(values, 0) for name, values in made.items()}

    def rows(self, indices: list[Any]) -> list[dict[str, Any]]:
        """Return `dataset.__getitems__(indices)`, with planned images."""
        made = self._formatted(indices)
        count = len(next(iter(made.values())))
        return [{name: self._item(values, at) for name, values in made.items()} for at in range(count)]

    def _formatted(self, indices: list[Any]) -> dict[str, Any]:
        """Return `dataset[indices]`, a dict of columns."""
        given = self.dataset.format
        if given["type"] not in (None, "custom"):
            raise NotUnderstood(f"its dataset has the format {given['type']}, not a function given to set_transform")
        columns = {name: self._values(name, values) for name, values in self._raw[indices].items()}
        made = {name: values for name, values in columns.items() if name in given["columns"]}
        if given["type"] == "custom":
            if set(given["format_kwargs"]) != {"transform"}:
                raise NotUnderstood("its dataset has a format with further arguments")
            made = self._call(given["format_kwargs"]["transform"], made)
            if type(made) is not dict or not made:
                raise NotUnderstood(f"the function of set_transform returns a {type(made).__name__}, not a dict")
        if given["output_all_columns"]:
            made = made | {name: values for name, values in columns.items() if name not in given["columns"]}
        return made

    def _values(self, name: str, values: list[Any]) -> list[Any]:
        if name not in self._images:
            return values
        return [None if value is None else self._image(value, is_rgb=self._images[name]) for value in values]

    def _image(self, value: dict[str, Any], *, is_rgb: bool) -> PlannedImage:
        source = value["bytes"] if value["bytes"] is not None else value["path"]
        if source is None or (isinstance(source, str) and ("://" in source or "::" in source)):
            raise NotUnderstood("its images are neither bytes nor local files")
        return PlannedImage(source, self._empty, is_rgb=is_rgb, is_upright=True)


def _undecoded(dataset: Any, images: tuple[str, ...]) -> Any:
    """Return a copy of the dataset that returns all columns as they are stored."""
    image = sys.modules["datasets"].Image
    raw = copy.copy(dataset)
    raw.reset_format()
    for name in images:
        raw = raw.cast_column(name, image(decode=False))
    return raw


@functools.cache
def _turns_upright() -> bool:
    """Return whether the library turns images by their EXIF orientation, as its newer versions do. Decodes one to find out."""
    from PIL import Image

    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER
    file = io.BytesIO()
    Image.new("RGB", (16, 8)).save(file, "JPEG", exif=exif)
    image = sys.modules["datasets"].Image()
    return bool(image.decode_example({"bytes": file.getvalue(), "path": None}).size == (8, 16))
