"""`index.safetensors`: the location of every record, as memory-mapped columns (docs/reference/format.md, "Index")."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

from headrace.datasets.records.sidecar_files import SidecarFiles
from headrace.errors import FormatError
from headrace.system.files.regular_file import check_regular, regular_opener

__all__ = ["Columns", "joined_pieces", "read_columns", "selected", "serialized"]

_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an index, one row a record, in the order of the shards and of the records inside them.

    The fields have the order of the file: widest type first, so that each is aligned to its own size. Optional columns of
    8 bytes precede them in the file, the names of sidecar files follow them.
    """

    key_start: npt.NDArray[np.int64]  # [n + 1] bytes into `keys`
    label: npt.NDArray[np.int64]  # [n] class index
    offset: npt.NDArray[np.int64]  # [n] bytes from the shard's start to the image's first byte
    size: npt.NDArray[np.int64]  # [n] bytes of the image
    height: npt.NDArray[np.int32]  # [n] pixels, as stored (EXIF orientation not applied)
    shard: npt.NDArray[np.int32]  # [n] index into the manifest's `shards`
    width: npt.NDArray[np.int32]  # [n] pixels
    crc32c: npt.NDArray[np.uint32]  # [n] CRC-32C (Castagnoli) of the image's bytes
    keys: npt.NDArray[np.uint8]  # [bytes of all keys] UTF-8
    json_offset: npt.NDArray[np.int64] | None = None  # [n] as `offset`, of the record's JSON
    json_size: npt.NDArray[np.int64] | None = None  # [n] bytes, 0: the record has none; None: no record has any
    sidecars: SidecarFiles | None = None  # the columns extra_…; None: no record has any

    def __len__(self) -> int:
        return len(self.label)


_EXPECTED = {
    "key_start": "I64",
    "label": "I64",
    "offset": "I64",
    "size": "I64",
    "height": "I32",
    "shard": "I32",
    "width": "I32",
    "crc32c": "U32",
    "keys": "U8",
}
_OPTIONAL = {"json_offset": "I64", "json_size": "I64"}
_EXTRA = {"extra_start": "I64", "extra_offset": "I64", "extra_size": "I64", "extra_name": "I64"}
_EXTRA_NAMES = {"extra_names": "U8"}  # concatenated, a line feed after each
_KNOWN = _OPTIONAL | _EXTRA | _EXPECTED | _EXTRA_NAMES
assert [*_EXPECTED, *_OPTIONAL, "sidecars"] == [field.name for field in fields(Columns)]


def serialized(columns: Columns) -> bytes:
    """Return the bytes of an index file.

    Not written by the safetensors library: its order of equal-sized tensors and its header spacing may change with the
    version, and the manifest holds a digest of these bytes.
    """
    values: dict[str, Any] = {name: getattr(columns, name) for name in (*_OPTIONAL, *_EXPECTED)}
    values = {name: column for name, column in values.items() if column is not None} | _sidecar_columns(columns.sidecars)
    lengths = {name: len(values[name]) for name in _KNOWN if name in values}
    return b"".join([_header(lengths), *(_bytes_of(name, values[name]) for name in lengths)])


def joined_pieces(paths: Sequence[Path]) -> Iterator[bytes]:
    """Yield the bytes of one index from those at `paths`, one after the other; the rows of path i are in shard i.

    Files and columns are read one at a time, so that neither the memory nor the number of open files grows with `paths`.
    """
    rows, keys_bytes, optional = 0, 0, set[str]()
    sidecar_parts: list[tuple[SidecarFiles | None, int]] = []
    for path in paths:
        part = read_columns(path)
        rows, keys_bytes = rows + len(part), keys_bytes + len(part.keys)
        optional |= {name for name in _OPTIONAL if getattr(part, name) is not None}
        sidecar_parts.append((part.sidecars.in_memory() if part.sidecars is not None else None, len(part)))
    sidecars = _sidecar_columns(SidecarFiles.joined(sidecar_parts))
    others = {"key_start": rows + 1, "keys": keys_bytes} | {name: len(column) for name, column in sidecars.items()}
    present = {*_EXPECTED, *optional, *sidecars}
    lengths = {name: others.get(name, rows) for name in _KNOWN if name in present}
    yield _header(lengths)
    for name in lengths:
        yield from [_bytes_of(name, sidecars[name])] if name in sidecars else _joined_column(name, paths)


def _joined_column(name: str, paths: Sequence[Path]) -> Iterator[bytes]:
    base = 0  # bytes of the keys before
    for number, path in enumerate(paths):
        part = read_columns(path)
        column = getattr(part, name)
        if name == "key_start":
            column, base = column[:-1] + base, base + len(part.keys)
        elif name == "shard":
            column = np.full(len(part), number, dtype=np.int32)
        yield _bytes_of(name, np.zeros(len(part), dtype=np.int64) if column is None else column)
    if name == "key_start":
        yield _bytes_of(name, np.array([base]))


def _sidecar_columns(sidecars: SidecarFiles | None) -> dict[str, npt.NDArray[Any]]:
    if sidecars is None:
        return {}
    text = "".join(f"{name}\n" for name in sidecars.names).encode("utf-8", "surrogateescape")
    columns = {name: getattr(sidecars, name.removeprefix("extra_")) for name in _EXTRA}
    return columns | {"extra_names": np.frombuffer(text, dtype=np.uint8)}


def _header(lengths: Mapping[str, int]) -> bytes:
    """Return the header of an index with columns of these lengths, in the order of the file."""
    table: dict[str, Any] = {"__metadata__": {"format": "headrace-index-1"}}
    end = 0
    for name, length in lengths.items():
        size = length * _DTYPES[_KNOWN[name]].itemsize
        table[name] = {"dtype": _KNOWN[name], "shape": [length], "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _bytes_of(name: str, column: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(column, dtype=_DTYPES[_KNOWN[name]]).tobytes()


def read_columns(path: Path) -> Columns:
    """Map an index into memory. Raise FormatError if it is no safetensors file, or a column is missing or has another type."""
    try:
        check_regular(path)
        with safetensors.safe_open(str(path), framework="numpy"):
            pass  # the library checks the header: sizes, overlaps, gaps, overflow
        arrays = _mapped(path)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise FormatError(f"{path} is not a valid safetensors file: {error}", hint=_HINT) from error
    problem = _problem(arrays)
    sidecars = None if problem else _sidecars(arrays)
    problem = problem or (sidecars.problem() if sidecars is not None else None)
    if problem:
        raise FormatError(f"{path}: {problem}", hint=_HINT)
    return Columns(
        **{name: array for name, array in arrays.items() if name in _EXPECTED or name in _OPTIONAL}, sidecars=sidecars
    )


def _sidecars(arrays: Mapping[str, npt.NDArray[Any]]) -> SidecarFiles | None:
    if "extra_start" not in arrays:
        return None
    names = arrays["extra_names"].tobytes().decode("utf-8", "surrogateescape").split("\n")[:-1]
    start, offset, size, name = (arrays[name] for name in _EXTRA)
    return SidecarFiles(start, offset, size, name, tuple(names))


def selected(columns: Columns, rows: npt.NDArray[np.int64], shard: npt.NDArray[np.int32]) -> Columns:
    """Return some rows of an index, in this order, with the shard numbers `shard`."""
    begins, sizes = columns.key_start[:-1][rows], np.diff(columns.key_start)[rows]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = np.arange(int(start[-1]), dtype=np.int64) + np.repeat(begins - start[:-1], sizes)
    rest: dict[str, Any] = {
        field.name: None if (column := getattr(columns, field.name)) is None else column[rows]
        for field in fields(Columns)
        if field.name not in ("key_start", "keys", "shard", "sidecars")
    }
    rest["sidecars"] = columns.sidecars.selected(rows) if columns.sidecars is not None else None
    return Columns(key_start=start, keys=columns.keys[places], shard=shard, **rest)


_HINT = "the index is damaged: pack the source again, or restore the file from a copy"


def _mapped(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    with open(path, "rb", opener=regular_opener) as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:header])
    arrays = {}
    for name, entry in table.items():
        if name in _KNOWN and entry["dtype"] in _DTYPES:
            dtype = _DTYPES[entry["dtype"]]
            begin, end = entry["data_offsets"]
            arrays[name] = np.frombuffer(data, dtype, (end - begin) // dtype.itemsize, header + begin)
    return arrays


def _problem(arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return in words the first fault in shapes, types or the key table; None if there is none. Rows are not checked."""
    for name, kind in _KNOWN.items():
        if name not in arrays and name not in _EXPECTED:
            continue
        if name not in arrays:
            return f"column {name!r} is missing"
        if _NAMES[arrays[name].dtype] != kind:
            return f"column {name!r} has type {_NAMES[arrays[name].dtype]}, {kind} expected"
    rows = len(arrays["label"])
    for name in arrays:
        expected = {"keys": len(arrays["keys"]), "key_start": rows + 1, "extra_start": rows + 1}.get(name, rows)
        if len(arrays[name]) != expected and (name == "extra_start" or not name.startswith("extra_")):
            return f"column {name!r} has {len(arrays[name])} rows, {expected} expected"
    start = arrays["key_start"]
    if start[0] != 0 or start[-1] != len(arrays["keys"]) or bool(np.any(start[1:] < start[:-1])):
        return "column 'key_start' does not cut 'keys' into one piece for each record"
    if ("json_offset" in arrays) != ("json_size" in arrays):
        return "only one of the columns 'json_offset' and 'json_size' is there"
    if len(arrays.keys() & (_EXTRA | _EXTRA_NAMES).keys()) not in (0, len(_EXTRA | _EXTRA_NAMES)):
        return "only some of the columns of the extra members are there"
    return None
