"""TFRecord files of `tf.train.Example`s with `image/encoded` and `image/class/label`, as TensorFlow's ImageNet scripts write.

A record is its length (uint64), that length's masked CRC-32C, the data, the data's masked CRC-32C, all little-endian
(tensorflow `core/lib/io/record_writer.h`). The data is a protocol buffer: Example.features (1) . feature (1, a map of
key (1) to value (2)) . bytes_list (1) | float_list (2) | int64_list (3) . value (1).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace._native import crc32c
from headrace.datasets.records.dataset import Dataset
from headrace.datasets.sources.archives.containers import MAX_CLASSES, ContainerRecords, open_containers, unique_stems
from headrace.errors import FormatError
from headrace.system.files.regular_file import regular_opener
from headrace.system.text.size_limits import LONGEST_LINE, record_limit, too_large

__all__ = ["masked_crc32c", "open_tfrecord", "scan_tfrecord"]

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_IMAGE, _LABEL, _TEXT, _NAME = "image/encoded", "image/class/label", "image/class/text", "image/filename"
_WANTED = frozenset({_IMAGE, _LABEL, _TEXT, _NAME})
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def open_tfrecord(root: Path, files: Sequence[Path]) -> Dataset:
    """Open TFRecord files as one dataset. The first open of a file checks all its checksums.

    Labels stay as they are (TensorFlow's ImageNet counts from 1). Raises FormatError if a file is damaged or
    truncated, or an example has no image.
    """
    return open_containers(root, "tfrecord", files, scan_tfrecord(files))


def scan_tfrecord(files: Sequence[Path]) -> Callable[[Path], ContainerRecords]:
    """Return the function that finds the examples in one of these files."""
    begin = unique_stems(files)
    return lambda path: _scan(path, begin[path])


def _scan(path: Path, begin: str) -> ContainerRecords:
    found, names = ContainerRecords(), list[str]()
    with open(path, "rb", opener=regular_opener) as file:
        for number, (at, example) in enumerate(_records(path, file)):
            try:
                features = {name: feature for name, feature in _features(example) if name in _WANTED}
                image = features[_IMAGE].blob()
                label = features[_LABEL].number() if _LABEL in features else None
                text = features[_TEXT].text() if _TEXT in features else ""
                name = features[_NAME].text() if _NAME in features else ""
            except KeyError as error:
                raise FormatError(f"{path}: example {number} has no {_IMAGE}; headrace reads image classification") from error
            except (ValueError, IndexError) as error:
                raise FormatError(f"{path}: example {number} at byte {at:,} is damaged: {error}") from error
            if label is not None and not 0 <= label < MAX_CLASSES:
                raise FormatError(f"{path}: example {number} has the label {label}")
            found.offsets.append(at + image[0])
            found.sizes.append(image[1])
            found.labels.append(label)
            if label is not None and text:
                found.names.setdefault(label, text)
            names.append(name.rpartition("/")[2].rpartition(".")[0])
    unique = len(set(names)) == len(names) and all(names)
    found.keys = [begin + (name if unique else f"{number:08d}") for number, name in enumerate(names)]
    return found


def _records(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each record's data; check the checksums.

    The file is read, not mapped: who cuts a mapped file off ends the process that looks at it.
    """
    at, end = 0, os.fstat(file.fileno()).st_size
    while at < end:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _broken(path, at, "is cut off: the file is truncated")
        length, crc = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            if at == 0 and head[:2] == b"\x1f\x8b":
                raise FormatError(f"{path} is compressed; its images cannot be reached", hint="unpack it first:  gunzip")
            raise _broken(path, at, "has a damaged length (CRC)")
        begin = at + _HEAD.size
        more = f"has {length:,} bytes, more than the file holds: the file is truncated"
        if length > end - begin - _CRC.size:
            raise _broken(path, at, more)
        if length > (limit := record_limit()):  # a file may be sparse: zeros behind a right length take no disk
            raise _broken(path, at, too_large(length, limit))
        data, check = file.read(length), file.read(_CRC.size)
        if len(data) < length or len(check) < _CRC.size:  # it has become shorter
            raise _broken(path, at, more)
        if masked_crc32c(data) != _CRC.unpack(check)[0]:
            raise _broken(path, at, "is damaged (CRC)")
        yield begin, data
        at = begin + length + _CRC.size


def masked_crc32c(data: bytes) -> int:
    """Return TensorFlow's masked CRC-32C: rotated right by 15 bits, plus a constant (`core/lib/hash/crc32c.h`)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _broken(path: Path, at: int, what: str) -> FormatError:
    return FormatError(f"{path}: the record at byte {at:,} {what}", hint="copy the file again, or make it again")


@dataclass(frozen=True, slots=True)
class _Feature:
    """The message of one feature in an example: `data[begin:end]`."""

    data: bytes
    begin: int
    end: int

    def blob(self) -> tuple[int, int]:
        """Return offset and size of the first value of a bytes_list."""
        for field, _, begin, end in _fields(self.data, self.begin, self.end):
            if field == 1:  # bytes_list
                for inner, _, at, stop in _fields(self.data, begin, end):
                    if inner == 1:
                        return at, stop - at
        raise ValueError("a bytes feature is expected")

    def text(self) -> str:
        """Return the first value of a bytes_list as UTF-8, or ""."""
        try:
            at, size = self.blob()
        except ValueError:
            return ""
        if size > LONGEST_LINE:
            raise ValueError(f"a name of {size:,} bytes, longer than any")
        return self.data[at : at + size].decode("utf-8", "replace")

    def number(self) -> int:
        """Return the first value of an int64_list. Raise ValueError if the feature holds none."""
        for field, _, begin, end in _fields(self.data, self.begin, self.end):
            if field == 3:  # int64_list
                for inner, wire, at, _ in _fields(self.data, begin, end):
                    if inner == 1 and wire in (_VARINT, _BYTES):  # one value, or packed values
                        value, _ = _varint(self.data, at, end)
                        return value - (1 << 64) if value >> 63 else value
        raise ValueError("an int64 feature is expected")


def _features(example: bytes) -> Iterator[tuple[str, _Feature]]:
    """Yield name and feature of each entry of an Example."""
    for field, wire, begin, end in _fields(example, 0, len(example)):
        if field == 1 and wire == _BYTES:
            for inner, kind, at, stop in _fields(example, begin, end):
                if inner == 1 and kind == _BYTES:
                    yield _entry(example, at, stop)


def _entry(example: bytes, begin: int, end: int) -> tuple[str, _Feature]:
    name, feature = "", _Feature(example, end, end)
    for field, _, at, stop in _fields(example, begin, end):
        if field == 1:
            name = example[at:stop].decode("utf-8", "replace")
        elif field == 2:
            feature = _Feature(example, at, stop)
    return name, feature


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, begin, end of the value) of each field in `data[at:end]`. Raise ValueError for damage."""
    while at < end:
        tag, at = _varint(data, at, end)
        wire, begin = tag & 7, at
        if wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        elif wire == _BYTES:
            length, begin = _varint(data, at, end)
            at = begin + length
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at > end:
            raise ValueError("a field runs past the end of its message")
        yield tag >> 3, wire, begin, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a variable-length integer and the offset after it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number runs past the end of its message")
