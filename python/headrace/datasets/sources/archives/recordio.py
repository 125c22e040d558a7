"""MXNet's RecordIO (.rec, with or without .idx), as im2rec and SageMaker's image algorithms write it.

A record is two little-endian words, the magic number and 3 bits of continuation flag with 29 bits of length, then the
data, padded to 4 bytes (dmlc-core `recordio.h`). The data begins with MXNet's image header (`mx.recordio.IRHeader`: flag,
label, id, id2); a flag above 0 counts float32 labels behind it. Data that holds the magic number at a multiple of 4 is
cut there into parts.
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.sources.archives.containers import MAX_CLASSES, ContainerRecords, open_containers, unique_stems
from headrace.errors import FormatError
from headrace.system.files.regular_file import open_regular, regular_opener
from headrace.system.text.size_limits import lines_of, record_limit, too_large

__all__ = ["MAGIC", "image_header", "open_recordio", "scan_recordio"]

MAGIC = 0xCED7230A
_WORDS = struct.Struct("<II")
_IMAGE = struct.Struct("<IfQQ")  # flag, label, id, id2
_LENGTH_BITS = 29
LEAST_RECORD = _WORDS.size + _IMAGE.size  # bytes of a record without an image
_WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3  # continuation flags


def open_recordio(root: Path, files: Sequence[Path]) -> Dataset:
    """Open .rec files as one dataset. An .idx file beside one gives the order and the keys of its records.

    Raises FormatError if a file is damaged or truncated, an index does not fit it, or a record does not have exactly one
    integer label.
    """
    return open_containers(root, "rec", files, scan_recordio(files))


def scan_recordio(files: Sequence[Path]) -> Callable[[Path], ContainerRecords]:
    """Return the function that finds the records in one of these files."""
    begin, joined = unique_stems(files), _Joined()
    return lambda path: _scan(path, begin[path], joined)


class _Joined:
    """Counts the bytes of all records that are stored in several parts. They stay in memory, and the files may be sparse."""

    def __init__(self) -> None:
        self._lock, self._size = threading.Lock(), 0

    def add(self, size: int) -> int:
        with self._lock:
            self._size += size
            return self._size


def _scan(path: Path, begin: str, joined: _Joined) -> ContainerRecords:
    descriptor = open_regular(path)
    try:
        reader = _Reader(path, descriptor, joined)
        index = path.with_suffix(".idx")
        found, numbers, listed = ContainerRecords(), list[int](), set[int]()
        for number, at in _listed(index) if index.exists() else reader.walk():
            own = reader.record(at, found)
            numbers.append(own if number is None else number)
            if len(numbers) > reader.end // LEAST_RECORD:
                raise FormatError(f"{index} lists more records than {path.name} can hold", hint="remove it, or make it again")
            listed.add(at)
        if index.exists() and (rest := sum(at not in listed for _, at in reader.walk())):
            found.strays.append(f"{path.name} ({rest} records that {index.name} does not list)")
        if len(set(numbers)) != len(numbers):  # ids that were never set: number the records
            numbers = list(range(len(numbers)))
        found.keys = [f"{begin}{number:08d}" for number in numbers]
        return found
    finally:
        os.close(descriptor)


def _listed(index: Path) -> Iterator[tuple[int | None, int]]:
    """Yield (key, offset) of each line of an .idx file."""
    with open(index, "rb", opener=regular_opener) as file:
        for number, line in enumerate(lines_of(file), 1):
            key, _, at = line.strip().partition(b"\t")
            if not key.isdigit() or not at.isdigit() or len(key) > 19 or len(at) > 18:
                raise FormatError(
                    f"{index}, line {number}: two numbers with a tab between are expected, found {line[:60]!r}",
                    hint="remove the .idx file: the .rec is then read without it",
                )
            yield int(key), int(at)


class _Reader:
    def __init__(self, path: Path, descriptor: int, joined: _Joined) -> None:
        self.path, self.descriptor, self.joined = path, descriptor, joined
        self.end = os.fstat(descriptor).st_size
        self.joined_bytes = 0  # of the records in several parts so far; sound ones take their room in the file once

    def walk(self) -> Iterator[tuple[int | None, int]]:
        """Yield (None, offset) of each record, from the start of the file: as `_listed` does, without keys."""
        at = 0
        while at < self.end:
            yield None, at
            flag = _WHOLE
            while True:
                flag, _, length = self._part(at)
                at += _WORDS.size + length + -length % 4  # at least 8 bytes on: this ends
                if flag in (_WHOLE, _LAST):
                    break

    def record(self, at: int, found: ContainerRecords) -> int:
        """Append the record at byte `at` to `found`; return the id in its header."""
        flag, data, length = self._part(at)
        if flag not in (_WHOLE, _FIRST):
            raise self._broken(at, "is the middle of a record")
        head = os.pread(self.descriptor, min(length, _IMAGE.size + 4), data)
        if flag == _FIRST:
            whole = self._joined(at)
            skip, label, number = self._header(whole, len(whole), at)
            found.pieces[len(found.labels)] = whole[skip:]
            found.offsets.append(0)
            found.sizes.append(len(whole) - skip)
        else:
            skip, label, number = self._header(head, length, at)
            found.offsets.append(data + skip)
            found.sizes.append(length - skip)
        found.labels.append(label)
        return number

    def _part(self, at: int) -> tuple[int, int, int]:
        """Return continuation flag, offset and length of the data of the part at byte `at`."""
        raw = os.pread(self.descriptor, _WORDS.size, at)
        if len(raw) < _WORDS.size:
            raise self._broken(at, "is cut off: the file is truncated")
        magic, word = _WORDS.unpack(raw)
        if magic != MAGIC:
            raise self._broken(at, f"does not begin with RecordIO's magic number, but {magic:#010x}")
        flag, length = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
        if flag > _LAST:
            raise self._broken(at, f"has the unknown flag {flag}")
        if at + _WORDS.size + length > self.end:
            raise self._broken(at, f"has {length:,} bytes, more than the file holds: the file is truncated")
        return flag, at + _WORDS.size, length

    def _joined(self, at: int) -> bytes:
        """Return the data of a record that is split into parts; the magic number separated them."""
        parts, expected = list[bytes](), {_FIRST}
        while True:
            flag, data, length = self._part(at)
            if flag not in expected:
                raise self._broken(at, "does not continue the record before it")
            self.joined_bytes += _WORDS.size + length  # parts without data are joined by magic numbers, too
            if self.joined_bytes > self.end:
                raise self._broken(at, "overlaps with others, or is listed again and again")
            if (size := self.joined.add(_WORDS.size + length)) > (limit := record_limit()):
                raise self._broken(at, f"{too_large(size, limit)} for records in several parts, together")
            parts.append(os.pread(self.descriptor, length, data))
            if flag == _LAST:
                return MAGIC.to_bytes(4, "little").join(parts)
            at, expected = data + length + -length % 4, {_MIDDLE, _LAST}

    def _header(self, head: bytes, length: int, at: int) -> tuple[int, int, int]:
        """Return the number of bytes before the image, the label and the id."""
        try:
            return image_header(head, length)
        except ValueError as error:
            raise self._broken(at, str(error)) from error

    def _broken(self, at: int, what: str) -> FormatError:
        """Return the error for a damaged record, which begins at byte `at`."""
        return FormatError(f"{self.path}: the record at byte {at:,} {what}", hint="copy the file again, or make it again")


def image_header(head: bytes, length: int) -> tuple[int, int, int]:
    """Return the number of bytes before the image, the label and the id, from the head of a record of `length` bytes.

    Raises ValueError with the words for an error message.
    """
    if len(head) < _IMAGE.size:
        raise ValueError(f"has {length} bytes, too few for an image header")
    flag, label, number, _ = _IMAGE.unpack_from(head)
    skip = _IMAGE.size + 4 * flag
    if flag > 1:
        raise ValueError(f"has {flag} labels; headrace reads one class label for each image")
    if skip > length:
        raise ValueError(f"has {length} bytes, too few for its label")
    if flag == 1:
        (label,) = struct.unpack_from("<f", head, _IMAGE.size)
    if not math.isfinite(label) or label != int(label) or not 0 <= label < MAX_CLASSES:
        raise ValueError(f"has the label {label}; a whole number from 0 is expected")
    return skip, int(label), number
