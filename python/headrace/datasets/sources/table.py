"""Tables of images: CSV, TSV and Parquet files with a column of paths and a column of labels."""

from __future__ import annotations

import csv
import importlib
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.keys import Keys
from headrace.datasets.sources.archives.containers import numbered
from headrace.datasets.sources.folders.folder import OnListed, counted
from headrace.datasets.sources.folders.listed_images import check_first_image, listed_dataset
from headrace.errors import FormatError, HeadraceError, MissingDependencyError
from headrace.system.files.regular_file import check_regular, regular_opener
from headrace.system.text.foreign_errors import first_line
from headrace.system.text.size_limits import LONGEST_LINE, lines_of
from headrace.system.text.sizes import size_text

__all__ = ["TABLES", "open_table"]

TABLES = (".csv", ".tsv", ".parquet")
# Column names that occur in lists of public datasets, in order of preference; case is ignored.
_PATHS = ("path", "filepath", "file_path", "image_path", "filename", "file_name", "file", "image", "img")
_LABELS = ("label", "labels", "class", "class_id", "target", "category")
_SAFE_PYARROW = (14, 0, 1)  # before, a column's type could be a pickle, which was run when the schema was read (CVE-2023-47248)
_BATCH, _ROWS = 1 << 16, 1 << 12  # of Parquet in memory, and of these as Python objects, at a time
_LINES_OF_ROW = 100
_ROW_BYTES = 64  # memory of a row of Parquet beside its path
_ALWAYS_BYTES, _EXPANSION = 1 << 30, 256  # of all rows together: allowed for any file, and for each byte of one
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]*)?")  # pandas writes a 3 as "3.0" in a column with missing values


def open_table(path: Path, root: Path | None = None, on_listed: OnListed | None = None) -> Dataset:
    """Open a table of images. Its paths are relative to `root`, by default the folder of the table.

    on_listed: called with the number of rows just read. Default: None.
    Labels are integers, or class names, which are sorted and numbered; an empty label means none. Raises FormatError if a
    column of paths or labels is missing, SourceError for an empty table or a missing first image, MissingDependencyError for
    Parquet without pyarrow.
    """
    folder = root if root is not None else path.parent
    found = _Labels()
    keys = Keys.of(counted(_names(path, found), on_listed))
    check_first_image(path, folder, keys)
    numbers, classes = numbered(_values(path, keys, found), {}, len(keys))
    return listed_dataset(path, folder, keys, numbers[np.frombuffer(found.rows, dtype=np.int64)], classes)


class _Labels:
    """The labels of a table as it spells them: different texts, and the number of its text for each row."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}  # in the order in which they come first
        self.rows = array("q")

    def append(self, text: str) -> None:
        """Add the label of the next row."""
        self.rows.append(self.texts.setdefault(text, len(self.texts)))


def _names(path: Path, labels: _Labels) -> Iterator[str]:
    """Yield the path of each row, and append its label to `labels`."""
    for name, label in (_parquet if path.suffix == ".parquet" else _csv)(path):
        if "\0" in name:
            raise FormatError(f"{path}: a path holds a NUL byte")
        labels.append(label)
        yield name


def _csv(path: Path) -> Iterator[tuple[str, str]]:
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape", opener=regular_opener) as file:
        taken = 0  # lines of the row that is being read: texts in quotation marks may go on over lines

        def lines() -> Iterator[str]:
            nonlocal taken
            for line in lines_of(file):
                taken += 1
                if taken > _LINES_OF_ROW:
                    raise FormatError(f"{path}: a row has more than {_LINES_OF_ROW} lines", hint="check its quotation marks")
                yield line

        reader = csv.reader(lines(), delimiter="\t" if path.suffix == ".tsv" else ",")
        try:
            header = next(reader, [])
            at, label = _columns(path, header)
            taken = 0
            for row in reader:
                taken = 0
                if len(row) <= max(at, label):
                    if not row:
                        continue
                    raise FormatError(f"{path}, line {reader.line_num}: {len(header)} columns are expected, {len(row)} found")
                yield row[at], row[label]
        except csv.Error as error:  # for example an unclosed quotation mark
            raise FormatError(f"{path}, line {reader.line_num}: {error}") from error


def _parquet(path: Path) -> Iterator[tuple[str, str]]:
    """Yield path and label of each row of a Parquet file.

    A text is stored once for all rows that hold it, so a file of a kilobyte may have any number of rows of any length. The rows
    are therefore read some at a time, and counted against the size of the file.
    """
    library = _pyarrow()
    try:
        left = max(_ALWAYS_BYTES, _EXPANSION * check_regular(path).st_size)
        schema = library.read_schema(path)
        at, label = (schema.names[i] for i in _columns(path, schema.names))
        _check_types(path, schema, at, label)
        with library.ParquetFile(path, read_dictionary=[at, label]) as file:  # other columns may hold the images themselves
            for some in file.iter_batches(_BATCH, columns=[at, label]):
                for name, value in zip(_values_of(path, some, at), _values_of(path, some, label), strict=True):
                    if not isinstance(name, str):
                        raise FormatError(f"{path}: column {at!r} does not hold paths")
                    left -= len(name) + _ROW_BYTES
                    yield name, "" if value is None or value != value else str(value)
                if left < 0:
                    raise FormatError(
                        f"{path}: its rows take over {size_text(_ALWAYS_BYTES)} and over {_EXPANSION} times the file's size",
                        hint="repeat fewer rows",
                    )
    except HeadraceError:
        raise
    except Exception as error:  # what pyarrow raises for damaged files has many types
        raise FormatError(f"{path} is not a Parquet file that can be read: {first_line(error)}") from error


def _pyarrow() -> Any:
    try:
        version = importlib.import_module("pyarrow").__version__
        library = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError("pyarrow is needed to read Parquet", hint="pip install pyarrow") from error
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < _SAFE_PYARROW:
        needed = ".".join(map(str, _SAFE_PYARROW))
        raise MissingDependencyError(
            f"pyarrow {version} runs code that a Parquet file brings; {needed} does not",
            hint=f"pip install 'pyarrow>={needed}'",
        )
    return library


def _check_types(path: Path, schema: Any, at: str, label: str) -> None:
    """Raise FormatError unless the columns hold texts, or numbers as labels: other values have no text that names a class."""
    types = importlib.import_module("pyarrow").types
    for name in (at, label):
        if len(schema.get_all_field_indices(name)) != 1:
            raise FormatError(f"{path} has several columns {name!r}")
        kind = schema.field(name).type
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        text = kind.value_type if types.is_dictionary(kind) else kind
        if not (str(text) in ("string", "large_string", "string_view", "null") or number):
            raise FormatError(f"{path}: column {name!r} holds {str(kind)[:80]}; names or numbers are expected")


def _values_of(path: Path, rows: Any, name: str) -> Iterator[Any]:
    """Yield the values of a column. Raise FormatError for a text longer than a line of a list may be."""
    column, compute = rows.column(name), importlib.import_module("pyarrow.compute")
    if hasattr(column, "dictionary"):  # each text once: a long one is refused before each row gets its copy
        longest = column.dictionary.nbytes
        if longest <= _ALWAYS_BYTES:
            used = column.dictionary.take(column.indices.unique().drop_null())
            longest = compute.max(compute.binary_length(used)).as_py() or 0
        if longest > LONGEST_LINE:
            raise FormatError(f"{path}: column {name!r} holds a text of {size_text(longest)}, longer than any path or name")
    for begin in range(0, len(column), _ROWS):
        some = column.slice(begin, _ROWS)
        yield from (some.dictionary_decode() if hasattr(some, "dictionary") else some).to_pylist()


def _columns(path: Path, header: Sequence[str]) -> tuple[int, int]:
    """Return the positions of the columns of paths and of labels."""
    lower = [name.strip().lower() for name in header]
    found = [next((lower.index(name) for name in names if name in lower), None) for names in (_PATHS, _LABELS)]
    if found[0] is None or found[1] is None:
        what = "paths (path, filename, image, …)" if found[0] is None else "labels (label, class, target, …)"
        raise FormatError(f"{path} has no column of {what}; its columns: {', '.join(header)[:200]}")
    return found[0], found[1]


def _values(path: Path, keys: Keys, labels: _Labels) -> list[int | str | None]:
    """Return integers if all texts are numbers, else names; None: no label. Raise FormatError for an invalid number."""
    texts = [text.strip() for text in labels.texts]
    if not all(_NUMBER.fullmatch(text) for text in texts if text):
        return [text or None for text in texts]
    for number, text in enumerate(texts):
        if text and (float(text) < 0 or not float(text).is_integer()):
            name = keys[labels.rows.index(number)]
            raise FormatError(f"{path}: {name} has the label {text!r}; a whole number from 0, or a name, is expected")
    return [int(text.partition(".")[0]) if text else None for text in texts]
