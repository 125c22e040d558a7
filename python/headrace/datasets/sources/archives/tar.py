"""Tar archives of other tools, in WebDataset's layout or plain (`CLASS/image.jpg`), indexed and read in place.

Nothing is extracted. Members whose extraction would be unsafe (absolute names, `..`) are refused, and so are images that are
links. Layout: POSIX.1-2017 pax, "ustar Interchange Format", and GNU tar's long names and sizes.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.datasets.records.dataset import Dataset
from headrace.datasets.records.packed_keys import escape, split_name
from headrace.datasets.sources.archives.containers import MAX_CLASSES, ContainerRecords, open_containers, unique_stems
from headrace.datasets.sources.folders.folder import IMAGE_EXTENSIONS
from headrace.errors import FormatError
from headrace.system.files.regular_file import open_regular
from headrace.system.text.json import parse_json
from headrace.system.text.size_limits import LONGEST_LINE

__all__ = ["Headers", "StreamedMember", "TarMember", "TarStream", "is_image", "label_of_cls", "label_of_json", "open_tar",
           "samples", "scan_tar"]  # fmt: skip

_IMAGES = frozenset((*IMAGE_EXTENSIONS, ".gif"))  # ImageFolder ignores GIF files; archives and packed datasets may hold them
BLOCK = 512
MAX_META = 1 << 20  # bytes of one long name or pax header; far more than any name needs
_SMALL = {"cls": LONGEST_LINE, "json": 1 << 24}  # bytes of a label's member; larger ones are not read
_FILE = (b"0", b"\0", b"7")  # NUL: archives from before POSIX
_LINKS, _LONG_NAME, _PAX = b"12", b"L", b"x"
EXTENSIONS = (_LONG_NAME, _PAX)  # types of headers that describe the next member
_OF_OTHERS = (b"g", b"K")  # headers that describe what is not looked at: all members, and the target of a link
MAX_EXTENDED = 1 << 25  # bytes of all extended headers of a stream
_PIECE = 1 << 20


def open_tar(root: Path, files: Sequence[Path]) -> Dataset:
    """Open tar archives as one dataset.

    A sample is a run of members whose names agree up to the first dot of their last part. Its image is the first member
    with an image's extension, a plain one (`7.png`) before others (`7.mask.png`). Its label is in `.cls`, else in `.json`
    under `label`, `cls` or `class`. Its other members are sidecar files. In an archive without any `.cls` or `.json`, every
    image is a sample and its label is its folder; a member that is no image is a sidecar file if one image has its key. The
    key of an image that shares it (`a/x.jpg`, `a/x.png`) is its whole name; no other key has a dot in its last part.

    Raises FormatError when an archive is damaged or truncated.
    """
    return open_containers(root, "tar", files, scan_tar(files))


def scan_tar(files: Sequence[Path]) -> Callable[[Path], ContainerRecords]:
    """Return the function that finds the samples in one of these archives."""
    begin = unique_stems(files)
    return lambda path: _scan(path, begin[path])


@dataclass(frozen=True, slots=True)
class TarMember:
    """A regular file in an archive: name, offset and size in bytes."""

    name: str
    offset: int
    size: int


def members(path: Path, links: list[str]) -> Iterator[TarMember]:
    """Yield the regular files of an archive in its order; add the names of links to `links`.

    Raises FormatError if the file is not a complete tar archive.
    """
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    try:
        yield from _Walk(path, descriptor, links).members()
    finally:
        os.close(descriptor)


class _Walk:
    """A walk over an archive from header to header."""

    def __init__(self, path: Path, descriptor: int, links: list[str]) -> None:
        self.headers, self.descriptor, self.links = Headers(path), descriptor, links
        self.end = os.fstat(descriptor).st_size

    def members(self) -> Iterator[TarMember]:
        at = zeros = 0
        headers = self.headers
        while at + BLOCK <= self.end:
            block = os.pread(self.descriptor, BLOCK, at)
            if not any(block):
                zeros, at = zeros + 1, at + BLOCK
                at = self._behind_hole(at) if zeros > 1 else at
                continue
            zeros = 0
            kind, name, size = headers.parsed(block, at)
            data, at = at + BLOCK, at + BLOCK + -(-size // BLOCK) * BLOCK
            if data + size > self.end:
                raise headers.broken(
                    f"is truncated: {name!r} has {size:,} bytes, the archive ends {self.end - data:,} bytes behind its header",
                )
            if kind in EXTENSIONS:
                headers.extend(kind, os.pread(self.descriptor, min(size, MAX_META + 1), data), data)
                continue
            name = headers.whole_name(name)
            if (own := headers.file_name(kind, name)) is not None:
                yield TarMember(own, data, size)
            elif kind in _LINKS:
                self.links.append(name)
        if zeros < 2:
            raise headers.broken(
                "has no end (two blocks of zeros): it is probably truncated",
                f"if it is complete, append the end:  head -c 1024 /dev/zero >> {headers.path}",
            )

    def _behind_hole(self, at: int) -> int:
        """Return the place of the next block that is stored, from `at` on: terabytes of a sparse file take no disk.

        An archive may stand behind the end of another one (`cat a.tar b.tar`), so the walk goes on to the end of the file.
        """
        try:
            found = os.lseek(self.descriptor, at, os.SEEK_DATA)
        except OSError as error:  # ENXIO: nothing but a hole up to the end; else a file system that knows no holes
            return self.end if error.errno == errno.ENXIO else at
        return max(at, found // BLOCK * BLOCK)


class Headers:
    """The parser of headers. An extended header's values apply to the next member."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.long_name: str | None = None
        self.long_size: int | None = None

    def parsed(self, block: bytes, at: int) -> tuple[bytes, str, int]:
        """Return type, name and size of a member. Raise FormatError if the block is no header."""
        stored = block[148:156].split(b"\0")[0].strip()
        total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
        if not stored or not _is_octal(stored) or int(stored, 8) != total:
            if at == 0:
                packed = block[:2] == b"\x1f\x8b" or block[:4] in (b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zX")
                raise self.broken("is compressed" if packed else "is not a tar archive", _UNPACK if packed else None)
            raise self.broken(f"has a damaged header at byte {at:,}")
        name = _text(block[:100])
        if block[257:263] == b"ustar\0" and block[345]:
            name = f"{_text(block[345:500])}/{name}"
        kind, size = block[156:157], self.long_size
        self.long_size = None
        if kind == b"S":
            raise self.broken(f"holds a sparse file, {name!r}, which cannot be read in place")
        return kind, name, self._size(block[124:136], at) if size is None else size

    def whole_name(self, name: str) -> str:
        """Return the long name from the extended header before this one, if there was any, else the header's own name."""
        whole, self.long_name = self.long_name, None
        return name if whole is None else whole

    def file_name(self, kind: bytes, name: str) -> str | None:
        """Return the safe, complete name of a regular file; None: another member. Raise FormatError for a link to an image."""
        name = self.whole_name(name)
        if kind in _FILE:
            return None if name.endswith("/") else self._safe(name)  # ends in a slash: a folder, before POSIX
        if kind in _LINKS and name.lower().endswith(IMAGE_EXTENSIONS):
            raise self.broken(
                f"holds a link, {name!r}; links are not followed", "tar -h --hard-dereference packs the files themselves"
            )
        return None

    def extend(self, kind: bytes, raw: bytes, at: int) -> None:
        """Store a long name, or `path` and `size` of a pax header, for the next member."""
        if len(raw) > MAX_META:
            raise self.broken(f"has an extended header of more than {MAX_META:,} bytes at byte {at:,}")
        if kind == _LONG_NAME:
            self.long_name = _text(raw)
            return
        begin = 0
        while begin < len(raw):  # by position: to cut off each entry would copy the rest of up to 1 MiB each time
            space = raw.find(b" ", begin, begin + 8)
            digits = raw[begin:space] if space > 0 else b""
            length = int(digits) if digits.isdigit() else 0
            name, equals, value = raw[space + 1 : begin + length].partition(b"=")
            if not length or not equals or not value.endswith(b"\n") or begin + length > len(raw):
                raise self.broken(f"has a damaged pax header at byte {at:,}")
            value, begin = value[:-1], begin + length
            if name == b"path" and len(value) <= LONGEST_LINE:
                self.long_name = value.decode("utf-8", "surrogateescape")
            elif name == b"size" and value.isdigit() and len(value) < 20:
                self.long_size = int(value)
            elif name == b"path":
                raise self.broken(f"has a name of {len(value):,} bytes at byte {at:,}")
            elif name.startswith(b"GNU.sparse"):
                raise self.broken("holds a sparse file, which cannot be read in place")

    def _size(self, field: bytes, at: int) -> int:
        if field[0] == 0x80:  # GNU: base 256
            return int.from_bytes(field[1:], "big")
        digits = field.split(b"\0")[0].strip()
        if field[0] & 0x80 or not _is_octal(digits):
            raise self.broken(f"has a size that is no number at byte {at:,}")
        return int(digits or b"0", 8)

    def _safe(self, name: str) -> str:
        parts = name.split("/")
        if name.startswith("/") or ".." in parts:
            raise self.broken(f"holds {name!r}, which leads out of the archive", "make the archive again with relative names")
        return "/".join(part for part in parts if part not in ("", "."))

    def broken(self, what: str, hint: str | None = None) -> FormatError:
        """Return the error that says `what` is wrong with the archive."""
        return FormatError(f"{self.path} {what}", hint=hint or "copy it again, or make it again")


@dataclass(frozen=True, slots=True)
class StreamedMember:
    """A member of an archive that is read as a stream. `name` is as stored, and may lead anywhere. `mode`: its rights."""

    name: str
    size: int
    mode: int
    is_file: bool
    is_folder: bool


class TarStream:
    """An archive that is read once, from its begin to its end, as one that is being unpacked.

    Python's `tarfile` holds an extended header of any length in memory, takes quadratic time for one, and goes back for a
    negative size. Methods raise FormatError for a damaged or truncated archive, and what the stream raises.

        for member in (archive := TarStream(path, gzip.open(path))).members():
            data = archive.read(member.size)
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._headers, self._stream, self._at = Headers(path), stream, 0
        self._left = 0
        """Bytes of the member, and of the rest of its last block, that are still to be read."""

    def members(self) -> Iterator[StreamedMember]:
        """Yield each member. What is not read of its content before the next one is passed over."""
        extended = padding = 0
        while any(block := self._take(BLOCK)):
            if len(block) < BLOCK:
                raise self._headers.broken("is truncated")
            at = self._at - BLOCK
            kind, name, size = self._headers.parsed(block, at)
            padding = -size % BLOCK
            if kind in EXTENSIONS:
                extended += size
                if extended > MAX_EXTENDED:
                    raise self._headers.broken(f"has more than {MAX_EXTENDED:,} bytes of extended headers")
                self._headers.extend(kind, self._whole(min(size, MAX_META + 1)), at + BLOCK)
                self._whole(padding)
                continue
            self._left = size
            if kind not in _OF_OTHERS:
                name, mode = self._headers.whole_name(name), block[100:108].split(b"\0")[0].strip()
                is_file = kind in _FILE and not name.endswith("/")
                is_folder = kind == b"5" or (kind in _FILE and not is_file)
                rights = int(mode, 8) if mode and _is_octal(mode) else 0o644
                yield StreamedMember(name, size, rights, is_file, is_folder)
            while self._left:
                self.read(_PIECE)
            self._whole(padding)

    def read(self, count: int) -> bytes:
        """Return the next bytes of the member's content, up to `count`; none at its end."""
        data = self._whole(min(count, self._left))
        self._left -= len(data)
        return data

    def _whole(self, count: int) -> bytes:
        data = self._take(count)
        if len(data) < count:
            raise self._headers.broken("is truncated")
        return data

    def _take(self, count: int) -> bytes:
        """Return so many bytes of the stream, fewer at its end."""
        data = self._stream.read(count)
        while len(data) < count and (more := self._stream.read(count - len(data))):
            data += more
        self._at += len(data)
        return data


_UNPACK = "an image in a compressed archive cannot be reached without unpacking all: unpack it first (gunzip, unzstd)"


def _is_octal(digits: bytes) -> bool:
    return all(0x30 <= digit <= 0x37 for digit in digits)


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _scan(path: Path, begin: str) -> ContainerRecords:
    links: list[str] = []
    found = _found(path, begin, list(samples(path, links)))
    found.strays += [f"{name} (a link; links are not followed)" for name in links]
    return found


def _found(path: Path, begin: str, runs: Sequence[tuple[str, list[tuple[str, TarMember]]]]) -> ContainerRecords:
    # An archive without labels is an image folder in a tar: each image is a record.
    if any(end in ("cls", "json") for _, parts in runs for end, _ in parts):
        return _scan_labeled(path, begin, runs)
    images = [(key, end, part, parts) for key, parts in runs for end, part in parts if is_image(end)]
    count = Counter(key for key, *_ in images)
    found = ContainerRecords()
    for key, parts in runs:
        if count[key] != 1:
            found.strays += [part.name for end, part in parts if not is_image(end)]
    for key, _, part, parts in images:
        if count[key] == 1:
            _add_sidecars(found, [(end, one) for end, one in parts if one is not part])
        found.keys.append(begin + (key if count[key] == 1 else part.name))
        found.offsets.append(part.offset)
        found.sizes.append(part.size)
        found.labels.append(key.rpartition("/")[0].rpartition("/")[2] or None)
    return found


def _scan_labeled(path: Path, begin: str, runs: Sequence[tuple[str, list[tuple[str, TarMember]]]]) -> ContainerRecords:
    found = ContainerRecords()
    descriptor = open_regular(path)
    try:
        for key, parts in runs:
            images = [(end, part) for end, part in parts if is_image(end)]
            # A plain extension comes before others: of 7.mask.png and 7.png the second is the image.
            image = min(images, key=lambda found: "." in found[0], default=(None, None))[1]
            if image is None:
                found.strays += [part.name for _, part in parts]
                continue
            sidecars = dict(parts)
            _add_sidecars(found, [(end, part) for end, part in parts if part is not image and end not in ("cls", "json")])
            found.keys.append(begin + key)
            found.offsets.append(image.offset)
            found.sizes.append(image.size)
            found.labels.append(_label(path, descriptor, sidecars))
            sidecar = sidecars.get("json")
            found.json_offsets.append(sidecar.offset if sidecar else 0)
            found.json_sizes.append(sidecar.size if sidecar else 0)
    finally:
        os.close(descriptor)
    if not any(found.json_sizes):
        found.json_offsets, found.json_sizes = [], []
    return found


def _add_sidecars(found: ContainerRecords, parts: Sequence[tuple[str, TarMember]]) -> None:
    """Add the sidecar files of the next record; names are escaped as keys are."""
    found.strays += [part.name for end, part in parts if not end]
    beside = [(".".join(map(escape, end.split("."))), part.offset, part.size) for end, part in parts if end]
    if beside:
        found.sidecars[len(found.keys)] = beside


def is_image(end: str) -> bool:
    """Return whether the last extension of a member is that of an image, also in `mask.png`.

    `end`: its name after the first dot.
    """
    return f".{end.rpartition('.')[2]}" in _IMAGES


def samples(path: Path, links: list[str] | None = None) -> Iterator[tuple[str, list[tuple[str, TarMember]]]]:
    """Yield runs of members with the same key: (key, [(extension in lower case, member), …]); add names of links to `links`.

    A repeated extension begins another sample, so that callers see two samples with one key.
    """
    current, parts, ends = "", list[tuple[str, TarMember]](), set[str]()
    for member in members(path, [] if links is None else links):
        key, end = split_name(member.name)
        if parts and (key != current or end in ends):
            yield current, parts
            parts, ends = [], set()
        current = key
        parts.append((end, member))
        ends.add(end)
    if parts:
        yield current, parts


def _label(path: Path, descriptor: int, parts: dict[str, TarMember]) -> int | str | None:
    """Return the sample's label: a class index, a class name, or None."""
    for end in ("cls", "json"):
        member = parts.get(end)
        if member is None:
            continue
        if member.size > _SMALL[end]:
            raise FormatError(f"{path}: {member.name} has {member.size:,} bytes; a label is expected")
        raw = os.pread(descriptor, member.size, member.offset)
        label = label_of_cls(raw) if end == "cls" else label_of_json(raw)
        if isinstance(label, int) and not 0 <= label < MAX_CLASSES:
            raise FormatError(f"{path}: {member.name} holds the label {label}")
        if isinstance(label, str) and len(label) > LONGEST_LINE:
            raise FormatError(f"{path}: {member.name} holds a label of {len(label):,} characters")
        if label is not None:
            return label
    return None


def label_of_cls(raw: bytes) -> int | str | None:
    """Return the label in a `.cls`: a class index, a class name, or None."""
    text = raw.decode("utf-8", "replace").strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text or None


def label_of_json(raw: bytes) -> int | str | None:
    """Return the label in a `.json` under `label`, `cls` or `class`, or None."""
    try:
        document = parse_json(raw)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    for name in ("label", "cls", "class"):
        value = document.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, int | str) and not isinstance(value, bool):
            return value
    return None
