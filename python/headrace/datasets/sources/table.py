"""Tables of images: CSV, TSV and Parquet files with a column of paths and a column of labels."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.sources.archives.containers import numbered
from headrace.datasets.sources.folders.listed_images import check_first_image, listed_dataset
from headrace.errors import FormatError, MissingDependencyError
from headrace.system.files.regular_file import check_regular, regular_opener
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.size_limits import lines_of

__all__ = ["TABLES", "open_table"]

TABLES = (".csv", ".tsv", ".parquet")
# Column names that occur in lists of public datasets, in order of preference; case is ignored.
_PATHS = ("path", "filepath", "file_path", "image_path", "filename", "file_name", "file", "image", "img")
_LABELS = ("label", "labels", "class", "class_id", "target", "category")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]*)?")  # pandas writes a 3 as "3.0" in a column with missing values


def open_table(path: Path, root: Path | None = None) -> Dataset:
    """Open a table of images. Its paths are relative to `root`, by default the folder of the table.

    Labels are integers, or class names, which are sorted and numbered; an empty label means none. Raises FormatError if a
    column of paths or labels is missing, SourceError for an empty table or a missing first image, MissingDependencyError for
    Parquet without pyarrow.
    """
    folder = root if root is not None else path.parent
    names, texts = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    if any("\0" in name for name in names):
        raise FormatError(f"{path}: a path holds a NUL byte")
    check_first_image(path, folder, names)
    labels, classes = numbered(_labels(path, names, texts), {})
    return listed_dataset(path, folder, names, labels, classes)


def _csv(path: Path) -> tuple[list[str], list[str]]:
    names, labels = list[str](), list[str]()
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape", opener=regular_opener) as file:
        reader = csv.reader(lines_of(file), delimiter="\t" if path.suffix == ".tsv" else ",")
        try:
            header = next(reader, [])
            at, label = _columns(path, header)
            for row in reader:
                if len(row) <= max(at, label):
                    if not row:
                        continue
                    raise FormatError(f"{path}, line {reader.line_num}: {len(header)} columns are expected, {len(row)} found")
                names.append(row[at])
                labels.append(row[label])
        except csv.Error as error:  # for example an unclosed quotation mark
            raise FormatError(f"{path}, line {reader.line_num}: {error}") from error
    return names, labels


def _parquet(path: Path) -> tuple[list[str], list[str]]:
    try:
        library = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError("pyarrow is needed to read Parquet", hint="pip install pyarrow") from error
    try:
        check_regular(path)
        columns = library.read_schema(path).names
        at, label = (columns[i] for i in _columns(path, columns))
        table = library.read_table(path, columns=[at, label])  # other columns may hold the images themselves
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise FormatError(f"{path} is not a Parquet file that can be read: {first_line(error)}") from error
    names, labels = table.column(at).to_pylist(), table.column(label).to_pylist()
    if not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path}: column {at!r} does not hold paths")
    return names, ["" if value is None or value != value else str(value) for value in labels]


def _columns(path: Path, header: Sequence[str]) -> tuple[int, int]:
    """Return the positions of the columns of paths and of labels."""
    lower = [name.strip().lower() for name in header]
    found = [next((lower.index(name) for name in names if name in lower), None) for names in (_PATHS, _LABELS)]
    if found[0] is None or found[1] is None:
        what = "paths (path, filename, image, …)" if found[0] is None else "labels (label, class, target, …)"
        raise FormatError(f"{path} has no column of {what}; its columns: {', '.join(header)[:200]}")
    return found[0], found[1]


def _labels(path: Path, names: Sequence[str], texts: Sequence[str]) -> list[int | str | None]:
    """Return integers if all labels are numbers, else names; None: no label. Raise FormatError for an invalid number."""
    texts = [text.strip() for text in texts]
    if not all(_NUMBER.fullmatch(text) for text in texts if text):
        return [text or None for text in texts]
    for name, text in zip(names, texts, strict=True):
        if text and (float(text) < 0 or not float(text).is_integer()):
            raise FormatError(f"{path}: {name} has the label {text!r}; a whole number from 0, or a name, is expected")
    return [int(text.partition(".")[0]) if text else None for text in texts]
