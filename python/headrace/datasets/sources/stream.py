"""Records from a stream of bytes that can be read only once, in order, as SageMaker sends it through a named pipe.

A stream is a sequence of objects: tar archives in WebDataset's layout, the other files of a packed dataset (its manifest states
the number of records), or RecordIO with MXNet's image header. Objects come plain or wrapped (RecordWrapperType RecordIO: each
object is one record). The stream of an augmented manifest alternates records: an image, then its label.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from headrace.datasets.records.packed_keys import split_name
from headrace.datasets.records.table import StreamRecord
from headrace.datasets.sources.archives.recordio import MAGIC, image_header
from headrace.datasets.sources.archives.tar import (
    BLOCK,
    EXTENSIONS,
    MAX_META,
    Headers,
    is_image,
    label_of_cls,
    label_of_json,
)
from headrace.errors import FormatError
from headrace.system.text.json import parse_json

__all__ = ["ByteStream", "stream_records"]

_HEAD = struct.Struct("<II")
_MAGIC = MAGIC.to_bytes(4, "little")
_MAX_RECORD = 1 << 28  # bytes of one image, label or manifest; more means damage and would fill the memory
_MAX_HEADER = 100_000_000  # bytes of a safetensors header, the format's own limit
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")

OnCount = Callable[[int], None]


class ByteStream:
    """A sequence of pieces of bytes, read as one stream with look-ahead."""

    def __init__(self, pieces: Iterable[bytes], path: Path) -> None:
        self.path = path
        self.at = 0  # bytes consumed so far
        self._pieces = iter(pieces)
        self._buffer = b""
        self._begin = 0

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes, fewer at the end, without consuming them."""
        self._fill(count)
        return self._buffer[self._begin : self._begin + count]

    def take(self, count: int) -> bytes:
        """Consume exactly `count` bytes. Raise FormatError if the stream ends before."""
        if count > _MAX_RECORD:
            raise self.broken(f"has a member of {count:,} bytes; {_MAX_RECORD:,} are the most that one may have in a stream")
        data = self.peek(count)
        if len(data) < count:
            raise self.broken(f"ended inside a record: {len(data):,} of {count:,} bytes came")
        self._begin += count
        self.at += count
        return data

    def skip(self, count: int) -> None:
        """Skip `count` bytes."""
        while count > 0:
            count -= len(self.take(min(count, 1 << 20)))

    def broken(self, what: str) -> FormatError:
        """Return the FormatError that says `what` is wrong at the current byte of the stream."""
        return FormatError(
            f"{self.path}, byte {self.at:,}: the stream {what}",
            hint="check whether the sender was stopped; `headrace verify` checks the data at their source",
        )

    def _fill(self, count: int) -> None:
        size = len(self._buffer) - self._begin
        if size >= count:
            return
        parts = [self._buffer[self._begin :]]
        while size < count and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            size += len(piece)
        self._buffer, self._begin = b"".join(parts), 0


def stream_records(source: ByteStream, on_count: OnCount) -> Iterator[StreamRecord]:
    """Yield the records of a stream. Call `on_count` with the number of all records if a manifest in the stream states it.

    Raises FormatError for a stream that is damaged, ends early, or is of another kind than those above.
    """
    head = source.peek(_HEAD.size + BLOCK)
    if not head.startswith(_MAGIC):
        yield from _objects(source, on_count)
        return
    inner = head[_HEAD.size :]
    if inner.startswith(_IMAGES):
        yield from _augmented(source)
    elif _is_tar(inner) or inner.startswith((b"{", _MAGIC)) or _safetensors_header(inner):
        yield from _objects(ByteStream(_payloads(source), source.path), on_count)
    else:
        yield from _objects(source, on_count)


def _objects(source: ByteStream, on_count: OnCount) -> Iterator[StreamRecord]:
    """Yield the records of all objects; detect the format of each from its first bytes."""
    tar, number = _Tar(source), 0
    while head := source.peek(BLOCK):
        if head.startswith(_MAGIC):
            yield _image(source, number)
            number += 1
        elif not any(head):
            source.skip(len(head))
            tar.blank(len(head))
            yield from tar.finished()
        elif _is_tar(head) or tar.open:
            yield from tar.step()
        elif head.startswith(b"{"):
            _json(source, on_count)
        elif header := _safetensors_header(head):
            _skip_safetensors(source, header)
        else:
            raise FormatError(
                f"{source.path}, byte {source.at:,}: {head[:8]!r} begins no tar archive, RecordIO or file of a packed dataset",
                hint="send tar shards (headrace pack) or .rec files, or use FastFile mode",
            )
    yield from tar.finished()
    tar.ended()


class _Tar:
    """The tar archives in a stream, read header by header."""

    def __init__(self, source: ByteStream) -> None:
        self.source = source
        self.headers = Headers(source.path)
        self.open = False  # inside an archive, before its end
        self._zeros = 0
        self._key: str | None = None
        self._ends: set[str] = set()  # extensions of the sample's members
        self._parts: dict[str, bytes] = {}  # image, label and JSON of the sample

    def blank(self, count: int) -> None:
        """Count zero bytes that were read between members: two blocks of them end the archive."""
        self._zeros += count
        if self._zeros >= 2 * BLOCK:
            self.open = False

    def step(self) -> Iterator[StreamRecord]:
        """Read one header and its data; yield the sample that ended before it."""
        self.open, self._zeros = True, 0
        source = self.source
        kind, name, size = self.headers.parsed(source.take(BLOCK), source.at)
        padded = -(-size // BLOCK) * BLOCK
        if kind in EXTENSIONS:
            self.headers.extend(kind, source.take(min(padded, MAX_META + BLOCK))[:size], source.at)
            return
        own = self.headers.file_name(kind, name)
        if own is None:
            source.skip(padded)
            return
        key, end = split_name(own)
        if key != self._key or end in self._ends:  # a repeated extension begins another sample
            yield from self.finished()
            self._key = key
        self._ends.add(end)
        if self._belongs(end):
            self._parts[end] = source.take(padded)[:size]
        else:
            source.skip(padded)

    def _belongs(self, end: str) -> bool:
        """Return whether a member is the label, the JSON or the image of its sample.

        The image is the first one, but `7.png` before `7.mask.png`, as in a tar on disk.
        """
        if end in ("cls", "json"):
            return True
        held = next(filter(is_image, self._parts), None)
        if not is_image(end) or (held is not None and ("." in end or "." not in held)):
            return False
        if held is not None:
            del self._parts[held]
        return True

    def finished(self) -> Iterator[StreamRecord]:
        """Yield the current sample as a record if it has an image, and forget its members: all of them have been read."""
        key, parts = self._key, self._parts
        self._key, self._ends, self._parts = None, set(), {}
        image = next((data for end, data in parts.items() if is_image(end)), None)
        if key is not None and image is not None:
            label = label_of_cls(parts["cls"]) if "cls" in parts else None
            if label is None:
                label = label_of_json(parts["json"]) if "json" in parts else key.rpartition("/")[0].rpartition("/")[2] or None
            yield StreamRecord(key, label, image, parts.get("json", b""))

    def ended(self) -> None:
        """Raise FormatError if the stream ended inside an archive."""
        if self.open:
            raise self.source.broken("ended inside an archive")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _json(source: ByteStream, on_count: OnCount) -> None:
    """Read the manifest of a packed dataset, or one line of its errors.jsonl."""
    line = _until(source, b"\n")
    try:
        document = parse_json(line if line != b"{\n" else line + _until(source, b"\n}\n"))
    except ValueError as error:
        raise source.broken(f"holds JSON that is damaged: {error}") from error
    counts = document.get("counts") if isinstance(document, dict) and document.get("format") == "headrace" else None
    records = counts.get("records") if isinstance(counts, dict) else None
    if isinstance(records, int) and 0 <= records < 2**63:
        on_count(records)


def _until(source: ByteStream, end: bytes) -> bytes:
    size = 1 << 12
    while (found := source.peek(size).find(end)) < 0:
        if len(source.peek(size)) < size or size > _MAX_RECORD:
            raise source.broken("holds JSON without an end")
        size *= 2
    return source.take(found + len(end))


def _safetensors_header(head: bytes) -> int:
    """Return the size of the header in bytes if a safetensors file begins here, else 0."""
    (size,) = struct.unpack_from("<Q", head) if len(head) > 8 else (0,)
    return int(size) if head[8:9] == b"{" and size < _MAX_HEADER else 0


def _skip_safetensors(source: ByteStream, header: int) -> None:
    source.skip(8)
    try:
        tensors = parse_json(source.take(header))
        end = max(int(facts["data_offsets"][1]) for name, facts in tensors.items() if name != "__metadata__")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise source.broken("holds an index that is damaged") from error
    source.skip(end)


def _part(source: ByteStream) -> tuple[int, int]:
    """Read the head of a part of a record; return its continuation flag and length."""
    magic, word = _HEAD.unpack(source.take(_HEAD.size))
    flag, length = word >> 29, word & ((1 << 29) - 1)
    if magic != MAGIC or flag > 3:
        raise source.broken(f"has no record where one is expected, but {magic:#010x}")
    return flag, length


def _record(source: ByteStream) -> bytes:
    """Read one record; join its parts by the magic number that separated them (dmlc-core `recordio.h`)."""
    parts, begun = list[bytes](), source.at
    while True:
        flag, length = _part(source)
        if (flag in (0, 1)) != (not parts):
            raise source.broken("has parts of records in a wrong order")
        if source.at - begun > _MAX_RECORD:
            raise source.broken(f"has a record of more than {_MAX_RECORD:,} bytes in parts; no record may have more")
        parts.append(source.take(length))
        source.skip(-length % 4)
        if flag in (0, 3):
            return _MAGIC.join(parts)


def _payloads(source: ByteStream) -> Iterator[bytes]:
    """Yield the data of all records, in pieces."""
    while source.peek(1):
        flag, length = _part(source)
        if flag in (2, 3):
            yield _MAGIC
        left = length
        while left > 0:
            piece = source.take(min(left, 1 << 20))
            left -= len(piece)
            yield piece
        source.skip(-length % 4)


def _image(source: ByteStream, number: int) -> StreamRecord:
    data = _record(source)
    try:
        skip, label, own = image_header(data, len(data))
    except ValueError as error:
        raise source.broken(f"has a record that {error}") from error
    return StreamRecord(f"{own or number:08d}", label, data[skip:])


def _augmented(source: ByteStream) -> Iterator[StreamRecord]:
    """Yield the records of an augmented manifest with the attributes `source-ref` and label: an image, its label, and so on."""
    number = 0
    while source.peek(1):
        image = _record(source)
        text = _record(source) if source.peek(1) else b""
        if not image.startswith(_IMAGES) or text.startswith(_IMAGES) or not text:
            raise source.broken("has images without labels: an augmented manifest must send source-ref and one label in turn")
        yield StreamRecord(f"{number:08d}", label_of_cls(text), image)
        number += 1
